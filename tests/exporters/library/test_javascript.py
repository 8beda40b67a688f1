"""What callers of models in WebAssembly do: growing sizes, states in between, values that decide sizes, names."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx import helper as h

import tilewright
from tests.exporters.library.test_export import loop
from tests.staging.models import model_of

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None or shutil.which("node") is None, reason="needs ziglang and node"
)


def in_node(model: onnx.ModelProto, path: Path, script: str, **options: Any) -> Any:
    """What a script answers that has `load` and `caught`, and gives `answer`."""
    tilewright.export(model, path, name="net", target="wasm-simd128", **options)
    script_at = json.dumps(f"./{quote(path.with_suffix('.mjs').name)}")
    begin = f"const {{ load }} = await import(new URL({script_at}, import.meta.url));\n"
    caught = "const caught = (f) => { try { f(); return 'nothing'; } catch (error) { return error.message; } };\n"
    main = path.with_name("main.mjs")
    main.write_text(f"{begin}{caught}const model = await load();\n{script}\nconsole.log(JSON.stringify(answer));")
    command = ["node", main.name]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=120, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def total() -> onnx.ModelProto:
    """A state to which the rows of x are added; y is a product of x with its transposed."""
    nodes = [
        h.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=0), h.make_node("Add", ["s", "sum"], ["t"]),
        h.make_node("Transpose", ["x"], ["turned"]), h.make_node("MatMul", ["x", "turned"], ["y"]),
    ]  # fmt: skip
    inputs = [("x", TensorProto.FLOAT, ["n", 4]), ("s", TensorProto.FLOAT, [4])]
    return model_of(nodes, inputs, ["y", "t"], {"axis": np.array([0])})


def test_states_and_memory_stay_when_sizes_grow(tmp_path: Path) -> None:
    script = """
      let sum = 0;
      for (let n = 1; n <= 400; n++) {
        model.run({ x: { data: new Float32Array(4 * n).fill(1), dims: [n, 4] } });
        sum += n;
      }
      const state = Array.from(new Float32Array(model.state(0).slice().buffer));
      const answer = [state, sum, model.code.memory.buffer.byteLength];
    """
    state, wanted, memory = in_node(total(), tmp_path / "net.wasm", script, states={"s": "t"})
    assert state == [wanted] * 4
    assert memory < 8 << 20


def test_a_call_that_is_too_large_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    script = """
      const ones = (n) => ({ x: { data: new Float32Array(4 * n).fill(1), dims: [n, 4] } });
      const answer = [caught(() => model.state(0))];
      model.run(ones(1));
      for (const n of [40000, 32768, 30000]) answer.push(caught(() => model.run(ones(n))));
      model.run(ones(1));
      answer.push(Array.from(new Float32Array(model.state(0).slice().buffer)));
    """
    early, *failed, state = in_node(total(), tmp_path / "net.wasm", script, states={"s": "t"})
    assert early == "states are there after the first run"
    assert "nothing" not in failed and state == [2] * 4


def test_sizes_that_values_of_inputs_decide(tmp_path: Path) -> None:
    model = model_of(
        [h.make_node("Expand", ["x", "shape"], ["y"])],
        [("x", TensorProto.FLOAT, [1, 4]), ("shape", TensorProto.INT64, [2])], ["y"], {},
    )  # fmt: skip
    script = """
      const answer = [2, 100000, 3].map((n) => {
        const { y } = model.run({ x: new Float32Array(4).fill(n), shape: BigInt64Array.from([BigInt(n), 4n]) });
        return [y.dims, y.data.length, y.data.every((v) => v === n)];
      });
    """
    found = in_node(model, tmp_path / "model v2 #1.wasm", script)
    assert found == [[[n, 4], 4 * n, True] for n in (2, 100000, 3)]


def test_loops_take_and_use_memory_again(tmp_path: Path) -> None:
    """Rows that a loop collects, in memory of the module that is behind what the page took, and before that again."""
    script = """
      const run = (data) => model.run({ x: { data: Float32Array.from(data), dims: [data.length] } });
      for (let n = 0; n < 2000; n++) run(new Array(1 + n % 50).fill(0.01));
      const before = model.code.memory.buffer.byteLength;
      for (let n = 0; n < 2000; n++) run(new Array(1 + n % 50).fill(0.01));
      const answer = [model.code.memory.buffer.byteLength - before];
      for (const data of [[1, 2], [], new Array(300000).fill(1e-5), [0.001], [500, 1]]) {
        const { y, count, rows } = run(data);
        answer.push([Array.from(y.data.slice(0, 3)), Number(count.data[0]), rows.dims, rows.data.at(-1) ?? null]);
      }
    """
    given = [np.array([1, 2]), np.zeros(0), np.full(300000, 1e-5), np.array([0.001]), np.array([500, 1])]
    grown, *answers = in_node(loop(trips=40), tmp_path / "net.wasm", script)
    assert grown == 0
    model = tilewright.compile(loop(trips=40), threads=1)
    for x, (first, number, dims, last) in zip(given, answers, strict=True):
        y, count, rows = model(x.astype(np.float32))
        assert first == y[:3].tolist() and number == count and dims == list(rows.shape)
        assert last == (rows.reshape(-1)[-1] if rows.size else None)


def test_inputs_that_are_none(tmp_path: Path) -> None:
    model = model_of([h.make_node("Neg", ["x"], ["y"])], [("x", TensorProto.FLOAT, ["n", "m"])], ["y"], {})
    script = """
      const data = new Float32Array(4);
      const answer = [{}, { x: data }, { x: [1, 2] }, { x: { data, dims: [-2, -2] } }, { x: { data, dims: [1.5, 2] } },
        { x: { data, dims: [4, 2] } }, { x: { data: new Float64Array(4), dims: [2, 2] } }, { x: { data, dims: [4] } },
      ].map((values) => caught(() => model.run(values)));
      answer.push(caught(() => model.run()), model.run({ x: { data, dims: [2n, 2n] } }).y.dims);
    """
    missing, no_dims, no_array, negative, broken, count, kind, rank, nothing, last = in_node(
        model, tmp_path / "net.wasm", script
    )
    assert missing == nothing == "input 'x' is missing"
    assert "dims that calls decide" in no_dims and "its data are a Float32Array" in no_array
    assert negative == "input 'x' has dims [-2,-2], which are no sizes" and "no sizes" in broken
    assert count == "input 'x' has 4 elements, and dims [4,2]"
    assert kind == "input 'x' is float32: its data are a Float32Array"
    assert rank == "input 'x' has another number of axes"
    assert last == [2, 2]
