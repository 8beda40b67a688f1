"""Convolutions with one filter: positions take the place of channels, and numbers do not change."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import ops, program, run
from tilewright.graph.layout.block_channels import BlockChannels
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir.sym import var
from tilewright.ops import contract as ct
from tilewright.ops.define import constant

RNG = np.random.default_rng(3)


def found(shape, filters, **attrs):
    """The operators of a convolution after the pass; `run` compares its results with those before."""
    w = RNG.standard_normal(filters).astype(np.float32)
    module = program(lambda x: ct.conv(x, constant(w), **attrs), shape)
    run(module, BlockChannels(), Fold(), Canonicalize(), target="x86-64-v3")
    return ops(module)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("length", [600, 601, 607])
@pytest.mark.parametrize("pads", [(0, 0), (37, 5)])
def test_one_long_filter_is_a_block_of_positions(stride, length, pads):
    names = found((2, 2, length), (1, 2, 80), strides=(stride,), pads_begin=(pads[0],), pads_end=(pads[1],))
    assert "conv_blocked" in names and "conv" not in names
    assert "unblock_channels" not in names  # the block is the plain result


def test_other_axes_keep_their_windows():
    names = found(
        (1, 2, 9, 400), (1, 2, 3, 70), strides=(2, 1), dilations=(2, 1), pads_begin=(1, 3), pads_end=(1, 0)
    )
    assert "conv_blocked" in names


def test_the_length_need_not_be_known():
    names = found((var("n", 1), 1, var("t", 1)), (1, 1, 64), strides=(2,), pads_begin=(70,), pads_end=(30,))
    assert "conv_blocked" in names


@pytest.mark.parametrize(
    ("shape", "filters", "attrs"),
    [
        ((1, 1, 600), (1, 1, 9), {}),  # the taps between positions would outweigh those of the filter
        ((1, 1, 600), (1, 1, 60), {"dilations": (2,)}),
        ((1, 1, 600), (2, 1, 100), {}),
        ((1, 1, 130), (1, 1, 100), {}),  # few positions
    ],
)
def test_short_dilated_or_several_filters_stay_plain(shape, filters, attrs):
    assert "conv" in found(shape, filters, **attrs)
