"""Blocked channels: what stays inside of the layout, what leaves it, and that numbers do not change."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import batch_norm, conv, ops, program, relu, run, weights
from tilewright.graph.layout.block_channels import BlockChannels
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir import dtype as dt
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import index as ix
from tilewright.ops import pool
from tilewright.ops import reduce as rd
from tilewright.ops import view as vw
from tilewright.ops.define import constant

N, H, W = var("n", 1), var("h", 8), var("w", 8)


def layout(body, *shapes, tolerance=1e-4):
    module = program(body, *shapes)
    run(module, BlockChannels(), Fold(), Canonicalize(), tolerance=tolerance)
    return ops(module)


def changes(names):
    """How often the layout is changed."""
    return [n for n in names if n in ("block_channels", "unblock_channels")]


def test_a_network_changes_its_layout_at_its_ends_only():
    def body(x):
        x = relu(batch_norm(conv(x, 32, 3, stride=2)))
        y = relu(conv(x, 16, 1))
        y = relu(conv(y, 16, 3))
        x = relu(ew.add(conv(y, 32, 1), x))
        x = pool.max_pool(x, kernel=(2, 2), strides=(2, 2))
        return rd.reduce_mean(x, axes=(2, 3), keepdims=False)

    found = layout(body, (2, 3, 16, 16))
    assert changes(found) == []
    assert found.count("conv_blocked") == 4
    assert "conv" not in found


@pytest.mark.parametrize("channels", [16, 24, 40, 9])
def test_channels_need_not_fill_the_blocks(channels):
    def body(x):
        x = relu(ew.add(conv(x, channels, 3), weights(channels, 1, 1)))
        x = ew.mul(conv(x, channels, 3, groups=channels), ew.sigmoid(x))
        return conv(x, 17, 3)

    found = layout(body, (2, 16, 6, 6))
    assert changes(found) == ["block_channels", "unblock_channels"]
    assert "depthwise_blocked" in found


def test_a_logarithm_of_empty_lanes_leaves_the_layout():
    found = layout(lambda x: conv(ew.log(ew.add(ew.exp(conv(x, 20, 1)), 1.0)), 16, 3), (2, 16, 4, 4))
    assert changes(found) == ["block_channels", "unblock_channels", "block_channels", "unblock_channels"]
    full = layout(lambda x: conv(ew.log(ew.add(ew.exp(conv(x, 32, 1)), 1.0)), 16, 3), (2, 16, 4, 4))
    assert changes(full) == ["block_channels", "unblock_channels"]


@pytest.mark.parametrize("function", [ew.sqrt, ew.asin, ew.log1p], ids=lambda f: f.name)
def test_a_function_that_is_no_number_for_the_fill_leaves_the_layout(function):
    """The fill is -1.5 where data are between 0 and 1: a weight of zero does not take NaN away."""

    def body(x):
        y = ew.add(ew.mul(ew.sigmoid(conv(x, 12, 3)), 0.5), constant(np.full((12, 1, 1), 1.5, np.float32)))
        return conv(function(ew.add(ew.max_(y, 0.5), -2.0 if function is not ew.sqrt else -1.5)), 16, 3)

    module = program(body, (1, 8, 12, 12))
    run(module, BlockChannels(), Canonicalize(), Fold(), target="zen3")


def test_a_pointwise_convolution_between_plain_tensors_is_a_product():
    found = layout(lambda x: relu(ew.add(conv(x, 24, 1), weights(24, 1, 1))), (N, 16, H, W))
    assert changes(found) == []
    assert {"add", "matmul", "max", "reshape"} == set(found)


def test_a_strided_pointwise_convolution_between_plain_tensors_reads_what_it_needs():
    found = layout(lambda x: relu(conv(x, 24, 1, stride=2)), (N, 16, 9, 7))
    assert changes(found) == []
    assert "conv" not in found and found.index("slice") < found.index("matmul")


def test_a_convolution_of_few_channels_whose_result_leaves_stays_plain():
    def first(x, stride=1):
        return relu(conv(x, 24, 3, stride=stride))

    assert changes(layout(first, (2, 3, 9, 7))) == []
    assert "conv" in layout(first, (2, 3, 9, 7))
    assert "conv" not in layout(first, (2, 16, 9, 7))
    assert "conv" not in layout(lambda x: first(x, 2), (2, 3, 9, 7))
    assert "conv" not in layout(lambda x: conv(first(x), 16, 3), (2, 3, 9, 7))


def test_dims_may_be_symbolic_and_pointwise_rows_are_long():
    module = program(lambda x: relu(conv(relu(conv(x, 16, 1)), 16, 1)), (N, 3, H, W))
    run(module, BlockChannels(), Fold(), Canonicalize())
    convs = [op for op in module.main.body.ops if op.name == "conv_blocked"]
    assert [str(op.result.type.shape[2]) for op in convs] == ["h*w", "h*w"]


def test_squeeze_and_excitation_stays_blocked():
    def body(x):
        x = relu(conv(x, 32, 3))
        gate = conv(relu(conv(rd.reduce_mean(x, axes=(2, 3)), 8, 1)), 32, 1)
        return conv(ew.mul(x, ew.sigmoid(gate)), 16, 1)

    assert changes(layout(body, (2, 16, 6, 6))) == ["block_channels", "unblock_channels"]


def joined(*widths, then=lambda x: x, reader=lambda x: conv(x, 24, 3)):
    """Concatenated results of convolutions, which `reader` reads after `then`."""
    return lambda x: reader(then(vw.concat(*(relu(conv(x, n, 1)) for n in widths), axis=1)))


def test_concat_of_whole_blocks_stays_blocked():
    assert len(changes(layout(joined(32, 24, then=ew.abs_), (2, 16, 5, 5)))) == 2


@pytest.mark.sweep
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("widths", [(20, 24), (24, 23), (33, 20, 47)])
def test_a_concat_of_parts_of_blocks_has_gaps_which_weights_of_zero_read(widths, kernel):
    def two_readers(x):
        return ew.add(conv(x, 20, kernel), conv(x, 20, 3))

    for reader in (lambda x: conv(x, 24, kernel), two_readers, lambda x: conv(x, 5, 1)):
        found = layout(joined(*widths, reader=reader), (2, 16, 5, 6))
        assert changes(found) == ["block_channels", "unblock_channels"]


def test_a_concat_of_parts_of_blocks_moves_elements_where_others_than_convolutions_read_it():
    for then in (ew.abs_, lambda x: conv(x, 44, 3, groups=44)):
        assert len(changes(layout(joined(20, 24, then=then), (2, 16, 5, 5)))) > 2


def test_a_concat_of_parts_of_blocks_moves_elements_where_gaps_would_be_many():
    assert len(changes(layout(joined(8, 8), (2, 16, 5, 5)))) > 2


def test_groups_of_whole_blocks_stay_blocked():
    def body(x):
        return conv(conv(x, 32, 3, groups=2), 64, 3, groups=2)

    assert ops_of(body).count("conv_blocked") == 2


def test_groups_within_a_block_stay_plain():
    found = ops_of(lambda x: conv(conv(x, 32, 3), 32, 3, groups=4))
    assert found.count("conv_blocked") == 1
    assert found.count("conv") == 1


def ops_of(body):
    return layout(body, (2, 32, 5, 5))


def test_spatial_views_keep_the_layout():
    def body(x):
        y = conv(x, 32, 1)
        n, c, h, w = y.type.shape
        y = vw.reshape(
            vw.expand(vw.reshape(y, shape=(n, c, h, 1, w)), shape=(n, c, h, 2, w)), shape=(n, c, h * 2, w)
        )
        y = vw.slice_(y, starts=(0, 0, 1, 0), sizes=(n, c, 6, w))
        y = vw.pad(vw.transpose(y, perm=(0, 1, 3, 2)), before=(0, 0, 1, 1), after=(0, 0, 1, 0), mode="edge")
        return conv(y, 16, 3)

    assert len(changes(layout(body, (2, 16, 5, 5)))) == 2


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_lines_may_be_gathered_from_blocks(shape):
    lines = np.arange(int(np.prod(shape))).reshape(shape) * 3 % 5
    found = layout(lambda x: ew.abs_(ix.gather(conv(x, 32, 1), constant(lines), axis=-2)), (2, 16, 5, 5))
    assert changes(found) == ["block_channels", "unblock_channels"]
    assert found.index("gather") < found.index("abs") < found.index("unblock_channels")


@pytest.mark.parametrize(
    ("channels", "starts", "sizes"),
    [
        (48, (0, 16, 0, 0), (2, 16, 5, 5)), (48, (0, 16, 0, 0), (2, 32, 5, 5)), (40, (0, 32, 0, 0), (2, 8, 5, 5)),
        (40, (1, 16, 1, 2), (1, 24, 3, 2)), (40, (0, 0, 0, 0), (1, 40, 5, 5)),
    ],
)  # fmt: skip
def test_slices_of_whole_blocks_of_channels_stay_blocked(channels, starts, sizes):
    def body(x):
        return conv(vw.slice_(conv(x, channels, 3), starts=starts, sizes=sizes), 16, 3)

    assert len(changes(layout(body, (2, 16, 5, 5)))) == 2


@pytest.mark.parametrize(
    "move",
    [
        lambda y: vw.transpose(y, perm=(0, 2, 1, 3)),
        lambda y: vw.slice_(y, starts=(0, 8, 0, 0), sizes=(2, 16, 5, 5)),
        lambda y: vw.slice_(y, starts=(0, 0, 0, 0), sizes=(2, 24, 5, 5)),
        lambda y: vw.slice_(y, starts=(0, 0, 0, 0), sizes=(2, 16, 5, 5), steps=(1, 2, 1, 1)),
        lambda y: vw.slice_(y, starts=(0, 31, 0, 0), sizes=(2, 32, 5, 5), steps=(1, -1, 1, 1)),
        lambda y: vw.pad(y, before=(0, 3, 0, 0), after=(0, -3, 0, 0)),
        lambda y: rd.reduce_max(y, axes=(1, 2)),
        lambda y: ix.gather(y, constant(np.arange(32)[::-1].copy()), axis=1),
    ],
)
def test_what_moves_or_joins_channels_or_images_reads_plain_values(move):
    found = layout(lambda x: move(conv(x, 32, 3)), (2, 32, 5, 5))
    assert changes(found) == ["block_channels", "unblock_channels"]
    assert found[-1] not in ("block_channels", "unblock_channels")


def test_one_dimension():
    def body(x):
        window = {"strides": (2,), "pads_begin": (1,), "pads_end": (1,), "dilations": (1,)}
        y = ct.conv(x, weights(16, 3, 3), groups=1, **window)
        return ct.conv(relu(y), weights(16, 16, 1, seed=2), strides=(1,), pads_begin=(0,), pads_end=(0,))

    found = layout(body, (2, 3, 21))
    assert changes(found) == ["unblock_channels"]


@pytest.mark.parametrize(
    ("kernel", "stride", "begin", "end", "extra", "filters"),
    [
        (2, 2, 0, 0, 0, 1), (2, 2, 0, 0, 0, 24), (3, 2, 1, 1, 1, 9), (4, 2, 1, 0, 0, 3), (5, 3, 2, 0, 1, 20),
        (2, 4, 0, 0, 0, 8),
    ],
)  # fmt: skip
def test_transposed_convolutions_become_convolutions(kernel, stride, begin, end, extra, filters):
    def body(x):
        w = weights(18, filters, kernel, kernel)
        y = ct.conv_transpose(
            x, w, strides=(stride,) * 2, pads_begin=(begin,) * 2, pads_end=(end,) * 2,
            output_padding=(extra,) * 2,            dilations=(1, 1), groups=1,
        )  # fmt: skip
        return relu(ew.add(y, weights(filters, 1, 1)))

    assert "conv_transpose" not in layout(body, (N, 18, 5, 4))


@pytest.mark.parametrize("taps", [3, 5, 31])
@pytest.mark.parametrize("length", [var("t", 1), 40])
def test_lines_of_unknown_length_are_padded_before_long_windows(taps, length):
    """Where they end is not known, so that each tap would have conditions at every position."""

    def body(x):
        pads = {"pads_begin": (taps // 2,), "pads_end": (taps // 2,)}
        y = ct.conv(relu(conv_1(x)), weights(32, 1, taps, seed=2), groups=32, strides=(1,), **pads)
        return conv_1(y)

    def conv_1(x):
        return ct.conv(x, weights(32, 32, 1), strides=(1,))

    found = layout(body, (1, 32, length))
    assert "depthwise_blocked" in found and "unblock_channels" in found
    assert found.count("pad") == (length != 40 and taps >= 5)


def test_doubles_stay_plain():

    module = program(
        lambda x: ct.conv(x, constant(np.ones((16, 16, 3, 3))), strides=(1, 1)), tensor(dt.f64, (1, 16, 5, 5))
    )
    run(module, BlockChannels())
    assert ops(module) == ["conv"]


@pytest.mark.parametrize(("channels", "summed"), [(20, 20), (24, 24), (17, 20), (30, 32), (32, 32)])
def test_few_empty_channels_are_summed(channels, summed):
    module = program(lambda x: conv(conv(x, channels, 3), 16, 5), (1, 3, 12, 12))
    run(module, BlockChannels(), Fold(), Canonicalize(), tolerance=1e-4)
    last = [op for op in module.main.body.ops if op.name == "conv_blocked"][-1]
    assert last.operands[1].type.shape[1] == summed


def test_transforms_of_tiles_find_whole_blocks():
    module = program(lambda x: conv(conv(x, 20, 3), 16, 3), (1, 3, 12, 12))
    run(module, BlockChannels(), Fold(), Canonicalize(), tolerance=1e-4)
    last = [op for op in module.main.body.ops if op.name == "conv_blocked"][-1]
    assert last.operands[1].type.shape[1] == 32


@pytest.mark.parametrize(
    ("channels", "filters", "in_blocks"), [(2048, 512, True), (1024, 256, True), (256, 64, False), (64, 256, False)]
)
def test_products_for_small_images_of_unknown_size_are_in_blocks(channels, filters, in_blocks):
    """Networks have many channels where images are small: lanes along few positions would be idle."""
    module = program(lambda x: conv(x, filters, 1), (N, channels, var("h", 1), var("w", 1)))
    run(module, BlockChannels(), Fold(), Canonicalize(), target="x86-64-v4")
    assert ("conv_blocked" in ops(module)) == in_blocks
