"""What is computed by bands of an image, so that what lies between two steps stays in the second-level cache.

The tiles that a contraction reads are made band by band in its kernel, or all of them before it. By bands every band
reads the other operand again. Made before, they are written to memory and read for each panel of columns; then all
threads share the work of one band.

Windows (of a depthwise convolution, of pooling) are summed over bands of a convolution's result, or over all of it in
a kernel of their own. By bands the lines that two bands share are computed twice.

A result in blocks of channels that leaves the model without them is rearranged band by band, or in a kernel of its own.
By bands every band reads the weights again.
"""

from __future__ import annotations

from tilewright.graph.match import shape_of, type_of
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym, sym
from tilewright.ops.winograd import tile_counts

BAND_SHARE = 0.4
"""Of the second-level cache that a band may fill."""

PANEL_BLOCKS = 2
"""Blocks of columns that a kernel computes from one reading of the tiles."""

SMALLEST_SIDE = 8
"""Of an image that leaves its blocks by squares."""

FLOPS_PER_BYTE = 6
"""Operations of a contraction that take as long as a byte to or from the memory behind the second-level cache."""

TILE_TRAFFIC = 2
"""Time of a byte of tiles, which are written and read once in a while, in that of a byte that is only streamed."""


def tiles_by_bands(product: Op, l2: int) -> str:
    """Why the tiles v [n, blocks, points, tiles, block] of `product`(v, u) should be made before it; "" when they
    should be made by bands."""
    v, u = product.operands
    if len(v.users) > 1:
        return "the tiles are needed elsewhere too"
    bands = _bands(product, l2)
    if bands is None:
        fits = _is_within(_bytes(u), l2 // 2)
        return "" if fits else "the image's size is not known, and many bands would read all filters again"
    panels = shape_of(product.result)[1].value / PANEL_BLOCKS
    again, stored = (bands - 1) * _bytes(u).value, TILE_TRAFFIC * (2 + panels) * _bytes(v).value
    if again > stored:
        megabytes = _bytes(v).value / 1e6
        return f"bands would read {again / 1e6:.1f} MB of filters again; the tiles have {megabytes:.1f} MB"
    fits = _is_within(_bytes(v), 3 * l2 // 4)
    return "they fit the second-level cache, and threads share them there" if fits else ""


def windows_by_bands(sums: Op, windows: Op, room: int) -> str:
    """Why the windows that `windows` reduces should be read from a stored tensor, not from bands of the result of the
    contraction `sums`; "" when they should be computed by bands.

    `room` is what a band may fill of the second-level cache, in bytes. Both results are blocked images,
    [n, blocks, h, w, block], that of `sums` possibly with h and w as one axis.
    """
    read, made = shape_of(windows.operands[0]), shape_of(windows.result)
    if len(read) != 5 or len(made) != 5 or not all(d.is_const for d in (*read, *made)):
        return "it is not an image of known size"
    stored = _bytes(sums.result).value
    if stored <= room:
        return "its result fits the second-level cache"
    kernel, step = _lines_read(windows), (tuple(windows.attrs["strides"]) or (1,))[0]
    _, blocks, height, width, block = (d.value for d in read)
    line = PANEL_BLOCKS * width * block * type_of(sums.result).dtype.bytes
    lines = min(room // line, height)
    if lines < 2 * kernel:
        return f"{kernel} of its lines leave no room in the second-level cache"
    results = made[2].value
    bands = -(-results // ((lines - kernel) // step + 1))
    again = (bands - 1) * max(0, kernel - step)
    depth = type_of(sums.operands[1]).size.value // (blocks * block)
    flops = 2 * read[0].value * again * width * blocks * block * depth
    if flops > FLOPS_PER_BYTE * 2 * stored:
        return f"bands would compute {again} of {height} lines again; its result has {stored / 1e6:.1f} MB"
    return ""


def unblocks_by_bands(sums: Op, l2: int) -> str:
    """Why the result of the contraction `sums`, an image in blocks of channels, should be stored as it is and leave its
    blocks in a kernel of its own; "" when it should leave them band by band."""
    shape = shape_of(sums.result)
    if len(shape) != 5 or sums.attrs.get("groups", 1) != 1:
        return "it is not an image in blocks of channels, each from all of another's"
    stored, weights = (_bytes(v) for v in (sums.result, sums.operands[1]))
    if not (stored.is_const and weights.is_const):
        return "the image's size is not known"
    if min(d.value for d in shape[2:4]) < SMALLEST_SIDE:
        return f"its lines are fewer or shorter than {SMALLEST_SIDE} elements"
    if stored.value <= l2:
        return "its result fits the second-level cache"
    if weights.value > l2 // 2:
        return f"every band would read {weights.value / 1e6:.1f} MB of weights again"
    return ""


def _lines_read(windows: Op) -> int:
    """Lines of its operand from the first to the last that one line of a windowed reduction reads."""
    kernel = windows.attrs.get("kernel") or shape_of(windows.operands[1])[2:]
    dilation = (tuple(windows.attrs["dilations"]) or (1,))[0]
    return (int(sym(kernel[0]).value) - 1) * dilation + 1


def _bands(product: Op, l2: int) -> int | None:
    """How many bands of whole rows of tiles there will be (one of a line); None where the image's size is not known."""
    v, output = product.operands[0], product.result.users[0]
    images, blocks, points, tiles, block = shape_of(v)
    across = tile_counts(tuple(map(sym, output.attrs["space"])), output.attrs["m"])[-1]
    if not (images * tiles * across).is_const:
        return None
    rows = tiles.value // across.value
    row_bytes = (blocks + PANEL_BLOCKS) * points * block * type_of(v).dtype.bytes * across
    room = max(1, int(BAND_SHARE * l2) // row_bytes.value)
    length = max(n for n in range(1, min(room, rows) + 1) if rows % n == 0)
    return int(images.value * rows // length)


def _bytes(value: Value) -> Sym:
    type = type_of(value)
    return type.size * type.dtype.bytes


def _is_within(size: Sym, limit: int) -> bool:
    return size.is_const and size.value <= limit
