"""Convolutions whose result leaves its blocks of channels band by band: one kernel, right, through registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tests.schedule.test_defaults import native
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.types import BufferType, tensor
from tilewright.loops.edit import body_of, extent_of, is_loop, kind_of, loops_in
from tilewright.ops import activation, blocked
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.target.host import host_target
from tilewright.target.named import parse_target

RNG = np.random.default_rng(29)
SMALL_L2 = 64 << 10
"""A L2 that does not hold the images below."""

TARGETS = [f"{name},l2={SMALL_L2},cores=2" for name in ("zen3", "zen4", "neoverse-n1")]


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def relu(x: Value) -> Value:
    return ew.max_(x, 0.0)


def convolved(
    channels: int, act: Callable[[Value], Value] = relu, stride: int = 1, inputs: int = 2
) -> Callable[..., Value]:
    """3x3 convolution of plain images of `inputs` channels to plain ones of `channels`."""
    filters = -(-channels // 16) * 16
    w, bias = data(filters, inputs, 3, 3) / 3, data(1, filters // 16, 1, 1, 16)

    def body(x: Value, *more: Value) -> Value:
        y = blocked.conv_blocked(x, constant(w), strides=(stride, stride))
        y = ew.add(y, constant(bias))
        for other in more:
            y = ew.add(y, other)
        return blocked.unblock_channels(act(y), channels=channels)

    return body


CASES = [
    ("whole blocks", [(1, 2, 26, 39)], convolved(32)),
    ("a part of a block", [(1, 2, 26, 39)], convolved(29)),
    ("one block", [(1, 2, 30, 60)], convolved(14)),
    ("many blocks, a batch", [(2, 2, 12, 20)], convolved(150)),
    ("a prime number of blocks", [(1, 2, 16, 34)], convolved(80)),
    ("stride 2", [(2, 2, 61, 50)], convolved(29, stride=2)),
    ("a residual", [(1, 2, 26, 39), (1, 2, 24, 37, 16)], convolved(32)),
    ("narrower than a vector", [(1, 2, 80, 12)], convolved(32)),
]


def kernel_of(module: Module) -> Func:
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    return kernel


@pytest.mark.sweep(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("shapes", "body"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_agrees_with_the_graph_interpreter(
    shapes: list[tuple[int, ...]], body: Callable[..., Value], target: str
) -> None:
    module, _ = oracle.agree(
        [tensor(dt.f32, s) for s in shapes], body, [data(*s) for s in shapes], target, tolerance=1e-4
    )
    kernel = kernel_of(module)
    (outer,) = [o for o in kernel.body.ops if is_loop(o)]
    assert kind_of(outer) == "parallel"
    sizes = [
        o.result.type.size.value * 4
        for o in kernel.body.walk()
        if o.name == "alloc" and isinstance(o.result.type, BufferType) and o.result.type.space == "scratch"
    ]
    line = 64 * 4 * max(s[3] for s in shapes[:1])
    assert sizes and max(sizes) <= max(0.25 * SMALL_L2, line)


@pytest.mark.parametrize("target", TARGETS[:2])
def test_the_result_is_stored_in_vectors_along_its_lines(target: str) -> None:
    module = oracle.build([tensor(dt.f32, (1, 2, 42, 66))], convolved(29))
    oracle.scheduled(module, target)
    kernel = kernel_of(module)
    vectors = [o for o in loops_in(kernel.body) if kind_of(o) == "vector"]
    storing = [
        o
        for o in vectors
        for op in body_of(o).walk()
        if op.name == "store" and op.operands[-1] is kernel.args[-1]
    ]
    assert [extent_of(o).value for o in storing] == [parse_target(target).f32_lanes]


@pytest.mark.parametrize("threads", [1, 2])
def test_machine_code_computes_the_same(threads: int) -> None:
    host = host_target()
    target = replace(host, caches=replace(host.caches, l2=SMALL_L2))
    x = data(2, 2, 42, 39)
    module = oracle.build([tensor(dt.f32, x.shape)], convolved(29))
    (wanted,) = oracle.expected(module, [x])
    (found,) = native(module, threads, target)(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert len([f for f in module.funcs.values() if f.level == "loops"]) == 1


def silu(x: Value) -> Value:
    return ew.mul(x, activation.sigmoid(x))


@pytest.mark.parametrize(
    ("body", "inputs", "size", "reason"),
    [
        (convolved(32, silu), 2, (42, 39), "would be written out for each row"),
        (convolved(32), 2, (12, 14), "its result fits the L2 cache"),
        (convolved(64), 2, (5, 300), "are fewer or shorter than 8 elements"),
        (convolved(64, inputs=60), 60, (30, 30), "of weights again"),
        (lambda x: ew.exp(convolved(32)(x)), 2, (42, 39), "its readers may be kernels that change the layout"),
    ],
)
def test_other_results_leave_their_blocks_in_a_kernel_of_its_own(
    body: Callable[..., Value], inputs: int, size: tuple[int, int], reason: str
) -> None:
    module = oracle.build([tensor(dt.f32, (1, inputs, *size))], body)
    ctx = oracle.scheduled(module, TARGETS[0])
    assert any(reason in str(r) for r in ctx.remarks)
    assert len([f for f in module.funcs.values() if f.level == "loops"]) > 1
