"""Parts of a graph that compilers of plugins are given: the one of docs/external.md, ONNX Runtime, and bad ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.external.test_kernels import examples, module_of_page, told
from tests.machines.test_webgpu import model
from tests.runtime.test_states import CASES, source
from tilewright import Session
from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_request
from tilewright.exporters.onnx.write import onnx_model
from tilewright.external.compiler import ExternalCompiler, ExternalGraph
from tilewright.external.kernel import WholeOperator
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Op
from tilewright.ir.types import tensor
from tilewright.options import Options, Request
from tilewright.plugins import Plugin
from tilewright.runtime.devices import external
from tilewright.settings.compilers import connected_parts

AROUND = """g (float[n,8] x, float[8,8] w) => (float[n,8] y)
    { a = Exp(x) b = MatMul(a, w) c = Softmax(b) d = Add(c, b) y = Mul(d, a) }"""
W = {"w": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) / 8}


def arithmetic() -> Any:
    return module_of_page(2, "arithmetic")


def session_with(folder: Path, *compilers: ExternalCompiler) -> Session:
    return Session(folder=folder, plugins=(Plugin("mine", compilers=compilers),))


def x_of(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "_COMPILERS", {})


def test_the_page_has_a_whole_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(examples()[2].splitlines()) < 60
    arithmetic()
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(model("g (float[n,4] x) => (float[n,4] y) { a = Exp(x) y = Neg(a) }"))
    found: dict[str, Any] = {}
    exec(examples()[3], found)
    assert [part.machine for part in found["model"].report().placed] == ["arithmetic 1.2"]
    np.testing.assert_allclose(found["y"], -np.e, rtol=1e-6)


def test_the_greatest_parts_are_computed_by_the_compiler(tmp_path: Path) -> None:
    """Two parts around a softmax, of unknown sizes, saved with what the compiler gave, by several threads at once."""
    session = session_with(tmp_path, arithmetic().Arithmetic())
    made = tilewright.compile(model(AROUND), constants=W, session=session)
    ours = tilewright.compile(model(AROUND), constants=W)
    made.save(tmp_path / "m.tw")
    loaded = tilewright.load(tmp_path / "m.tw")
    for n in (3, 1, 0):
        expected = ours(x_of(n))[0]
        np.testing.assert_allclose(made(x_of(n))[0], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(loaded(x_of(n))[0], made(x_of(n))[0])
    with ThreadPoolExecutor(4) as pool:
        for n, found in zip((1, 2, 3, 4) * 3, pool.map(lambda n: made(x_of(n))[0], (1, 2, 3, 4) * 3), strict=True):
            np.testing.assert_array_equal(found, loaded(x_of(n))[0])
    first, middle, last = made.report().placed
    assert (first.machine, last.machine) == ("arithmetic 1.2",) * 2 and middle.kernels
    assert first.why.startswith("2 operators") and (first.takes, first.gives) == ("32*n", "64*n")
    assert any("it has no softmax" in remark.message for remark in told(made, "external-compilers"))
    (layer,) = made.report().layers
    assert layer.why == "the compiler 'arithmetic' 1.2 computes it" and not layer.kernels
    again = tilewright.compile(model(AROUND), constants=W, session=session)  # out of the cache, if it is kept there
    np.testing.assert_array_equal(again(x_of(2))[0], made(x_of(2))[0])
    np.testing.assert_array_equal(copy.deepcopy(made)(x_of(2))[0], made(x_of(2))[0])


def test_an_artefact_names_the_compiler_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tilewright.compile(model(AROUND), constants=W, session=session_with(tmp_path, arithmetic().Arithmetic()))
    made.save(tmp_path / "m.tw")
    monkeypatch.setattr(external, "_COMPILERS", {})
    with pytest.raises(tilewright.ArtifactError, match=r"by the compiler 'arithmetic' 1.2, which is not here"):
        tilewright.load(tmp_path / "m.tw")
    external.register(type("Newer", (arithmetic().Arithmetic,), {"version": "2.0"})())
    with pytest.raises(tilewright.ArtifactError, match=r"of which version 2.0 is here"):
        tilewright.load(tmp_path / "m.tw")
    external.register(arithmetic().Arithmetic())
    np.testing.assert_array_equal(tilewright.load(tmp_path / "m.tw")(x_of(2))[0], made(x_of(2))[0])
    with pytest.raises(tilewright.OptionError, match="is no compiler"):
        external.register(object())


class Priced(ExternalCompiler):
    """Says how long operators take."""

    name, version = "priced", "1"

    def __init__(self, seconds: float) -> None:
        self.one = seconds

    def seconds(self, op: WholeOperator) -> float | None:
        return self.one

    def compile(self, graph: ExternalGraph) -> bytes:
        return b""

    def load(self, data: bytes) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(("seconds", "parts"), [(1e-9, ["priced 1"]), (1.0, [])])
def test_parts_are_given_where_that_pays(seconds: float, parts: list[str], tmp_path: Path) -> None:
    text = "g (float[256,512] x, float[512,512] w) => (float[256,512] y) { a = MatMul(x, w) y = MatMul(a, w) }"
    made = tilewright.compile(
        model(text), constants={"w": np.zeros((512, 512), np.float32)}, session=session_with(tmp_path, Priced(seconds))
    )
    assert [part.machine for part in made.report().placed] == parts


class Bad(ExternalCompiler):
    """Fails in some way."""

    name, version = "bad", "0"

    def __init__(self, way: str, run: Callable[[Sequence[np.ndarray]], Any] | None = None) -> None:
        self.way, self.ran = way, run
        self.loads = 0

    def refuses(self, op: WholeOperator) -> str:
        if self.way == "refuses":
            raise RuntimeError("it is broken")
        return "" if op.name in ("exp", "neg") else "no"

    def compile(self, graph: ExternalGraph) -> bytes:
        if self.way == "compile":
            raise RuntimeError("out of tiles")
        return "text" if self.way == "text" else b"data"  # type: ignore[return-value]

    def load(self, data: bytes) -> Any:
        self.loads += 1
        assert data == b"data"
        return self.ran


CHAIN = "g (float[n,8] x) => (float[n,8] y) { a = Exp(x) y = Neg(a) }"


@pytest.mark.parametrize(("way", "says"), [
    ("refuses", "it is broken; the compiler is not asked any more"),
    ("compile", "out of tiles; our own kernels compute its part"),
    ("text", "its 'compile' gave a str, and no bytes"),
])  # fmt: skip
def test_a_compiler_that_fails_costs_its_parts_alone(way: str, says: str, tmp_path: Path) -> None:
    with pytest.warns(tilewright.PerformanceWarning, match="the compiler is not|our own kernels|no bytes"):
        made = tilewright.compile(model(CHAIN), session=session_with(tmp_path, Bad(way)))
    np.testing.assert_allclose(made(x_of(2))[0], -np.exp(x_of(2)), rtol=1e-5)
    (remark,) = [r for r in made.report().remarks if r.kind == "failed"]
    assert says in remark.message


def test_a_part_that_fails_or_lies_is_an_error_of_the_call(tmp_path: Path) -> None:
    def run(arrays: Sequence[np.ndarray]) -> Any:
        return ways[0](arrays[0])

    def writes(x: np.ndarray) -> Any:
        x[:] = 0
        return [x]

    compiler = Bad("", run)
    made = tilewright.compile(model(CHAIN), session=session_with(tmp_path, compiler))
    ways: list[Callable[[np.ndarray], Any]] = [lambda x: [-np.exp(x)]]
    x = x_of(3)
    for way, error, says in (
        (lambda x: 1 / 0, tilewright.DeviceError, "a part of the compiler 'bad' 0 failed: ZeroDivisionError"),
        (writes, tilewright.DeviceError, "read-only"),
        (lambda x: [x[1:]], tilewright.PluginError, r"gave float32\[2, 8\] as result 0 in place of float32\[3, 8\]"),
        (lambda x: [x.astype(np.float64)], tilewright.PluginError, r"gave float64\[3, 8\] as result 0"),
        (lambda x: [], tilewright.PluginError, "gave 0 results in place of 1"),
        (lambda x: None, tilewright.PluginError, "gave NoneType, and no sequence"),
    ):
        ways[0] = way
        with pytest.raises(error, match=says):
            made(x)
    ways[0] = lambda x: [np.full_like(x, np.nan)]
    assert np.isnan(made(x)[0]).all()
    ways[0] = lambda x: [np.ascontiguousarray(-np.exp(x).T).T]  # not dense
    loads = compiler.loads
    np.testing.assert_array_equal(made(x)[0], -np.exp(x))
    assert loads == compiler.loads > 1  # after calls that failed it was loaded anew
    ways[0] = lambda x: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        made(x)
    ways[0] = lambda x: [-np.exp(x)]
    np.testing.assert_array_equal(made(x)[0], -np.exp(x))


@pytest.mark.parametrize("options", [{"numerics": "strict"}, {"max_memory": 1 << 20}])
def test_options_for_code_of_ours_ask_no_compiler(options: dict[str, Any], tmp_path: Path) -> None:
    made = tilewright.compile(
        model(CHAIN.replace("n,8", "2,8")), session=session_with(tmp_path, Bad("")), **options
    )
    (remark,) = told(made, "external-compilers")
    assert "is for code of ours alone" in remark.message and made.artifact.program is None


def test_levels_and_exported_libraries_ask_no_compiler(tmp_path: Path) -> None:
    request, session = Request.of(model(CHAIN), None, None), session_with(tmp_path, Bad(""))
    levels = compile_request(request, Options(target="x86-64-v2;x86-64-v3"), session=session)
    library = compile_request(request, Options(), session=session, on_objects=lambda files: None)
    linked = "the objects of the model are linked by others"
    for made, why in ((levels, "there are several targets"), (library, linked)):
        (remark,) = [r for r in made.report.remarks if r.stage == "external-compilers"]
        assert remark.message == f"no compiler is asked: {why}" and made.program is None


def test_states_stay_with_our_own_code(tmp_path: Path) -> None:
    graph, states, inputs, _ = CASES["swapped"]
    session = session_with(tmp_path, type("All", (Bad,), {"refuses": lambda self, op: ""})(""))
    made = tilewright.compile(source(graph), states=states, session=session)
    ours = tilewright.compile(source(graph), states=states)
    for given in (inputs(1), inputs(2)):
        for found, expected in zip(made(*given), ours(*given), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert any("keeps states only as a whole" in remark.message for remark in told(made, "external-compilers"))


@pytest.mark.sweep
def test_branches_and_sizes_from_data_are_handed_over(tmp_path: Path) -> None:
    text = """g (float[n,8] x, bool c) => (float[m,8] y) { z = Exp(x) i = NonZero(c) s = Squeeze(i) o = Shape(i)
        q = If(c) <then_branch = t () => (float[n,8] a) { a = Neg(z) }, else_branch = e () => (float[n,8] b)
        { u = Neg(z) b = Exp(u) }> v = Add(q, q) k = NonZero(v) r = Cast<to=1>(k) f = Transpose<perm=[1,0]>(r)
        w = Constant<value=float[2,8]{1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0,1.0}>()
        y = MatMul(f, w) }"""
    made = tilewright.compile(model(text), session=session_with(tmp_path, arithmetic().Arithmetic()))
    ours = tilewright.compile(model(text))
    for n, c in ((3, True), (1, False), (0, True)):
        for found, expected in zip(made(x_of(n), np.array(c)), ours(x_of(n), np.array(c)), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert sum(part.machine == "arithmetic 1.2" for part in made.report().placed) >= 4


class Runtime(ExternalCompiler):
    """ONNX Runtime, through the writer of `tilewright convert`."""

    name = "onnxruntime"

    def __init__(self) -> None:
        self.version = pytest.importorskip("onnxruntime").__version__

    def refuses(self, op: WholeOperator) -> str:
        return "" if op.name in ("conv", "add", "max", "matmul", "reshape", "max_pool", "full") else f"no {op.name}"

    def compile(self, graph: ExternalGraph) -> bytes:
        return onnx_model(graph.module).SerializeToString()

    def load(self, data: bytes) -> Any:
        import onnxruntime

        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]
        return lambda arrays: session.run(None, dict(zip(names, arrays, strict=False)))


@pytest.mark.sweep
def test_onnx_runtime_is_a_compiler_too(tmp_path: Path) -> None:
    text = """g (float[n,3,8,8] x, float[4,3,3,3] w, float[4] b) => (float[n,4,8,8] y)
        { c = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(c) s = Sigmoid(r) y = Add(s, c) }"""
    rng = np.random.default_rng(3)
    given = {"w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32), "b": rng.standard_normal(4).astype(np.float32)}
    made = tilewright.compile(model(text), constants=given, session=session_with(tmp_path, Runtime()))
    ours = tilewright.compile(model(text), constants=given)
    for n in (2, 1):
        x = rng.standard_normal((n, 3, 8, 8)).astype(np.float32)
        np.testing.assert_allclose(made(x)[0], ours(x)[0], rtol=1e-4, atol=1e-5)
    assert sum("onnxruntime" in part.machine for part in made.report().placed) == 2


def test_parts_can_each_run_at_once() -> None:
    """Random graphs: no path through others leads from a part back to it, and no two neighbours could be joined."""
    rng = np.random.default_rng(11)
    for _ in range(40):
        block = Block([tensor(dt.f32, [2])])
        values = [*block.args]
        for _ in range(14):
            operands = [values[int(k)] for k in rng.integers(max(0, len(values) - 5), len(values), 2)]
            op = block.append(Op("add", operands, [tensor(dt.f32, [2])]))
            values.append(op.result)
        chosen = {op for op in block.ops if rng.random() < 0.6}
        parts = connected_parts(block, chosen)
        assert sorted(id(op) for part in parts for op in part) == sorted(map(id, chosen))
        assert _is_acyclic(block, parts)
        for a in parts:
            for b in parts:
                joins = a is not b and any(v.op in a for op in b for v in op.operands)
                if joins:
                    merged = [*a, *b]
                    others = [part for part in parts if part is not a and part is not b]
                    assert not _is_acyclic(block, [*others, merged])


def _is_acyclic(block: Block, parts: Sequence[Sequence[Op]]) -> bool:
    unit = {op: k for k, op in enumerate(block.ops)}
    for k, part in enumerate(parts):
        unit |= dict.fromkeys(part, -1 - k)
    edges = {(unit[v.op], unit[op]) for op in block.ops for v in op.operands if v.op is not None}
    edges = {(a, b) for a, b in edges if a != b}
    left = set(unit.values())
    while ready := {u for u in left if not any(b == u and a in left for a, b in edges)}:
        left -= ready
    return not left


def test_the_stages_show_parts_of_compilers(tmp_path: Path) -> None:
    session = session_with(tmp_path, arithmetic().Arithmetic())
    setting = Setting.chosen(Options(), session)
    made = Compilation(load_onnx(model(CHAIN)), setting).run("planned")
    assert 'compiler="arithmetic"' in made.text()
    artifact = tilewright.compiler.compile_text(made.text(), Options(), session)
    external.register(arithmetic().Arithmetic())
    np.testing.assert_allclose(tilewright.runtime.Model(artifact)(x_of(2))[0], -np.exp(x_of(2)), rtol=1e-6)
    with pytest.raises(tilewright.UnsupportedError, match="for the compiler 'arithmetic', which no plugin here brings"):
        tilewright.compiler.compile_text(made.text(), Options(), Session(folder=tmp_path, plugins=()))
