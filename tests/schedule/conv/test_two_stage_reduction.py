"""Sums of lines in the kernel of windows that writes them: one kernel, right, the same bits for any threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tests.schedule.conv.test_fused_window import data, expanded, relu6, silu
from tests.schedule.test_defaults import native
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.loops.edit import body_of, kind_of, loops_in
from tilewright.ops import blocked
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.reduce import reduce_sum
from tilewright.schedule.steps.access import loads_in, stores_in
from tilewright.target.named import parse_target

N = var("n", 1)
SMALL_L2 = 64 << 10

Body = Callable[[Value], Value]


def depthwise(channels: int, kernel: int, stride: int, act: Body) -> Body:
    """A depthwise convolution with bias and activation."""
    w, bias = data(channels, 1, kernel, kernel) / 3, data(1, channels // 16, 1, 1, 16)
    pads = (kernel // 2, kernel // 2)
    attrs = {"strides": (stride, stride), "pads_begin": pads, "pads_end": pads}
    return lambda x: act(ew.add(blocked.depthwise_blocked(x, constant(w), **attrs), constant(bias)))


def and_sums(body: Body, keepdims: bool = True) -> Callable[[Value], tuple[Value, Value]]:
    """What `body` gives, and the sums of its lines."""

    def both(x: Value) -> tuple[Value, Value]:
        y = body(x)
        return y, reduce_sum(y, axes=(3,), keepdims=keepdims)

    return both


CASES = [
    ("windows", (1, 2, 9, 37, 16), and_sums(depthwise(32, 3, 1, relu6))),
    ("windows, costly, stride 2", (1, 1, 12, 30, 16), and_sums(depthwise(16, 5, 2, silu), keepdims=False)),
    ("batch", (N, 2, 7, 20, 16), and_sums(depthwise(32, 3, 1, relu6))),
    ("long lines", (1, 1, 3, 900, 16), and_sums(depthwise(16, 3, 1, relu6))),
    ("one line", (1, 3, 1, 40, 16), and_sums(depthwise(48, 3, 1, relu6))),
    ("bands", (1, 1, 21, 30, 16), and_sums(expanded((21, 30), 48, 3, 1, relu6))),
    ("bands, stride 2", (1, 1, 26, 33, 16), and_sums(expanded((26, 33), 32, 3, 2, silu))),
]
IDS = [c[0] for c in CASES]


def kernel_of(module: Module) -> Func:
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def array(shape: tuple[object, ...]) -> np.ndarray:
    return data(*(d if isinstance(d, int) else 3 for d in shape))


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64-neon"])
@pytest.mark.parametrize(("shape", "body"), [c[1:] for c in CASES], ids=IDS)
def test_lines_are_summed_in_registers_where_they_are_written(shape, body, target: str) -> None:
    module = oracle.build([tensor(dt.f32, shape)], body)
    ctx = oracle.scheduled(module, f"{target},l2={SMALL_L2}")
    assert not [r for r in ctx.remarks if r.stage == "schedule"]
    kernel = kernel_of(module)
    written, sums = kernel.args[-2:]
    holders = [loop for loop in loops_in(kernel.body) if not {written, sums} - stored(loop)]
    home = holders[-1]
    inside = [stored(op) & {written, sums} for op in body_of(home).ops if op.blocks]
    assert {written} in inside, "a line is written there"
    reading = [load for load in loads_in(home) if load.operands[0] is written]
    assert reading and all(kind_of(load.parent.parent) == "vector" for load in reading)
    assert not [load for load in loads_in(home) if load.operands[0] is sums], "sums are in registers"


def stored(loop) -> set[Value]:
    return {store.operands[1] for store in stores_in(loop)}


@pytest.mark.parametrize(("shape", "body"), [c[1:] for c in CASES], ids=IDS)
def test_native_code_computes_the_same_with_any_threads(shape, body) -> None:
    x = array(shape)
    target = parse_target(f"host,l2={SMALL_L2}")
    modules = [oracle.build([tensor(dt.f32, shape)], body) for _ in range(3)]
    (wanted, _) = oracle.expected(modules[0], [x])
    one, two = (native(module, n, target)(x) for module, n in zip(modules[1:], (1, 2), strict=True))
    assert kernel_of(modules[1]) and kernel_of(modules[2])
    np.testing.assert_allclose(one[0], wanted, rtol=1e-4, atol=1e-4)
    lines = wanted.astype(np.float64).sum(axis=3).reshape(one[1].shape)
    np.testing.assert_allclose(one[1], lines, rtol=1e-4, atol=1e-3)
    for a, b in zip(one, two, strict=True):
        assert np.array_equal(a, b)


def test_what_else_reads_the_tensor_is_another_kernel() -> None:
    """A kernel that has summed its lines takes no further work, which could change what it has summed."""
    shape = (1, 2, 9, 37, 16)

    def body(x: Value) -> tuple[Value, ...]:
        y, sums = and_sums(depthwise(32, 3, 1, relu6))(x)
        return y, sums, ew.exp(y)

    module, ctx = oracle.agree(
        [tensor(dt.f32, shape)], body, [data(*shape)], f"x86-64-v3,l2={SMALL_L2}", tolerance=1e-4
    )
    assert [r for r in ctx.remarks if "ends with sums of its lines" in str(r)]
    assert sum(f.level == "loops" for f in module.funcs.values()) == 2
