"""Winograd's algorithm as a choice: where it is taken, where it is not and why, and that numbers do not change."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import conv, inputs, kernels, ops, program, relu
from tilewright.graph.algorithms.winograd import Winograd
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.layout.block_channels import BlockChannels
from tilewright.ir.core import Module
from tilewright.ir.sym import var
from tilewright.ir.verify import verify_func
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import view as vw
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.define.spec import graph_spec
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.named import parse_target

N, H, W = var("n", 1), var("h", 3), var("w", 3)
STEPS = ["winograd_input", "winograd_product", "winograd_output"]


def transformed(module: Module, dims: int = 2, numerics: str = "default") -> PassContext:
    """Block channels and choose algorithms; the results must stay those of float64 to a few roundings."""
    arrays = inputs(module, dims)
    wanted = evaluate_func(module.main, module, [a.astype(np.float64).astype(a.dtype) for a in arrays])
    ctx = PassContext(parse_target("zen3"), Options(numerics=numerics))
    check = lambda m: verify_func(m.main, graph_spec(m))  # noqa: E731
    run_passes(module, [BlockChannels(), Winograd()], ctx, verify=check)
    for a, b in zip(wanted, evaluate_func(module.main, module, arrays), strict=True):
        assert np.abs(a - b).max() <= 3e-6 * np.abs(a).max()
    return ctx


def reasons(ctx: PassContext) -> list[str]:
    return [r.message for r in ctx.remarks if r.stage == "winograd"]


def test_a_convolution_becomes_three_steps_without_a_copy_for_its_padding() -> None:
    module = program(lambda x: relu(conv(x, 32, 3)), (1, 32, 16, 16))
    ctx = transformed(module)
    assert ops(module) == ["block_channels", *STEPS, "max", "unblock_channels"]
    (remark,) = [r for r in ctx.remarks if r.stage == "winograd"]
    assert remark.kind == "applied" and "of the direct convolution's time" in remark.message


@pytest.mark.parametrize(
    ("channels", "filters", "pads"),
    [(20, 24, ((1, 1), (1, 1))), (32, 40, ((0, 2), (1, 0))), (17, 32, ((0, 0), (0, 0)))],
)
def test_channels_need_not_fill_blocks_and_padding_may_be_uneven(
    channels: int, filters: int, pads: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    w = np.random.default_rng(3).standard_normal((filters, channels, 3, 3)).astype(np.float32)
    module = program(
        lambda x: ct.conv(x, constant(w), pads_begin=pads[0], pads_end=pads[1]), (2, channels, 18, 23)
    )
    transformed(module)
    assert "winograd_product" in ops(module)


@pytest.mark.parametrize("shape", [(N, 32, 12, 12), (1, 32, H, W), (N, 32, H, 9)])
def test_sizes_may_be_unknown(shape: tuple[object, ...]) -> None:
    module = program(lambda x: relu(conv(x, 32, 3)), shape)
    transformed(module, dims=7)
    assert "winograd_product" in ops(module)


@pytest.mark.parametrize(
    ("taps", "pads", "shape"),
    [
        ((1, 7), (0, 3), (1, 128, 17, 17)),
        ((5, 1), (2, 0), (1, 32, 17, 17)),
        ((1, 3), (0, 1), (2, 20, 8, 8)),
        ((3,), (1,), (1, 32, 100)),
        ((5,), (2,), (N, 40, 60)),
        ((5, 1), (2, 0), (1, 32, H, W)),
    ],
)
def test_filters_may_be_long_along_one_axis(taps, pads, shape) -> None:
    w = np.random.default_rng(3).standard_normal((96, shape[1], *taps)).astype(np.float32)
    module = program(lambda x: relu(ct.conv(x, constant(w), pads_begin=pads, pads_end=pads)), shape)
    transformed(module, dims=9)
    assert "winograd_product" in ops(module)


@pytest.mark.parametrize(
    ("taps", "shape", "what"),
    [
        ((3,), (1, 32, W), "one line, of unknown length"),
        ((1, 3), (1, 32, H, 9), "one line, of unknown length"),
        ((3, 3, 3), (1, 32, 9, H, 9), "a volume of unknown size"),
    ],
)
def test_lines_and_volumes_of_unknown_size_keep_the_direct_sum(
    taps: tuple[int, ...], shape: tuple[object, ...], what: str
) -> None:
    w = np.ones((32, 32, *taps), np.float32)
    module = program(lambda x: ct.conv(x, constant(w)), shape)
    ctx = transformed(module, dims=9)
    assert not set(STEPS) & set(ops(module))
    assert reasons(ctx) == [f"its tiles are of {what}, which is not cut into bands"]


def test_filters_whose_roundings_would_grow_keep_the_direct_sum() -> None:
    module = program(lambda x: conv(x, 32, 5), (1, 32, 16, 16))
    ctx = transformed(module)
    assert not set(STEPS) & set(ops(module))
    assert reasons(ctx) == ["no tiles of filters of 5x5 keep rounding errors small"]


def test_padding_that_others_read_stays() -> None:
    def body(x):
        padded = vw.pad(relu(x), before=(0, 0, 1, 1), after=(0, 0, 1, 1))
        return conv(padded, 32, 3, pad=0), ew.exp(padded)

    module = program(body, (1, 32, 16, 16))
    transformed(module)
    assert "winograd_product" in ops(module) and "pad" in ops(module)


def test_padding_with_other_numbers_is_not_taken_for_zeros() -> None:
    def body(x):
        return conv(
            vw.pad(relu(conv(x, 32, 1)), before=(0, 0, 1, 1), after=(0, 0, 1, 1), value=2.0), 32, 3, pad=0
        )

    module = program(body, (1, 32, 16, 16))
    transformed(module)
    assert "winograd_product" in ops(module) and "pad" in ops(module)


def test_strict_numerics_keep_the_direct_sum() -> None:
    module = program(lambda x: relu(conv(x, 32, 3)), (1, 32, 16, 16))
    ctx = transformed(module, numerics="strict")
    assert "conv_blocked" in ops(module) and not set(STEPS) & set(ops(module))
    assert reasons(ctx) == ["its roundings differ from those of the direct sum"]


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (lambda x: conv(x, 32, 3, stride=2), (1, 32, 16, 16)),
        (lambda x: conv(x, 32, 1), (1, 32, 16, 16)),
        (lambda x: conv(x, 32, 3, groups=2), (1, 32, 16, 16)),
        (lambda x: conv(x, 32, 3, groups=32), (1, 32, 16, 16)),
        (lambda x: ct.conv(x, constant(np.ones((32, 32, 3, 3), np.float32)), dilations=(2, 2)), (1, 32, 16, 16)),
        (lambda x: conv(x, 32, 3), (1, 3, 16, 16)),
    ],
    ids=["stride", "1x1", "groups", "depthwise", "dilation", "image"],
)  # fmt: skip
def test_other_convolutions_are_left_alone(body, shape) -> None:
    module = program(body, shape)
    ctx = transformed(module)
    assert not set(STEPS) & set(ops(module))
    assert reasons(ctx) == []


def fused(size: int, filters: int) -> tuple[list[list[str]], list[str]]:
    module = program(lambda x: relu(conv(x, filters, 3)), (1, 32, size, size))
    ctx = PassContext(parse_target("zen3"), Options())
    run_passes(module, [BlockChannels(), Winograd(), Fuse(STRATEGIES)], ctx)
    return kernels(module), [r.message for r in ctx.remarks if "winograd_input into" in r.subject]


def test_a_large_image_is_one_kernel_by_bands() -> None:
    found, _ = fused(128, 32)
    assert [*STEPS, "max"] in found


def test_a_small_image_is_transformed_before() -> None:
    found, said = fused(16, 32)
    assert ["winograd_input"] in found
    assert [*STEPS[1:], "max"] in found
    assert said == ["the transformed tiles fit the L2 cache, and all threads share the work of making them"]


def test_many_filters_are_read_once() -> None:
    found, said = fused(48, 1024)
    assert ["winograd_input"] in found
    assert "would read filters for each band of the image" in said[0]


def test_the_transform_of_the_data_does_not_join_the_convolution_before_it() -> None:
    module = program(lambda x: relu(conv(relu(conv(x, 32, 1)), 32, 3)), (1, 32, 16, 16))
    ctx = PassContext(parse_target("zen3"), Options())
    run_passes(module, [BlockChannels(), Winograd(), Fuse(STRATEGIES)], ctx)
    assert ["winograd_input"] in kernels(module)
    two = program(lambda x: relu(conv(relu(conv(x, 32, 3)), 32, 3)), (1, 32, H, W))
    run_passes(two, [BlockChannels(), Winograd(), Fuse(STRATEGIES)], ctx)
    assert kernels(two).count([*STEPS, "max"]) == 2
