"""What callers of exported libraries do wrong or unexpectedly: memory used twice, calls within calls, odd names."""

from __future__ import annotations

import ctypes
import platform
import subprocess
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
from tests.exporters.library.test_export import loop
from tests.fuzz.registry import run_seed
from tests.models import gather, mlp
from tests.staging.models import model_of
from tilewright.runtime.errors import OptionError


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def library_of(model: onnx.ModelProto, path: Path, name: str = "net", **options: Any) -> Path:
    tilewright.export(model, path, name=name, threads=1, **options)
    return path


def run(library: CModel, inputs: list[c.Tensor], outputs: Any) -> int:
    given = (c.Tensor * max(1, len(inputs)))(*inputs)
    counts = ctypes.c_size_t(len(inputs)), ctypes.c_size_t(library.info.output_count)
    return int(library._function("run")(library.made, given, counts[0], outputs, counts[1]))


def test_names_and_messages_of_the_model_stay(tmp_path: Path) -> None:
    """Also those that look like names of the interface, or like something in C."""
    names = ["model_x", "MODEL_H", "model.h", 'a "quoted"\\\\ % name', "what??/", "größe\\n", "the_info", "/* model_r"]
    nodes = [h.make_node("Sum", names, ["model_run"])]
    model = model_of(nodes, [(n, TensorProto.FLOAT, ["model_n"]) for n in names], ["model_run"], {})
    library = CModel(library_of(model, tmp_path / "a.so"), "net")
    assert [library.info.inputs[k].name.decode() for k in range(len(names))] == names
    assert library.info.inputs[0].dims[0] == b"model_n"
    assert library.info.outputs[0].name == b"model_run"
    assert library.run(*[np.ones(3, np.float32)] * len(names))[0].tolist() == [len(names)] * 3
    rows = gather()
    rows.graph.node[0].name = "model_1/look_up"
    with pytest.raises(CError, match="model_1/look_up"):
        CModel(library_of(rows, tmp_path / "b.so"), "net").run(np.array([9], np.int64))


def test_files_may_have_any_name(tmp_path: Path) -> None:
    (wanted,) = tilewright.compile(mlp(), threads=1)(floats(2, 64))
    path = library_of(mlp(), tmp_path / 'model_v2 "x".so', weights="beside")
    assert CModel(path, "net").run(floats(2, 64))[0].tobytes() == wanted.tobytes()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["weights", "library", "code0", "Net"])
def test_names_of_what_is_made_on_the_way(name: str, tmp_path: Path) -> None:
    tilewright.export(mlp(), tmp_path / f"{name}.o", threads=1)
    tilewright.export(mlp(), tmp_path / f"lib{name}.so", threads=1)
    assert CModel(tmp_path / f"lib{name}.so", name).run(floats(2, 64))[0].shape == (2, 32)


@pytest.mark.parametrize("name", ["the", "last", "find", "pthread", "model"])
def test_names_that_are_taken(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the library's own"):
        tilewright.export(mlp(), tmp_path / "a.so", name=name)


@pytest.mark.parametrize("which", ["kernels", "steps"])
def test_memory_that_is_used_twice_is_refused(which: str, tmp_path: Path) -> None:
    model, x = (mlp(), floats(4, 64)) if which == "kernels" else (loop(), np.abs(floats(4)) + 1)
    library = CModel(library_of(model, tmp_path / "a.so"), "net")
    wanted = library.run(x)
    count = library.info.output_count
    for k in range(count):
        outputs = (c.Tensor * count)()
        outputs[k].data, outputs[k].bytes = x.ctypes.data, x.nbytes
        if wanted[k].nbytes <= x.nbytes:
            assert run(library, [c.Tensor.of(x)], outputs) == c.BAD_INPUT
            with pytest.raises(CError, match="overlaps an input"):
                library.check(c.BAD_INPUT)
    # an output of the run before
    outputs = (c.Tensor * count)()
    assert run(library, [c.Tensor.of(x)], outputs) == c.OK
    again = c.Tensor.of(x)
    again.data = outputs[0].data
    again.bytes = 1 << 20
    assert run(library, [again], (c.Tensor * count)()) == c.BAD_INPUT
    with pytest.raises(CError, match="lies in memory of the model"):
        library.check(c.BAD_INPUT)
    for found, value in zip(library.run(x), wanted, strict=True):
        assert found.tobytes() == value.tobytes()


def test_outputs_do_not_overlap(tmp_path: Path) -> None:
    nodes = [h.make_node("Neg", ["x"], ["y"]), h.make_node("Abs", ["x"], ["z"])]
    model = model_of(nodes, [("x", TensorProto.FLOAT, [4])], ["y", "z"], {})
    library = CModel(library_of(model, tmp_path / "a.so"), "net")
    room, x = np.zeros(9, np.float32), np.array([1, -2, 3, -4], np.float32)
    with pytest.raises(CError, match="output 'z' overlaps another output"):
        library.run(x, out=[room[:4], room[3:7]])
    assert not room.any()
    library.run(x, out=[room[:4], room[4:8]])
    assert room.tolist() == [-1, 2, -3, 4, 1, 2, 3, 4, 0]


def decoder() -> onnx.ModelProto:
    """A cache of rows that are looked up, and attention to it."""
    return onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    step (int64[1, s] ids, float[1, p, 4] past_rows) => (float[1, s, 4] y, float[1, t, 4] rows)
    <float[3, 4] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6}> {
        x = Gather(table, ids)
        rows = Concat <axis = 1> (past_rows, x)
        turned = Transpose <perm = [0, 2, 1]> (rows)
        scores = MatMul (x, turned)
        y = MatMul (scores, rows)
    }
    """)


def test_a_run_that_fails_loses_nothing_of_a_cache(tmp_path: Path) -> None:
    """Neither what is filled, nor how far: the next run goes on from there."""
    options: dict[str, Any] = {"states": True, "capacity": 16}
    model = tilewright.compile(decoder(), threads=1, **options)
    library = CModel(library_of(decoder(), tmp_path / "a.so", **options), "net")
    counter = [state.grows for state in model.report().states].index("")
    for ids in ([[0, 2]], [[1]], [[1, 3]], [[2]], [[-9]], [[0, 1, 2]]):
        try:
            (wanted,) = model(np.array(ids))
        except tilewright.ExecutionError as error:
            with pytest.raises(CError, match=str(error)[:20]) as raised:
                library.run(np.array(ids))
            assert raised.value.status == c.FAILED
        else:
            assert library.run(np.array(ids))[0].tobytes() == wanted.tobytes()
        assert library.state(counter).tobytes() == model.state(model.states[counter].info.name).tobytes()
    assert library.state(counter).reshape(-1).tolist() == [7]


@pytest.mark.sweep(0)
@pytest.mark.fresh_seeds(1)
def test_random_calls(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + 100):
        run_seed("libraries", seed)


FREED = r"""
#include "net.h"
#include <stdio.h>

