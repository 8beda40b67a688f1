"""Models as sources in C: every compiler takes them without a word, and they give what the model gives."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx import helper as h

import tilewright
from tests.exporters.library import c_library as c
from tests.exporters.library.c_library import CError, CModel
from tests.exporters.library.test_export import counter, loop
from tests.exporters.source.c_source import STRICT, TWIN, UNFUSED, module_of, shared, write
from tests.models import gather, mlp
from tests.ops.samples import FAMILIES
from tests.ops.sampling import Sample
from tests.ops.test_operators import check
from tests.staging.models import model_of
from tilewright.compiler import compile_module
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.runtime.errors import ArtifactError, OptionError

rng = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def compiler() -> None:
    """Skips what cannot be compiled here."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def close(found: list[np.ndarray], wanted: tuple[np.ndarray, ...]) -> bool:
    return all(f.shape == w.shape and f.dtype == w.dtype and np.allclose(f, w, 1e-5, 1e-6)
               for f, w in zip(found, wanted, strict=True))  # fmt: skip


Exported = Callable[..., CModel]


@pytest.fixture
def exported(tmp_path: Path) -> Exported:
    """A model written as C and compiled with checks of what C does not define."""

    def export(name: str, model: onnx.ModelProto, **options: Any) -> CModel:
        path = tmp_path / f"{name}.c"
        tilewright.export(model, path, **options)
        return CModel(shared(path, "-O1", "-fsanitize=undefined", "-fno-sanitize-recover=undefined"), name)

    return export


def test_sizes_may_change_from_run_to_run(exported: Exported) -> None:
    model, source = tilewright.compile(mlp(), threads=1), exported("mlp", mlp())
    assert source.info.target == b"any C11 compiler"
    for batch in (3, 1, 0, 200, 6):
        x = floats(batch, 64)
        assert close(source.run(x), model(x))
    source.close()


def test_loops_that_data_end(exported: Exported) -> None:
    model, source = tilewright.compile(loop(), threads=1), exported("loop", loop())
    for x in (np.array([1, 2], np.float32), np.array([0.001], np.float32), np.zeros(0, np.float32)):
        if x.size:
            assert close(source.run(x), model(x))
    with pytest.raises(CError, match="known after a run"):
        source.plan(np.zeros(1, np.float32))
    source.close()


@pytest.mark.parametrize("way", ["in place", "swapped"])
def test_states(exported: Exported, way: str) -> None:
    model = tilewright.compile(counter(way), threads=1, states={"s": "t"})
    source = exported(f"counts_{way[:2]}", counter(way), states={"s": "t"})
    for _ in range(3):
        x = floats(4)
        assert close(source.run(x), model(x))
    assert source.state(0).tobytes() == model.state("s").tobytes()
    source.reset()
    assert not source.state(0).any()


def test_errors_have_the_place_and_memory_may_be_the_callers(exported: Exported) -> None:
    source = exported("rows", gather())
    with pytest.raises(CError, match=r"out of range.*look_up"):
        source.run(np.array([1, 9], np.int64))
    assert source.run(np.array([4], np.int64))[0].tolist() == [[8, 9]]
    needs, _ = source.plan(np.zeros(3, np.int64))
    memory = np.zeros(needs.total, np.uint8)
    path = Path(source.library._name)
    inner = CModel(path, "rows", memory=memory.ctypes.data, memory_bytes=memory.size)
    assert inner.run(np.array([1, 2, 3], np.int64))[0].shape == (3, 2)
    with pytest.raises(CError, match="this library has one thread"):
        CModel(path, "rows", threads=2)


COMPILERS = {"gcc": ["gcc"], "clang": ["clang"], "zig": [sys.executable, "-m", "ziglang", "cc"]}


