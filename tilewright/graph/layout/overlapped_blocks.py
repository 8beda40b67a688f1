"""Transposed convolutions of small images with large filters: each element of the data gives a block of the result as
large as the filters, all of them in one matrix product, and the blocks are added up where they overlap.

The convolutions of phases would read mostly padding there: an image of 4x4 under 13x13 is padded to 28x28.
"""

from __future__ import annotations

from math import prod

from tilewright.cost.conv.transposed import Overlap, adds_up_blocks
from tilewright.graph.algorithms.winograd import MOST_GROWTH
from tilewright.graph.layout.layout_map import LayoutMap
from tilewright.graph.layout.phases import Phases
from tilewright.graph.match import dtype_of, shape_of
from tilewright.ir.core import Op
from tilewright.ir.sym import sym
from tilewright.ir.types import product
from tilewright.ops.contract import matmul, overlapped
from tilewright.ops.cook_toom import tile_lengths
from tilewright.ops.view import reshape, transpose
from tilewright.target.target import Target


def suits_blocks_that_overlap(op: Op, phases: Phases, target: Target | None) -> bool:
    """Whether a transposed convolution whose filters have known extents is better computed so."""
    (_, c, *space), (_, o, *kernel), (_, _, *results) = (shape_of(v) for v in (*op.operands, op.result))
    rounds = dtype_of(op.result).accumulator is not dtype_of(op.result)  # blocks, which are added up then
    if target is None or rounds or any(d != 1 for d in op.attrs["dilations"]):
        return False
    known = (c, o, *space, *kernel, *results)
    if not all(d.is_const for d in known) or any(d == 1 for d in space) or not prod(d.value for d in known):
        return False
    taps = [sum(part.phases * part.count for part in axis.parts) for axis in phases.axes]
    positions = prod(axis.counts.value * n for axis, n in zip(phases.axes, taps, strict=True))
    blocks = prod(d.value for d in (*space, *kernel))
    pairs = c.value * o.value
    filters = o.value * phases.groups
    shape = Overlap(
        by_phases=positions * pairs,
        may_transform=bool(tile_lengths(tuple(part.count for axis in phases.axes for part in axis.parts), MOST_GROWTH)),
        by_blocks=blocks * pairs,
        blocks=blocks * filters,
        terms=prod(d.value for d in (*results, *space)) * filters,
    )
    return adds_up_blocks(shape, target)


def as_blocks_that_overlap(op: Op, phases: Phases, layouts: LayoutMap) -> None:
    """Emit the product and the sum. Entries of the batch are rows of one product where there is one group."""
    x, w = (layouts.plain(v) for v in op.operands)
    (n, c, *space), (_, o, *kernel) = shape_of(x), shape_of(w)
    sizes = shape_of(op.result)[2:]
    groups, positions, block = sym(phases.groups), product(space), o * product(kernel)
    if phases.groups == 1:
        rows = reshape(transpose(reshape(x, shape=(n, c, positions)), perm=(0, 2, 1)), shape=(n * positions, c))
        y = matmul(rows, reshape(w, shape=(c, block)))
    else:
        parts = transpose(reshape(x, shape=(n, groups, c // groups, positions)), perm=(0, 1, 3, 2))
        y = matmul(parts, reshape(w, shape=(groups, c // groups, block)))
    blocks = reshape(y, shape=(n * groups, *space, o, *kernel))
    strides = tuple(op.attrs["strides"]) or (1,) * len(space)
    before = tuple(op.attrs["pads_begin"]) or (0,) * len(space)
    made = overlapped(blocks, strides=strides, pads_begin=before, sizes=sizes)
    layouts.set_plain(op.result, reshape(made, shape=shape_of(op.result)))
