"""Grouped convolutions between plain values: groups become an axis, and numbers do not change."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import kernels, ops, program, relu, run
from tests.ops.samples_nn import convolution
from tilewright.compiler import compile_module
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.layout.grouped_conv import GroupedConv
from tilewright.graph.pipeline import default_passes
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir.sym import var
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops.blocked import block_channels
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.host import host_target
from tilewright.target.named import parse_target

RNG = np.random.default_rng(9)


def filters(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def found(shape, w, groups, passes=(), **attrs):
    """The operators after the pass; `run` compares results with those before."""
    module = program(lambda x: ct.conv(x, constant(w), groups=groups, **attrs), shape)
    run(module, GroupedConv(), Fold(), Canonicalize(), *passes, target="x86-64-v3")
    return ops(module)


SAME = {"pads_begin": (1, 1), "pads_end": (1, 1)}


def test_groups_become_an_axis():
    assert found((2, 24, 5, 32), filters(36, 6, 3, 3), 4, **SAME) == ["reshape", "conv_grouped", "reshape"]


@pytest.mark.parametrize("attrs", [SAME, {}, {**SAME, "dilations": (2, 1)}, {"pads_end": (0, 3)}])
def test_positions_run_over_short_lines(attrs):
    names = found((2, 48, 6, 19), filters(48, 24, 3, 3), 2, **attrs)
    assert "conv_flat" in names and "slice" in names


def test_other_ranks():
    assert "conv_grouped" in found((2, 12, 9), filters(6, 6, 3), 2)
    one = (1, 1, 1)
    volume = found((1, 32, 3, 4, 5), filters(32, 16, 3, 3, 3), 2, pads_begin=one, pads_end=one)
    assert "conv_flat" in volume


@pytest.mark.parametrize("space", [(40, 30), (13, 30)])
def test_lines_that_fill_vectors_are_read_as_they_are(space):
    assert "conv_grouped" in found((1, 12, *space), filters(12, 6, 3, 3), 2, **SAME)


def test_strides_do_not_run_over_lines():
    assert "conv_grouped" in found((2, 48, 6, 18), filters(48, 24, 3, 3), 2, strides=(2, 2))


def test_sizes_need_not_be_known():
    shape = (var("n", 1), 12, var("h", 1), var("w", 1))
    assert "conv_grouped" in found(shape, filters(12, 6, 3, 3), 2, **SAME)


def test_single_positions_are_products():
    assert found((2, 12, 4, 5), filters(18, 4, 1, 1), 3) == ["reshape", "matmul", "reshape"]


@pytest.mark.parametrize(
    ("w", "groups"), [(filters(12, 12, 3, 3), 1), (filters(12, 1, 3, 3), 12)], ids=["one group", "depthwise"]
)
def test_what_has_no_groups_of_several_stays(w, groups):
    assert found((1, 12, 5, 6), w, groups) == ["conv"]


@pytest.mark.parametrize(("each", "stays"), [(16, True), (48, True), (6, False), (8, False), (24, False)])
def test_blocks_are_written_by_the_convolution(each, stays):
    """Unless blocks of filters would cross groups: that costs more than another kernel."""
    w = filters(2 * each, 3, 3, 3)
    module = program(
        lambda x: block_channels(relu(ct.conv(x, constant(w), groups=2, **SAME)), block=16), (1, 6, 20, 31)
    )
    run(module, GroupedConv(), Fold(), Canonicalize(), target="x86-64-v3")
    assert ("conv" in ops(module)) == stays


def test_bias_and_activation_follow_in_the_kernel():
    def body(x):
        y = ct.conv(x, constant(filters(24, 6, 3, 3)), groups=4, **SAME)
        return relu(ew.add(y, constant(filters(24, 1, 1))))

    module = program(body, (1, 24, 20, 31))
    run(module, *default_passes(Options()), Fuse(STRATEGIES), target="x86-64-v3")
    assert kernels(module) == [["conv_grouped", "add", "max"]]


@pytest.mark.sweep
@pytest.mark.parametrize("target", [host_target(), parse_target("zen3")], ids=["host", "avx2"])
@pytest.mark.parametrize(
    ("shape", "w", "groups", "attrs"),
    [
        ((1, 60, 7, 18), (60, 12, 3, 3), 5, SAME),
        ((2, 36, 9, 33), (48, 6, 3, 3), 6, SAME),
        ((2, 36, 9, 7), (36, 18, 3, 5), 2, {"pads_begin": (0, 2), "pads_end": (1, 2)}),
        ((1, 10, 11, 17), (20, 5, 5, 2), 2, {"strides": (2, 1), "pads_begin": (2, 0), "pads_end": (2, 1)}),
        ((3, 21, 6, 5), (14, 3, 1, 1), 7, {}),
        ((1, 9, 8, 19), (18, 1, 3, 3), 9, SAME),
    ],
)
def test_compiled_groups_are_right(shape, w, groups, attrs, target):
    x, weights = filters(*shape), filters(*w)
    module = program(lambda v: ct.conv(v, constant(weights), groups=groups, **attrs), shape)
    (y,) = Model(compile_module(module, Options(), target))(x)
    np.testing.assert_allclose(y, convolution(x, weights, groups=groups, **attrs), rtol=1e-4, atol=1e-4)