@pytest.mark.parametrize("name", COMPILERS)
def test_every_compiler_takes_it_without_a_word(name: str, tmp_path: Path) -> None:
    command = COMPILERS[name]
    if shutil.which(command[0]) is None or (name == "zig" and not _has_zig()):
        pytest.skip(f"there is no {name}")
    (source, *_) = tilewright.export(mlp(), tmp_path / "mlp.c")
    free = ["-DTW_FREESTANDING", "-ffreestanding"]
    if name != "zig":  # the headers of the compiler, and none of a C library
        found = subprocess.run([*command, "-print-file-name=include"], capture_output=True, text=True, check=True)
        free += ["-nostdinc", "-isystem", found.stdout.strip()]
    for more in ([], free):
        done = subprocess.run([*command, *STRICT, "-O2", *more, "-c", source, "-o", tmp_path / "mlp.o"],
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")


def _has_zig() -> bool:
    return subprocess.run([*COMPILERS["zig"], "--version"], capture_output=True, check=False).returncode == 0


def samples() -> Iterator[Sample]:
    """Of each operator the samples of the fewest and of the most elements."""
    found: dict[str, list[Sample]] = {}
    with np.errstate(all="ignore"):
        for family in FAMILIES:
            for sample in family():
                if sample.op not in ("fresh_key", "external_kernel"):  # a clock, and what plugins bring
                    found.setdefault(sample.op, []).append(sample)
    for several in found.values():
        several.sort(key=lambda s: sum(a.size for a in s.inputs))
        yield several[-1]
        if len(several) > 1:
            yield several[0]


SAMPLES = {f"{k}-{sample}": sample for k, sample in enumerate(samples())}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", SAMPLES)
def test_operators_have_the_bits_of_native_code(name: str, tmp_path: Path) -> None:
    """Of the same loops, with fused multiply-adds of two roundings, as LLVM makes them of vectors for such machines, or
    of one, where it has scalars and calls `fma`."""
    sample = SAMPLES[name]
    arrays = [np.require(a, requirements="C") for a in sample.inputs]
    (tmp_path / "unfused.h").write_text(UNFUSED)

    def found(name: str, *flags: str) -> Sequence[np.ndarray]:
        source, *_ = write(module_of(sample), tmp_path / f"{name}.c", Options(numerics="strict"))
        sanitized = ("-fsanitize=undefined", "-fno-sanitize-recover=undefined")
        return CModel(shared(source, "-O1", *flags, *sanitized), name).run(*arrays)

    native = Model(compile_module(module_of(sample), Options(numerics="strict"), TWIN), 1)(*arrays)
    wanted = sample.expected()
    unfused = found("in_two_roundings", "-include", "unfused.h")
    for one, exact in zip(unfused, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        check(one, exact, sample, 4.0)
    assert all(map(are_the_same, unfused, native)) or all(map(are_the_same, found("in_one"), native))


def are_the_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether floats are equal, and all else is so in all its bits."""
    if one.dtype.kind in "fV":
        return np.array_equal(one.astype(np.float64), other.astype(np.float64), equal_nan=True)
    return one.tobytes() == other.tobytes()


def test_weights_in_a_file_beside(tmp_path: Path) -> None:
    source, _, weights = tilewright.export(mlp(), tmp_path / "apart.c", weights="beside")
    library, x = shared(source, "-O1"), floats(2, 64)
    found = CModel(library, "apart", weights=bytes(weights), check_weights=1)
    assert close(found.run(x), tilewright.compile(mlp(), threads=1)(x))
    found.close()
    sound = weights.read_bytes()
    for data, text in ((sound[:-1], "cut off"), (sound + b"x", "cut off"), (b"X" + sound[1:], "another model"),
                       (sound[:-1] + bytes([sound[-1] ^ 1]), "is damaged")):  # fmt: skip
        weights.write_bytes(data)
        with pytest.raises(CError, match=text) as raised:
            CModel(library, "apart", weights=bytes(weights), check_weights=1)
        assert raised.value.status == c.BAD_WEIGHTS


def test_names_that_c_has_already(tmp_path: Path) -> None:
    """Values, dims and layers may be called anything, and constants be of any dtype, infinite or no number."""
    nodes = [
        h.make_node("Add", ["int", "float"], ["INPUTS"], name="/* for */ \\ %d"),
        h.make_node("Mul", ["INPUTS", "while.0"], ["exp_f32"], name="\n"),
        h.make_node("Add", ["exp_f32", "è"], ["return"], name="k0"),
    ]
    constants = {"float": np.array([np.inf, -np.inf, np.nan, -0.0], np.float32),
                 "while.0": np.array([1e-40, 2, 3, 4], np.float32), "è": np.arange(4, dtype=np.float32)}  # fmt: skip
    model = model_of(nodes, [("int", TensorProto.FLOAT, ["if", 4])], ["return"], constants)
    source, *_ = tilewright.export(model, tmp_path / "odd.c")
    x = floats(3, 4)
    found = CModel(shared(source, "-O1"), "odd").run(x)
    with np.errstate(all="ignore"):
        wanted = (x + constants["float"]) * constants["while.0"] + constants["è"]
    assert np.array_equal(found[0], wanted, equal_nan=True)


def test_names_of_the_program_itself_and_of_what_is_exported(tmp_path: Path) -> None:
    """Values may be called as variables and kernels of the program, dims as parameters of the plan, and values as
    others with the name of what is exported in front; comments have the names of layers as they are."""
    w = {f"w{k}": floats(16, 16) for k in range(3)}
    ends = ["stops", "sizes", "began", "k0_softmax", "model.fc", "net_fc"]
    nodes, before = [], "in_data"
    for k, name in enumerate(ends):
        inputs = [before, f"w{k // 2}"] if k % 2 == 0 else [before]
        nodes.append(h.make_node("Softmax" if k % 2 else "MatMul", inputs, [name], name=f"model_{k}/*/ \\ \""))
        before = name
    model = model_of(nodes, [("in_data", TensorProto.FLOAT, ["in_shapes", 16])], ["net_fc"], w)
    source, *_ = tilewright.export(model, tmp_path / "net.c")
    assert "/* model_1/* /" in source.read_text().replace("/ *", "/*")
    x = floats(3, 16)
    assert close(CModel(shared(source, "-O0"), "net").run(x), tilewright.compile(model, threads=1)(x))


def test_sizes_beyond_all_numbers_are_no_sizes(exported: Exported) -> None:
    """Also those that would be small again where arithmetic wraps."""
    node = [h.make_node("ConstantOfShape", ["shape"], ["c"]), h.make_node("Softmax", ["c"], ["p"]),
            h.make_node("ReduceSum", ["p"], ["y"])]  # fmt: skip
    source = exported("large", model_of(node, [("shape", TensorProto.INT64, [2])], ["y"], {}))
    assert source.run(np.array([3, 4]))[0].tolist() == [[3]]
    for shape in ([1 << 32, 1 << 32], [1 << 62, 4], [(1 << 63) - 1] * 2, [1 << 31, 1 << 31]):
        with pytest.raises(CError, match=r"memory|range"):
            source.run(np.array(shape))
    source.close()


def test_sizes_from_values_alone(exported: Exported) -> None:
    """A program of steps without loops; what no machine has memory for is refused."""
    model = model_of([h.make_node("Range", ["zero", "end", "one"], ["y"])], [("end", TensorProto.INT64, [])], ["y"],
                     {"zero": np.array(0), "one": np.array(1)})  # fmt: skip
    source = exported("range", model)
    assert [source.run(np.array(n))[0].tolist() for n in (3, 0, -2, 5)] == [[0, 1, 2], [], [], [0, 1, 2, 3, 4]]
    for n in (1 << 60, 1 << 61, 1 << 62, (1 << 63) - 1):
        with pytest.raises(CError, match=r"memory|would have the shape|than can be counted"):
            source.run(np.array(n))
    source.close()


def test_weights_are_numbers_for_machines_of_any_byte_order(tmp_path: Path) -> None:
    """Constants of the same bytes and several dtypes are written as what each of them is."""
    low = np.arange(1, 9) << 62
    constants = {"c64": low, "c32": low.view(np.int32).copy(), "c8": low.view(np.int8).copy()}
    shapes = {"64": (TensorProto.INT64, 8), "32": (TensorProto.INT32, 16), "8": (TensorProto.INT8, 64)}
    nodes = [h.make_node("Add", [f"x{n}", f"c{n}"], [f"y{n}"]) for n in shapes]
    inputs = [(f"x{n}", dtype, [size]) for n, (dtype, size) in shapes.items()]
    model = model_of(nodes, inputs, [f"y{n}" for n in shapes], constants)
    source, _, weights = tilewright.export(model, tmp_path / "order.c")
    fields = weights.read_text()
    assert all(f"int{n}_t c{n}[" in fields for n in shapes) and "INT64_MIN" in fields
    xs = [np.zeros_like(a) for a in constants.values()]
    found = CModel(shared(source, "-O0"), "order").run(*xs)
    assert all(np.array_equal(f, c) for f, c in zip(found, constants.values(), strict=True))


def test_rows_stand_within_lanes(tmp_path: Path) -> None:
    """Around sums in registers alone, whose bits do not depend on it."""
    w = np.round(floats(24, 32) * 8)
    model = model_of([h.make_node("MatMul", ["x", "w"], ["y"])], [("x", TensorProto.FLOAT, [12, 24])], ["y"], {"w": w})
    source, *_ = tilewright.export(model, tmp_path / "rows.c")
    text = source.read_text()
    lanes = r"for \(ptrdiff_t (\w+) = 0; \1 < 16; \1\+\+\) {\n\s+"
    rows = r"for \(ptrdiff_t (\w+) = 0; \2 < [2-8]; \2\+\+\) {\n\s+"
    assert re.search(rf"{lanes}{rows}\w+\[\w+\]\[\w+\] \+= ", text) and not re.search(rf"{lanes}{rows}y\[", text)
    x = np.round(floats(12, 24) * 8)
    found = CModel(shared(source, "-O1"), "rows").run(x)
    assert np.array_equal(found[0], x @ w)


def test_what_has_no_form_in_c_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a source in C is for all machines"):
        tilewright.export(mlp(), tmp_path / "a.c", target="zen3")
    with pytest.raises(OptionError, match="the target 'c' makes a source in C"):
        tilewright.export(mlp(), tmp_path / "a.so", target="c")
    with pytest.raises(ArtifactError, match=r"any C11 compiler.*which nothing here runs"):
        tilewright.compile(mlp(), target="c", cache=False)
    with pytest.raises(OptionError, match=r"math\.h would be taken for the C library's"):
        tilewright.export(mlp(), tmp_path / "math.c")
    with pytest.raises(OptionError, match="opens no files"):
        tilewright.export(mlp(), tmp_path / "a.c", freestanding=True, weights="beside")
    (tmp_path / "a.c").write_text("int main(void) { return 0; }")
    with pytest.raises(ArtifactError, match="would be lost"):
        tilewright.export(mlp(), tmp_path / "a.c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.c"]


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        files = tilewright.export(mlp(), tmp_path / folder / "same.c", compile_threads=len(made) + 1)
        made.append([f.read_bytes() for f in files])
    assert made[0] == made[1]
