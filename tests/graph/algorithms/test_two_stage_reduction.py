"""Sums over images in two steps: where lines are summed as they are written, where not and why."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import conv, inputs, kernels, program, relu
from tilewright.graph.algorithms.two_stage_reduction import TwoStageReduction
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.layout.block_channels import BlockChannels
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.ir.core import Module, Value
from tilewright.ir.sym import var
from tilewright.ir.verify import verify_func
from tilewright.ops import blocked, view
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.define.spec import graph_spec
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.named import parse_target


def squeezed(module: Module, l2: int = 32 << 10, dims: int = 2) -> tuple[list[list[str]], list[str]]:
    """The kernels after the pass, and what it said; results must stay those of the interpreter."""
    arrays = inputs(module, dims)
    wanted = evaluate_func(module.main, module, arrays)
    ctx = PassContext(parse_target(f"zen3,l2={l2}"), Options())
    check = lambda m: verify_func(m.main, graph_spec(m))  # noqa: E731
    run_passes(module, [BlockChannels(), TwoStageReduction()], ctx, verify=check)
    for a, b in zip(wanted, evaluate_func(module.main, module, arrays), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)
    Fuse(STRATEGIES).run(module, ctx)
    return kernels(module), [r.message for r in ctx.remarks if r.stage == "two-stage-reduction"]


def excited(x: Value, keepdims: bool = True) -> Value:
    """A depthwise convolution, scaled by a function of its mean."""
    y = relu(conv(x, 32, 3, groups=32))
    mean = rd.reduce_sum(y, axes=(2, 3), keepdims=keepdims)
    return ew.mul(y, ew.exp(ew.mul(mean, -1e-3))) if keepdims else mean


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("images", [1, var("n", 1)])
def test_the_kernel_that_writes_a_large_tensor_sums_its_lines(images, keepdims: bool) -> None:
    module = program(lambda x: excited(x, keepdims), (images, 32, 20, 20))
    found, said = squeezed(module)
    assert said == ["lines are summed as they are written"]
    (writer,) = [k for k in found if "depthwise_blocked" in k]
    assert writer[-1] == "reduce_sum"


@pytest.mark.parametrize(
    ("shape", "l2", "reason"),
    [
        ((1, 32, 20, 20), 1 << 20, "may well be in the L2 cache"),
        ((1, 32, var("h", 1), 20), 32 << 10, "may well be in the L2 cache"),
    ],
)
def test_a_small_tensor_is_read_again(shape, l2: int, reason: str) -> None:
    found, said = squeezed(program(excited, shape), l2, dims=6)
    assert len(said) == 1 and reason in said[0]
    assert not [k for k in found if k.count("reduce_sum") and "depthwise_blocked" in k]


@pytest.mark.parametrize("channels", [16, 32])
def test_lines_of_grouped_convolutions_are_summed_by_another_kernel(channels: int) -> None:
    """Their sums are contractions over the channels of a group, not windows of one."""

    def body(x: Value) -> Value:
        y = relu(conv(x, 2 * channels, 3, groups=2))
        return ew.mul(y, rd.reduce_mean(y, axes=(2, 3), keepdims=True))

    found, said = squeezed(program(lambda x: body(relu(conv(x, 2 * channels, 1))), (1, 16, 20, 20)))
    assert len(said) == 1 and "not written line by line" in said[0]
    assert not [k for k in found if "reduce_sum" in k and any(name.startswith("conv") for name in k)]


def test_sums_of_what_a_matrix_product_gives_stay() -> None:
    module = program(lambda x: rd.reduce_sum(relu(conv(x, 32, 1)), axes=(2, 3)), (1, 32, 40, 40))
    _, said = squeezed(module)
    assert all("not written line by line" in s for s in said)


def test_sums_over_the_lanes_are_left_alone() -> None:
    module = program(lambda x: rd.reduce_sum(ew.exp(x), axes=(1, 2)), (4, 300, 40))
    assert squeezed(module)[1] == []


def ranges(x: Value) -> tuple[Value, Value]:
    return rd.reduce_max(x, axes=(0, 1, 2, 3)), rd.reduce_min(x, axes=(0, 1, 2, 3), keepdims=True)


ROWS = {
    "an image": ((1, 6, 56, 64), 2),
    "of unknown height": ((1, 6, var("h", 1), 48), 2),
    "a size that no row divides": ((1, 1, 131, 127), 2),
    "few elements": ((1, 3, 8, 8), 0),
    "one long row": ((1, 1, 1, 40000), 2),
    "last axes that may be short": ((var("n", 1), 10, var("h", 1), var("w", 1)), 2),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_range_of_many_elements_is_that_of_rows(name: str) -> None:
    """Both ends in one kernel, which threads share."""
    shape, splits = ROWS[name]
    module = program(ranges, shape)
    x = inputs(module, dims=40)
    before = evaluate_func(module.main, module, x)
    ctx = PassContext(parse_target("zen4"), Options())
    TwoStageReduction().run(module, ctx)
    verify_func(module.main, graph_spec(module))
    after = evaluate_func(module.main, module, x)
    for a, b in zip(after, before, strict=True):
        np.testing.assert_array_equal(a, b)
    names = [op.name for op in module.main.body.ops if op.name.startswith("reduce")]
    assert len(names) == 2 + splits
    if splits:
        Fuse(STRATEGIES).run(module, ctx)
        assert kernels(module)[0] == ["reduce_max", "reduce_min"]


@pytest.mark.parametrize("name", ROWS)
def test_sums_of_many_elements_are_those_of_rows_where_groups_have_rows(name: str) -> None:
    shape, splits = ROWS[name]
    module = program(lambda x: (rd.reduce_sum(x, axes=(0, 1, 2, 3), keepdims=True),), shape)
    x = inputs(module, dims=40)
    (before,) = evaluate_func(module.main, module, x)
    TwoStageReduction(by_groups=True).run(module, PassContext(None, Options()))
    verify_func(module.main, graph_spec(module))
    (after,) = evaluate_func(module.main, module, x)
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-2)
    assert len([op for op in module.main.body.ops if op.name == "reduce_sum"]) == (2 if splits else 1)


def test_rows_of_unknown_length_have_two_axes_at_least() -> None:
    """The last one alone may be short."""
    module = program(ranges, (var("n", 1), 10, var("h", 1), var("w", 1)))
    TwoStageReduction().run(module, PassContext(parse_target("zen4"), Options()))
    firsts = [op for op in module.main.body.ops if op.operands and op.operands[0] is module.main.args[0]]
    assert len(firsts) == 2
    assert all(len(op.attrs["axes"]) >= 2 for op in firsts)


def test_moves_do_not_matter_to_the_range_of_all_elements() -> None:
    def body(x: Value) -> tuple[Value, ...]:
        moved = view.reshape(view.transpose(x, perm=(2, 0, 1)), shape=(20, 24))
        return (
            rd.reduce_max(moved, axes=(0, 1), keepdims=True),
            rd.reduce_min(blocked.unblock_channels(x, channels=32), axes=(0, 1)),
            rd.reduce_max(blocked.unblock_channels(x, channels=30), axes=(0, 1)),  # not all are there
            rd.reduce_max(moved, axes=(1,)),
        )

    module = program(body, (15, 2, 16))
    x = inputs(module)
    before = evaluate_func(module.main, module, x)
    run_passes(module, [Canonicalize()], PassContext())
    after = evaluate_func(module.main, module, x)
    for a, b in zip(after, before, strict=True):
        np.testing.assert_array_equal(a, b)
    reductions = [op for op in module.main.body.ops if op.name.startswith("reduce")]
    assert [op.operands[0] is module.main.args[0] for op in reductions].count(True) == 2
