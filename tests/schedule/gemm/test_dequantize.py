"""Quantised weights are read as they are, and dequantised in the kernel of the product."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Op, Value
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import product, tensor
from tilewright.loops.edit import buffer_type, enclosing_loops, extent_of
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import contract, quant, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

N = var("n", 0)
RNG = np.random.default_rng(5)
Array = np.ndarray


def data(*shape: int) -> Array:
    return (0.1 * RNG.standard_normal(shape)).astype(np.float32)


def bytes_(*shape: int) -> Array:
    return RNG.integers(-20, 20, shape).astype(np.int8)


def f32(value: Value) -> Value:
    return ew.cast(value, dtype=dt.f32)


DEPTH = 48
FORMS: dict[str, Callable[[int], Value]] = {
    "bytes": lambda n: f32(constant(bytes_(DEPTH, n))),
    "scales of columns": lambda n: ew.mul(f32(constant(bytes_(DEPTH, n))), constant(data(1, n))),
    "one scale": lambda n: ew.mul(f32(constant(bytes_(DEPTH, n))), constant(data())),
    "scales of rows": lambda n: ew.mul(f32(constant(bytes_(DEPTH, n))), constant(data(DEPTH, 1))),
    "zero points": lambda n: quant.dequantize_linear.expand(
        [
            constant(RNG.integers(0, 255, (DEPTH, n)).astype(np.uint8)), constant(data(1, n)),
            constant(RNG.integers(0, 255, n).astype(np.uint8)),
        ],
        {"dtype": dt.f32},
    )[0],
    "scales of blocks": lambda n: ew.mul(
        f32(constant(bytes_(DEPTH, n))),
        view.reshape(
            view.expand(view.reshape(constant(data(3, n)), shape=(3, 1, n)), shape=(3, 16, n)), shape=(DEPTH, n)
        ),
    ),
    "scales of blocks, columns apart": lambda n: view.transpose(
        ew.mul(
            f32(constant(bytes_(n, DEPTH))),
            view.reshape(view.expand(constant(data(n, 3, 1)), shape=(n, 3, 16)), shape=(n, DEPTH)),
        ),
        perm=(1, 0),
    ),
    "f16": lambda n: f32(constant(data(DEPTH, n).astype(np.float16))),
    "bf16": lambda n: f32(constant(data(DEPTH, n).astype(ml_dtypes.bfloat16))),
    "a stack": lambda n: ew.mul(f32(constant(bytes_(2, DEPTH, n))), constant(data(2, 1, n))),
}  # fmt: skip


def kernel_of(module: Module) -> Func:
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def layer(form: Callable[[int], Value], columns: int) -> Callable[[Value], Value]:
    return lambda x: ew.max_(contract.matmul(x, form(columns)), 0.0)


@pytest.mark.sweep
@pytest.mark.parametrize(("rows", "columns"), [(1, 20), (14, 40)])
@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_computes_the_product(form: str, rows: int, columns: int) -> None:
    module, _ = oracle.agree(
        [tensor(dt.f32, (2, rows, DEPTH))],
        layer(FORMS[form], columns),
        [data(2, rows, DEPTH)],
        tolerance=1e-4,
    )
    kernel = kernel_of(module)
    assert all(buffer_type(a).dtype.bits < 32 for a in kernel.args if buffer_type(a).dtype.kind == "int")
    wide = max(product(buffer_type(v).shape).value for v in wide_buffers(kernel))
    assert wide <= DEPTH * 32, "no more than a panel is wide"


def wide_buffers(kernel: Func) -> list[Value]:
    return [op.result for op in kernel.body.walk() if op.name == "alloc"]


def casts(kernel: Func) -> list[Op]:
    return [op for op in kernel.body.walk() if op.name == "cast"]


def scheduled(rows: int | Sym, columns: int, target: str = "x86-64-v3") -> Func:
    module = oracle.build([tensor(dt.f32, (rows, DEPTH))], layer(FORMS["scales of columns"], columns))
    oracle.scheduled(module, target)
    return kernel_of(module)


def test_many_rows_share_a_panel_that_is_made_once() -> None:
    (op,) = casts(scheduled(40, 96))
    iterations = [extent_of(o).value for o in enclosing_loops(op)]
    assert np.prod(iterations) == 96 * DEPTH, "each element is dequantised once"


def test_one_tile_of_rows_widens_in_registers() -> None:
    kernel = scheduled(1, 96)
    spaces = {buffer_type(v).space for v in wide_buffers(kernel)}
    assert spaces == {"reg"}


def test_bytes_are_packed_in_panels_of_columns() -> None:
    kernel = scheduled(40, 96)
    packed = kernel_info(kernel).packed
    shapes = {buffer_type(kernel.args[k]).dtype.name: buffer_type(kernel.args[k]).shape for k in packed}
    assert [int(d.value) for d in shapes["i8"]][:2] == [96 // 16, DEPTH]


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64-neon"])
def test_no_condition_is_left_where_bytes_are_read(target: str) -> None:
    for rows in (1, 40, N):
        for op in casts(scheduled(rows, 96, target)):
            loads = [o for o in enclosing_loops(op)[-1].walk() if o.name == "load"]
            assert not any(o.attrs.get("guard") for o in loads)


@pytest.mark.parametrize("form", FORMS)
def test_machine_code_for_every_number_of_rows(form: str) -> None:
    module = oracle.build([tensor(dt.f32, (2, N, DEPTH))], layer(FORMS[form], 200))
    arrays = [data(2, rows, DEPTH) for rows in (0, 1, 2, 3, 4, 7, 13, 20, 29)]
    wanted = [oracle.expected(module, [x]) for x in arrays]
    model = Model(compile_module(module, Options(), parse_target("host,l2=1024")), 1)
    for x, (y,) in zip(arrays, wanted, strict=True):
        np.testing.assert_allclose(model(x)[0], y, rtol=1e-4, atol=1e-4)
