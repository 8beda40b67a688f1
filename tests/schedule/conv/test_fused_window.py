"""Windows over bands of a convolution's result: one kernel, right, with the band in L2."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tests.schedule.test_defaults import native
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.types import BufferType, tensor
from tilewright.loops.edit import kind_of, loop_var, loops_in
from tilewright.ops import activation, blocked, pool, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.target.named import parse_target

RNG = np.random.default_rng(23)
SMALL_L2 = 64 << 10
"""A L2 that holds some lines of the images below."""


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


FILTERS = data(32, 2, 3, 3) / 3
FLAT_FILTERS = data(48, 16, 1) / 4
SLOPES = data(1, 2, 1, 1, 16)


def relu6(x: Value) -> Value:
    return ew.min_(ew.max_(x, 0.0), 6.0)


def silu(x: Value) -> Value:
    return ew.mul(x, activation.sigmoid(x))


def gelu(x: Value) -> Value:
    """With its divisor as a tensor of one element, as exporters write it."""
    scale = constant(np.array(0.5**0.5, np.float32))
    return ew.mul(ew.mul(x, ew.add(ew.erf(ew.mul(x, scale)), 1.0)), 0.5)


def flat_pooled(x: Value) -> Value:
    """1x1 convolution over the flat image, and the greatest of 3x3 of its results."""
    flat = view.reshape(x, shape=(1, 1, 24 * 31, 16))
    y = blocked.conv_blocked(flat, constant(FLAT_FILTERS))
    return pool.max_pool_blocked(view.reshape(y, shape=(1, 3, 24, 31, 16)), **THREE)


def prelu(x: Value) -> Value:
    return ew.select(ew.lt(x, 0.0), ew.mul(x, constant(SLOPES)), x)


def expanded(
    size: tuple[int, int], filters: int, kernel: int, stride: int, act: Callable[[Value], Value]
) -> Callable[[Value], Value]:
    """1x1 convolution over the flat image, activation, depthwise convolution, activation."""
    w, bias, dw = (
        data(filters, 16, 1) / 4,
        data(1, filters // 16, 1, 16),
        data(filters, 1, kernel, kernel) / 3,
    )

    def body(x: Value) -> Value:
        flat = view.reshape(x, shape=(1, 1, size[0] * size[1], 16))
        y = blocked.conv_blocked(flat, constant(w))
        y = view.reshape(act(ew.add(y, constant(bias))), shape=(1, filters // 16, *size, 16))
        pads = (kernel // 2, kernel // 2)
        attrs = {"strides": (stride, stride), "pads_begin": pads, "pads_end": pads}
        return act(blocked.depthwise_blocked(y, constant(dw), **attrs))

    return body


def pooled_twice(x: Value) -> tuple[Value, Value]:
    """Sums of windows, and a function of them, both needed."""
    y = blocked.conv_blocked(x, constant(FILTERS))
    sums = ew.mul(pool.sum_pool_blocked(y, kernel=(2, 2), strides=(2, 2)), 0.25)
    return sums, ew.max_(ew.add(sums, 1.0), 0.0)


def pooled(
    filters: int, make: Callable[..., Value], act: Callable[[Value], Value] | None, **attrs: object
) -> Callable[[Value], Value]:
    """3x3 convolution of plain images of two channels, and pooling of its result."""
    w, bias = data(filters, 2, 3, 3) / 3, data(1, -(-filters // 16), 1, 1, 16)

    def body(x: Value) -> Value:
        y = blocked.conv_blocked(x, constant(w))
        return make(y if act is None else act(ew.add(y, constant(bias))), **attrs)

    return body


THREE = {"kernel": (3, 3), "strides": (2, 2), "pads_begin": (1, 1), "pads_end": (1, 1)}
CASES = [
    ("expanded", (1, 1, 21, 30, 16), expanded((21, 30), 48, 3, 1, relu6)),
    ("expanded, stride 2", (1, 1, 26, 33, 16), expanded((26, 33), 32, 3, 2, relu6)),
    ("expanded, 5x5, costly", (1, 1, 24, 24, 16), expanded((24, 24), 32, 5, 1, silu)),
    ("max of 3x3, flat", (1, 1, 24, 31, 16), flat_pooled),
    ("max of 3x3", (1, 2, 40, 31), pooled(32, pool.max_pool_blocked, lambda x: ew.max_(x, 0.0), **THREE)),
    ("max, batch", (2, 2, 30, 31), pooled(80, pool.max_pool_blocked, lambda x: ew.max_(x, 0.0), **THREE)),
    ("two results", (1, 2, 42, 56), pooled_twice),
    ("gelu, sums of 2x2", (1, 2, 42, 42), pooled(32, pool.sum_pool_blocked, gelu, kernel=(2, 2), strides=(2, 2))),
    ("gelu, max of 3x3", (1, 2, 40, 31), pooled(32, pool.max_pool_blocked, gelu, **THREE)),
    ("slopes, sums of 2x2", (1, 2, 42, 42), pooled(32, pool.sum_pool_blocked, prelu, kernel=(2, 2), strides=(2, 2))),
    ("sums of 2x2", (1, 2, 42, 42), pooled(32, pool.sum_pool_blocked, None, kernel=(2, 2), strides=(2, 2))),
]  # fmt: skip
FLAT = [c for c in CASES if c[0] in ("expanded", "expanded, stride 2", "max of 3x3, flat")]
IDS = [c[0] for c in CASES]


def kernel_of(module: Module) -> Func:
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def scheduled(shape: tuple[int, ...], body: Callable[[Value], Value], target: str) -> Func:
    """The only kernel of the program; no schedule of it gave up."""
    module = oracle.build([tensor(dt.f32, shape)], body)
    ctx = oracle.scheduled(module, target)
    assert not [r for r in ctx.remarks if r.stage == "schedule"]
    return kernel_of(module)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64-neon"])
@pytest.mark.parametrize(("shape", "body"), [c[1:] for c in CASES], ids=IDS)
def test_a_kernel_keeps_the_lines_of_a_band_and_threads_share_bands(
    shape: tuple[int, ...], body: Callable[[Value], Value], target: str
) -> None:
    kernel = scheduled(shape, body, f"{target},l2={SMALL_L2}")
    types = [op.result.type for op in kernel.body.walk() if op.name == "alloc"]
    scratch = [t for t in types if isinstance(t, BufferType) and t.space == "scratch"]
    assert scratch
    assert [kind_of(loop) for loop in loops_in(kernel.body)].count("parallel") == 1


def test_lines_of_a_band_are_computed_without_conditions() -> None:
    kernel = scheduled(*CASES[0][1:], f"x86-64-v3,l2={SMALL_L2}")
    lines = next(op for op in kernel.body.ops[0].blocks[0].ops if op.name == "for")
    conditions = [op for op in lines.walk() if op.name == "if" or op.attrs.get("guard")]
    assert [loop for loop in loops_in(lines.blocks[0]) if kind_of(loop) == "vector"]
    assert not conditions


@pytest.mark.parametrize(("shape", "body"), [c[1:] for c in FLAT], ids=[c[0] for c in FLAT])
def test_lines_outside_of_the_image_are_left_out(
    shape: tuple[int, ...], body: Callable[[Value], Value]
) -> None:
    """What is left are conditions on columns, which are numbers where loops are written out."""
    kernel = scheduled(shape, body, f"x86-64-v3,l2={SMALL_L2}")
    written_out = {loop_var(o) for o in loops_in(kernel.body) if kind_of(o) == "unroll"}
    ops = list(kernel.body.walk())
    assert not [op for op in ops if op.name == "select"]
    assert all(c.vars <= written_out for op in ops if op.name == "load" for c in op.attrs.get("guard", ()))
    assert [op for op in ops if op.name == "if"]


def test_bands_compute_what_the_graph_says() -> None:
    shape = (1, 1, 12, 9, 16)
    body = expanded((12, 9), 32, 3, 1, relu6)
    module, _ = oracle.agree(
        [tensor(dt.f32, shape)], body, [data(*shape)], f"x86-64-v3,l2={16 << 10}", tolerance=1e-4
    )
    assert kernel_of(module)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("shape", "body"), [c[1:] for c in CASES], ids=IDS)
def test_native_code_computes_the_same_with_any_threads(
    shape: tuple[int, ...], body: Callable[[Value], Value]
) -> None:
    x = data(*shape)
    target = parse_target(f"host,l2={SMALL_L2}")
    modules = [oracle.build([tensor(dt.f32, shape)], body) for _ in range(3)]
    wanted = oracle.expected(modules[0], [x])
    one, two = (native(module, n, target)(x) for module, n in zip(modules[1:], (1, 2), strict=True))
    assert kernel_of(modules[1]) and kernel_of(modules[2])
    for a, b, c in zip(one, two, wanted, strict=True):
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-4)
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("l2", "reason"),
    [
        (4 << 20, "its result fits the L2 cache"),
        (9 << 10, "do not fit the L2 cache"),
    ],
)
def test_the_cache_decides(l2: int, reason: str) -> None:
    module = oracle.build([tensor(dt.f32, CASES[0][1])], CASES[0][2])
    ctx = oracle.scheduled(module, f"x86-64-v3,l2={l2}")
    assert sum(f.level == "loops" for f in module.funcs.values()) == 2
    assert [r for r in ctx.remarks if reason in str(r)]
