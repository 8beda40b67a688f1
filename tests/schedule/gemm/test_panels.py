"""Panels of strided, padded or unknown columns: inner loops that load whole vectors and decide nothing."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.graph.fusion.fuse import Fuse
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import tensor
from tilewright.loops.edit import buffer_type, enclosing_loops, kind_of, loop_var
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import contract as ct
from tilewright.ops.blocked import conv_blocked
from tilewright.ops.define import constant
from tilewright.ops.reduce import argmax
from tilewright.ops.view import reshape, shape_of, transpose
from tilewright.options import Options
from tilewright.passes import PassContext
from tilewright.runtime.module import Model
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.schedule.steps.access import stride_in
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.named import parse_target

RNG = np.random.default_rng(5)
FILTERS = RNG.standard_normal((3, 2, 5)).astype(np.float32)
CASES = {
    "padded": (1, 2, 1),
    "strided": (2, 0, 1),
    "strided and padded": (3, 2, 1),
    "strided and dilated": (2, 4, 3),
}


def module_of(length: Sym, stride: int, pad: int, dilation: int) -> Module:
    return oracle.build(
        [tensor(dt.f32, (1, 2, length))],
        lambda x: ct.conv(
            x, constant(FILTERS), strides=(stride,), pads_begin=(pad,), pads_end=(pad,), dilations=(dilation,)
        ),
    )


def expected(x: np.ndarray, stride: int, pad: int, dilation: int) -> np.ndarray:
    """In float64, tap by tap."""
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad)))
    taps = FILTERS.shape[-1]
    count = (wide.shape[-1] - dilation * (taps - 1) - 1) // stride + 1
    positions = stride * np.arange(count)[:, None] + dilation * np.arange(taps)
    return np.einsum("ncpt,oct->nop", wide[..., positions], FILTERS.astype(np.float64))


def kernel_of(module: Module) -> Func:
    target = parse_target("x86-64-v4")
    ctx = PassContext(target)
    Fuse(STRATEGIES).run(module, ctx)
    schedule_regions(module, target, STRATEGIES, ctx.remarks)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


@pytest.mark.parametrize("length", [sym(700), var("t", 40)], ids=["known", "unknown"])
@pytest.mark.parametrize("name", CASES)
def test_sums_read_whole_vectors_without_conditions(name: str, length: Sym) -> None:
    kernel = kernel_of(module_of(length, *CASES[name]))
    weights = kernel.args[1]
    steps = {o.parent for o in kernel.body.walk() if o.name == "load" and o.operands[0] is weights}
    assert len(steps) == (1 if length.is_const else 2), "whole tiles, and the last columns of an unknown number"
    for step in steps:
        assert step is not None
        (data,) = (o for o in step.ops if o.name == "load" and stride_in(o, loop_var(enclosing_loops(o)[-1])) != 0
                   and o.operands[0] is not weights and "reg" not in str(o.operands[0].type))  # fmt: skip
        lanes = enclosing_loops(data)[-1]
        assert kind_of(lanes) == "vector" and stride_in(data, loop_var(lanes)) == 1
        assert "guard" not in data.attrs


@pytest.mark.sweep
@pytest.mark.parametrize("length", [40, 299, 700])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_panels_hold_the_right_elements(name: str, known: bool, length: int) -> None:
    x = RNG.standard_normal((1, 2, length)).astype(np.float32)
    module = module_of(sym(length) if known else var("t", 40), *CASES[name])
    (y,) = Model(compile_module(module, Options(), parse_target("host")), 1)(x)
    np.testing.assert_allclose(y, expected(x, *CASES[name]), rtol=1e-5, atol=1e-5)


def test_tiles_need_not_divide_the_blocks_of_channels() -> None:
    w = RNG.standard_normal((13 * 16, 16, 3)).astype(np.float32)
    x = RNG.standard_normal((1, 1, 90, 16)).astype(np.float32)
    module = oracle.build(
        [tensor(dt.f32, (1, 1, var("t", 3), 16))],
        lambda x: conv_blocked(x, constant(w)),
    )
    (y,) = Model(compile_module(module, Options(), parse_target("host")), 1)(x)
    windows = np.lib.stride_tricks.sliding_window_view(x[:, 0].astype(np.float64), 3, axis=1)
    wanted = np.einsum("npck,ock->npo", windows, w.astype(np.float64))
    np.testing.assert_allclose(y.transpose(0, 2, 1, 3).reshape(1, 88, 208), wanted, rtol=1e-4, atol=1e-4)
    kernel = kernel_of(
        oracle.build(
            [tensor(dt.f32, (1, 1, var("t", 3), 16))],
            lambda x: conv_blocked(x, constant(w)),
        )
    )
    (packed,) = kernel_info(kernel).packed.values()
    (blocks, lanes), *_ = packed.factors
    assert lanes == 16 and 1 < blocks < 13


def test_an_operand_that_is_read_once_is_not_copied():
    module = oracle.build([tensor(dt.f32, (1, 21, 513, 513))], lambda v: argmax(v, axis=1))
    compile_module(module, Options(), parse_target("x86-64-v4"))
    kernels = [f for f in module.funcs.values() if f.level == "loops"]
    copies = [op.result for f in kernels for op in f.body.walk() if op.name == "alloc"]
    scratch = [buffer_type(v) for v in copies if buffer_type(v).space == "scratch"]
    assert not any(21 in type.shape for type in scratch)


@pytest.mark.parametrize("rows", [sym(9), var("n", 1)], ids=["known", "unknown"])
def test_constants_of_fewer_columns_than_lanes_are_packed_ahead_of_time(rows: Sym) -> None:
    w = RNG.standard_normal((40, 5)).astype(np.float32)

    def module() -> Module:
        return oracle.build([tensor(dt.f32, (rows, 40))], lambda x: ct.matmul(x, constant(w)))

    kernel = kernel_of(module())
    assert not any(o.name == "alloc" and buffer_type(o.result).space == "scratch" for o in kernel.body.walk())
    assert buffer_type(kernel.args[1]).shape[-1] in (8, 16)
    for n in [9] if rows.is_const else [1, 9, 70]:
        x = RNG.standard_normal((n, 40)).astype(np.float32)
        (y,) = Model(compile_module(module(), Options(), parse_target("host")), 2)(x)
        np.testing.assert_allclose(y, x.astype(np.float64) @ w, rtol=1e-4, atol=1e-5)


def every_eighth_row(q: Value, r: Value) -> Value:
    """Products of q [i, b, d] with those rows of r [j * b, d] that belong to its own place of the batch."""
    batch, depth = shape_of(q)[1], shape_of(q)[2]
    rows = reshape(r, shape=(shape_of(r)[0] // batch, batch, depth))
    return ct.matmul(transpose(q, perm=(1, 0, 2)), transpose(rows, perm=(1, 0, 2)), transpose_b=True)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_columns_that_step_over_a_batch_are_copied_without_it(target: str) -> None:
    q, r = RNG.standard_normal((40, 8, 24), np.float32), RNG.standard_normal((8 * 48, 24), np.float32)
    module, _ = oracle.agree([tensor(dt.f32, q.shape), tensor(dt.f32, r.shape)], every_eighth_row, [q, r], target)
    panels = [
        op.result.buffer.shape
        for kernel in module.funcs.values()
        if kernel.level == "loops"
        for op in kernel.body.walk()
        if op.name == "alloc" and op.result.buffer.space == "scratch"
    ]
    assert panels and all(prod(d.value for d in shape) <= 48 * 24 for shape in panels)
