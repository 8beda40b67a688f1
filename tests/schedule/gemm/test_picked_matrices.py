"""Products by matrices that data pick of a constant stack: read where they are, whatever kind they are stored in."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright import ExecutionError
from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_module
from tilewright.frontends.weights.encode import encoded
from tilewright.frontends.weights.expression import stored_value
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops.contract import matmul
from tilewright.ops.index import gather
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.target.named import host_target, parse_target

COUNT, ROWS, COLUMNS = 5, 112, 96
SIZES = [(1, 1), (2, 1), (3, 2), (2, 3), (4, 5), (3, 8), (2, 9), (2, 33), (0, 3), (3, 0)]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def picking(stored: StoredTensor, most: int | None = None) -> Module:
    """x[n, rows, columns] @ pick(stack, at[n])^T."""
    module, n, rows = Module(), var("n", 0), var("rows", 0, most)
    block = Block([tensor(dt.f32, (n, rows, stored.columns)), tensor(dt.i64, (n,))], ["x", "at"])
    main = module.add(Func("main", block, attrs={"inputs": ("x", "at"), "outputs": ("y",), "nodes": 1}))
    with Builder(block, module) as builder:
        picked = gather(stored_value(stored), block.args[1], axis=0)
        builder.emit("return", [matmul(block.args[0], picked, transpose_b=True)])
    assert main is module.main
    return module


def stacks(rng: np.random.Generator) -> dict[str, StoredTensor]:
    values = rng.standard_normal((COUNT, ROWS, COLUMNS)).astype(np.float32)
    found = {kind: encoded(values, kind, name="w") for kind in ("float32", "bfloat16", "int8", "int4")}
    return found | {"int4 from a minimum": encoded(values, "int4", minimum=True, name="w")}


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4", "int4 from a minimum"])
def test_products_are_those_by_copies(rng: np.random.Generator, kind: str) -> None:
    stored = stacks(rng)[kind]
    options = Options(threads=1, verify=True)
    with Model(compile_module(picking(stored), options, parse_target("host"))) as model:
        for n, rows in SIZES:
            x, at = rng.standard_normal((n, rows, COLUMNS)).astype(np.float32), rng.integers(-COUNT, COUNT, n)
            (found,) = model(x, at)
            wanted = x.astype(np.float64) @ stored.decoded()[at].astype(np.float64).swapaxes(1, 2)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4, err_msg=f"{n} x {rows}")
        with pytest.raises(ExecutionError, match="out of range"):
            model(np.ones((1, 1, COLUMNS), np.float32), [COUNT])


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4", "int4 from a minimum"])
@pytest.mark.parametrize("most", [None, 8])
def test_one_kernel_reads_packed_matrices(rng: np.random.Generator, kind: str, most: int | None) -> None:
    """Nothing is picked into memory, and few rows have a kernel of their own."""
    stored = stacks(rng)[kind]
    values = np.tile(stored.decoded(), (1, 4, 1))  # more than are folded
    wide = encoded(values, kind.split()[0], minimum="minimum" in kind, name="w")
    compilation = Compilation(picking(wide, most), Setting.of(Options(threads=1), parse_target("zen4")))
    kernels = [f for f in compilation.run("scheduled").module.funcs.values() if f.level == "loops"]
    (kernel,) = kernels
    assert 0 in kernel_info(kernel).packed, "the stack is laid out when compiling"
    assert any(line.startswith("specialize") for line in kernel_info(kernel).schedule)
    assert not any(op.attrs.get("rarely") for op in kernel.body.walk())


def test_models_that_gather_matrices(rng: np.random.Generator) -> None:
    """As exported mixtures do: Gather, and a product of batches."""
    w = rng.standard_normal((COUNT, COLUMNS, ROWS)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["w", "at"], ["m"], axis=0), helper.make_node("MatMul", ["x", "m"], ["y"])]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "k", 1, COLUMNS]),
        helper.make_tensor_value_info("at", TensorProto.INT64, ["n", "k"]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "k", 1, ROWS])
    graph = helper.make_graph(nodes, "picks", inputs, [output], [numpy_helper.from_array(w, "w")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(proto)
    model = tilewright.compile(proto, threads=1, cache=False, verify=True)
    assert model.report().kernels == 1
    x, at = rng.standard_normal((3, 2, 1, COLUMNS)).astype(np.float32), rng.integers(0, COUNT, (3, 2))
    np.testing.assert_allclose(model(x, at)[0], x @ w[at], rtol=1e-4, atol=1e-4)


def test_strict_numerics(rng: np.random.Generator) -> None:
    stored = stacks(rng)["int4"]
    options = Options(threads=1, numerics="strict")
    with Model(compile_module(picking(stored), options, host_target())) as model:
        x, at = rng.standard_normal((2, 1, COLUMNS)).astype(np.float32), np.array([4, 0])
        wanted = x.astype(np.float64) @ stored.decoded()[at].astype(np.float64).swapaxes(1, 2)
        np.testing.assert_allclose(model(x, at)[0], wanted, rtol=1e-5, atol=1e-5)
