"""Constants that one kernel picks rows of, and another multiplies by, lie in memory once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.schedule import scheduling as oracle
from tilewright.cost.data_movement import LEAST_SHARED, are_picked
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.types import tensor
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.storage.packing import Packing
from tilewright.ops import contract, reduce, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.runtime.errors import ExecutionError
from tilewright.schedule.sharing import one_copy
from tilewright.schedule.sharing.kernels import _Kernels

RNG = np.random.default_rng(11)
ROWS, COLUMNS = 700, 32
"""Of a matrix that is not a whole number of panels."""


def table(dtype: type = np.float32) -> np.ndarray:
    return RNG.integers(-8, 8, (ROWS, COLUMNS)).astype(dtype)


def sizes(module: Module) -> dict[str, int]:
    """Elements of the constants that are as large as the table."""
    return {name: a.size for name, a in module.constants.items() if a.size >= ROWS * COLUMNS // 2}


def tied(x: Value, w: Value) -> Value:
    """Rows that are looked up and multiplied by all rows."""
    return contract.matmul(ew.max_(gather(w, x, axis=0), 0.0), w, transpose_b=True)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_a_lookup_reads_what_the_product_has_packed() -> None:
    w = table()
    module, _ = oracle.agree([tensor(dt.i64, (3,))], lambda x: tied(x, constant(w, "w")), [ids(0, ROWS - 1, -5)])
    assert list(sizes(module)) == ["w.packed"]


@pytest.mark.parametrize("apart", [False, True])
def test_what_a_lookup_is_fused_with(monkeypatch: pytest.MonkeyPatch, apart: bool) -> None:
    """Also where it becomes a kernel of its own."""
    w = table()
    if apart:
        monkeypatch.setattr(_Kernels, "_why_better_apart", lambda kernels, func, region: "a test")

    def body(x: Value) -> tuple[Value, Value]:
        known = constant(w, "w")
        rows = gather(known, x, axis=0)
        scale = ew.add(reduce.reduce_sum(ew.mul(rows, rows), axes=(1,), keepdims=True), 1.0)
        return contract.matmul(ew.div(rows, scale), known, transpose_b=True), rows

    module, _ = oracle.agree([tensor(dt.i64, (3,))], body, [ids(4, 699, 63)])
    assert list(sizes(module)) == ["w.packed"]
    assert (len([op for op in module.main.body.ops if op.name == "call"]) > 2) == apart


def test_who_cannot_read_it_packed_has_a_copy_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    w = table()
    refused = []

    def refuses(func: Func, buffer: Value, packing: Packing) -> None:
        refused.append(packing)
        raise ScheduleError("not today")

    monkeypatch.setattr(one_copy, "pack_argument", refuses)
    module, ctx = oracle.agree([tensor(dt.i64, (3,))], lambda x: tied(x, constant(w, "w")), [ids(0, 1, 2)])
    assert set(sizes(module)) == {"w", "w.packed"}
    assert len(refused) == 1
    assert [r.message for r in ctx.remarks if r.stage == "one-copy"] == ["it reads a copy of its own: not today"]


def test_halves_of_bytes() -> None:
    """Two rows lie in a byte: the lookup takes its half."""
    q = RNG.integers(-8, 8, (COLUMNS * 2, ROWS * 4)).astype(dt.i4.storage)

    def body(x: Value) -> Value:
        def wide() -> Value:
            return ew.cast(known, dtype=dt.f32)

        known = constant(q, "q")
        rows = gather(view.transpose(wide(), perm=(1, 0)), x, axis=0)
        return contract.matmul(rows, wide())

    module, _ = oracle.agree([tensor(dt.i64, (2,))], body, [ids(1, ROWS * 4 - 2)])
    assert [(name, a.dtype.name) for name, a in module.constants.items()] == [("q.packed", "uint8")]
    assert sum(a.nbytes for a in module.constants.values()) < 1.05 * q.size / 2


def test_many_rows_are_read_from_a_copy_as_they_were() -> None:
    w = table()
    module, _ = oracle.agree([tensor(dt.i64, (80,))], lambda x: tied(x, constant(w, "w")), [RNG.integers(0, ROWS, 80)])
    assert set(sizes(module)) == {"w", "w.packed"}


def test_who_else_reads_it_as_it_was_has_the_copy_that_the_lookup_reads() -> None:
    w = table()

    def body(x: Value) -> tuple[Value, ...]:
        known = constant(w, "w")
        return tied(x, known), reduce.reduce_max(known, axes=(1,))

    module, _ = oracle.agree([tensor(dt.i64, (3,))], body, [ids(0, 5, 5)])
    assert set(sizes(module)) == {"w", "w.packed"}
    assert sum(bool(kernel_info(f).packed) for f in module.funcs.values() if f.level == "loops") == 1


def test_costs() -> None:
    assert are_picked(1000, 64000)
    assert not are_picked(1001, 64000)
    assert ROWS * COLUMNS * 4 >= LEAST_SHARED


# Whole models


def model(kind: str, rows: int, columns: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """y = relu(w[ids]) @ transpose(w) for ids: i64[n, s]; w of floats, or of bytes with scales of groups of 32."""
    nodes: list[onnx.NodeProto] = []
    if kind == "bytes":
        groups = columns // 32
        q = RNG.integers(-127, 128, (rows, columns)).astype(np.int8)
        s = RNG.uniform(0.01, 0.02, (rows, groups)).astype(np.float16)
        known = {"q": q, "s": s, "a": ids(rows, groups, 1), "b": ids(rows, groups, 32), "c": ids(rows, columns)}
        names = [
            ("Cast", ["q"], "wide"), ("Cast", ["s"], "scale"), ("Reshape", ["scale", "a"], "s1"),
            ("Expand", ["s1", "b"], "s2"), ("Reshape", ["s2", "c"], "s3"), ("Mul", ["wide", "s3"], "w"),
        ]  # fmt: skip
        for name, operands, result in names:
            nodes.append(helper.make_node(name, operands, [result], **({"to": 1} if name == "Cast" else {})))
        w = q.astype(np.float32) * np.repeat(s.astype(np.float32), 32, 1)
    else:
        w = RNG.standard_normal((rows, columns)).astype(np.float32)
        known = {"w": w}
    nodes += [
        helper.make_node("Gather", ["w", "ids"], ["e"], axis=0),
        helper.make_node("Relu", ["e"], ["r"]),
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["r", "t"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "tied",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "s"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "s", rows])],
        [numpy_helper.from_array(a, name) for name, a in known.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), w


BYTES = {"floats": 4.0, "bytes": 1 + 2 / 32}
"""Of an element as it is stored."""


@pytest.mark.sweep
@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("kind", BYTES)
def test_models_hold_one_copy(kind: str, numerics: Any) -> None:
    # wide enough that weights stay narrow on any machine
    rows, columns = 70_001, 64
    source, w = model(kind, rows, columns)
    compiled = tilewright.compile(source, cache=False, numerics=numerics)
    assert compiled.artifact.weight_bytes < 1.05 * rows * columns * BYTES[kind]
    for shape in ((1, 1), (1, 3), (2, 5), (1, 0), (0, 4)):
        x = RNG.integers(-rows, rows, shape)
        wanted = np.maximum(w[x], 0) @ w.T
        (y,) = compiled(x)
        np.testing.assert_allclose(y, wanted, rtol=2e-4, atol=2e-4 * max(1, np.abs(wanted).max(initial=0)))


@pytest.mark.parametrize("kind", BYTES)
def test_numbers_out_of_range_are_refused_as_before(kind: str) -> None:
    rows = 70_001
    compiled = tilewright.compile(model(kind, rows, 64)[0], cache=False)
    for wrong in (rows, -rows - 1, 2**62):
        with pytest.raises(ExecutionError, match="out of range"):
            compiled(np.array([[0, wrong]]))