/* The memory of the first run is free after the second, and this program's then. */
static _Alignas(64) char pools[2][1 << 22];
static int taken;
int posix_memalign(void **at, size_t alignment, size_t bytes) {
  (void)alignment;
  if (taken > 1 || bytes > sizeof *pools) return 12;
  *at = pools[taken++];
  return 0;
}

void __libc_free(void *);
void free(void *at) {
  if ((char *)at < pools[0] || (char *)at >= pools[2]) __libc_free(at);
}

int main(void) {
  static float x[4000] = {1, 2, 3}, y[4000];
  tw_tensor few = {x, sizeof x, TW_FLOAT32, 1, {4}}, many = {x, sizeof x, TW_FLOAT32, 1, {4000}};
  tw_tensor first[2] = {{0}}, second[2] = {{y, sizeof y}}, third[2] = {{0}};
  tw_options options = {sizeof options, 1, 0, NULL, NULL, 0, NULL, NULL};
  net_model *model;
  if (net_create(&options, &model)) return 1;
  if (net_run(model, &few, 1, first, 2) || net_run(model, &many, 1, second, 2)) return 1;
  float *mine = third[0].data = first[0].data;
  third[0].bytes = 16;
  mine[1] = 0;
  if (net_run(model, &few, 1, third, 2)) return 2;
  printf("%d %g", third[0].data == mine, mine[1]);
  return 0;
}
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="takes the place of free")
def test_memory_that_was_the_models_may_be_the_callers_next(tmp_path: Path) -> None:
    """The library gives memory to an output and frees it, and the caller gets the same from malloc."""
    nodes = [h.make_node("Neg", ["x"], ["y"]), h.make_node("Abs", ["x"], ["z"])]
    library_of(model_of(nodes, [("x", TensorProto.FLOAT, ["n"])], ["y", "z"], {}), tmp_path / "net.a")
    (tmp_path / "main.c").write_text(FREED)
    build = ["cc", "main.c", "net.a", "-o", "main", "-lm", "-lpthread", "-ldl"]
    subprocess.run(build, cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "1 -2"


def test_calls_within_a_run_find_it_busy(tmp_path: Path) -> None:
    endless = loop()
    limits = {"most": np.array(2**62), "limit": np.array(np.inf, np.float32)}
    for tensor in endless.graph.initializer:
        if tensor.name in limits:
            tensor.CopyFrom(onnx.numpy_helper.from_array(limits[tensor.name], tensor.name))
    endless.graph.node[0].output[2] = ""
    del endless.graph.output[2]
    found: list[int] = []

    def proceed(_: int | None) -> int:
        index, tensor = ctypes.c_size_t(0), c.Tensor()
        found.append(library._function("reset")(library.made))
        found.append(library._function("state")(library.made, index, ctypes.byref(tensor)))
        found.append(run(library, [c.Tensor.of(np.zeros(2, np.float32))], (c.Tensor * 2)()))
        return 0

    library = CModel(library_of(endless, tmp_path / "a.so"), "net", proceed=c.PROCEED(proceed))
    with pytest.raises(CError, match="ended by the function proceed"):
        library.run(np.zeros(2, np.float32))
    assert found == [c.BUSY] * 3


def shifted() -> onnx.ModelProto:
    """A state to whose end x comes: of as many elements as the state has, it is all that remains."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
        g (float[n] x, float[4] h) => (float[n] y, float[4] hn) {
            all = Concat <axis = 0> (h, x)
            start = Shape (x)
            end = Shape (all)
            hn = Slice (all, start, end)
            y = Neg (x)
        }"""
    return onnx.parser.parse_model(text)


def test_programs_of_one_model_keep_their_states_in_different_ways(tmp_path: Path) -> None:
    """One writes beside a state what another one writes in place."""
    options = {"states": {"h": "hn"}, "frequent": [{"n": 4}, {"n": 2}]}
    model = tilewright.compile(shifted(), threads=1, **options)  # type: ignore[arg-type]
    ways = {program.states[0].way for program in model.artifact.programs}
    assert len(ways) == 2, ways
    library = CModel(library_of(shifted(), tmp_path / "a.so", **options), "net")
    for n in (1, 4, 3, 2, 4, 4, 2, 1):
        x = floats(n) * n
        assert library.run(x)[0].tobytes() == model(x)[0].tobytes()
        assert library.state(0).tobytes() == model.state("h").tobytes()
