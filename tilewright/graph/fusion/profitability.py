"""What `cost/conv/bands.py` is asked about regions: the extents of images and of what is computed from them."""

from __future__ import annotations

from tilewright.cost.conv.bands import (
    PANEL_BLOCKS,
    TiledImage,
    WindowedImage,
    why_blocks_are_left_apart,
    why_tiles_are_stored,
    why_windows_are_apart,
)
from tilewright.cost.typical import TypicalSizes
from tilewright.graph.fusion.refusals import not_worth, said
from tilewright.graph.match import shape_of, type_of
from tilewright.ir.core import Op, Value
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import Sym, sym
from tilewright.ops.winograd import tile_counts
from tilewright.target.target import Target

KNOWN_SIZES = "known sizes: --shape, or --frequent for sizes that are usual"


def tiles_by_bands(product: Op, typical: TypicalSizes, target: Target) -> NoMatch | None:
    """Why the tiles v [n, blocks, points, tiles, block] of `product`(v, u) should be made before it; None when they
    should be made by bands, as they should be for a medium image where its size is not known."""
    v, u = product.operands
    if len(v.users) > 1:
        readers = tuple(said(u) for u in v.users if u is not product)
        change = f"one reader alone; it is also read by {readers[0]}"
        return NoMatch("the tiles are needed elsewhere too", change, readers[:3])
    output = product.result.users[0]
    images, blocks, points, tiles, block = shape_of(v)
    across = tile_counts(tuple(map(sym, output.attrs["space"])), output.attrs["m"])[-1]
    if not (tiles * across).is_const:
        across = sym(1)  # bands of such an image are cut from all of its tiles, not from rows of them
    row_bytes = (blocks + PANEL_BLOCKS) * points * block * type_of(v).dtype.bytes * across
    sizes = [images, tiles // across, row_bytes, _bytes(v), _bytes(u), shape_of(product.result)[1]]
    image = TiledImage(*typical.medium(sizes))
    return _refusal(why_tiles_are_stored(image, target))


def windows_by_bands(sums: Op, windows: Op, target: Target) -> NoMatch | None:
    """Why the windows that `windows` reduces should be read from a stored tensor, not from bands of the result of the
    contraction `sums`; None when they should be computed by bands. Both results are blocked images,
    [n, blocks, h, w, block], that of `sums` possibly with h and w as one axis."""
    read, made = shape_of(windows.operands[0]), shape_of(windows.result)
    if len(read) != 5 or len(made) != 5 or not all(d.is_const for d in (*read, *made)):
        return NoMatch("it is not an image of known size", KNOWN_SIZES)
    images, blocks, height, width, block = (d.value for d in read)
    image = WindowedImage(
        images=images,
        blocks=blocks,
        height=height,
        width=width,
        block=block,
        element=type_of(sums.result).dtype.bytes,
        depth=type_of(sums.operands[1]).size.value // (blocks * block),
        kernel=_lines_read(windows),
        step=(tuple(windows.attrs["strides"]) or (1,))[0],
        results=made[2].value,
    )
    return _refusal(why_windows_are_apart(image, target))


def unpacks_by_bands(sums: Op, target: Target) -> NoMatch | None:
    """Why the result of the contraction `sums`, an image in blocks of channels, should be stored as it is and leave its
    blocks in a kernel of its own; None when it should leave them band by band."""
    shape = shape_of(sums.result)
    if len(shape) != 5 or sums.attrs.get("groups", 1) != 1:
        return NoMatch("it is no image in blocks of channels by a convolution of one group")
    stored, weights = (_bytes(v) for v in (sums.result, sums.operands[1]))
    if not (stored.is_const and weights.is_const):
        return NoMatch("the image's size is not known", KNOWN_SIZES)
    sides = shape[2].value, shape[3].value
    return _refusal(why_blocks_are_left_apart(*sides, stored.value, weights.value, target))


def _refusal(reason: str) -> NoMatch | None:
    """A decision of the cost model."""
    return not_worth(reason) if reason else None


def _lines_read(windows: Op) -> int:
    """Lines of its operand from the first to the last that one line of a windowed reduction reads."""
    kernel = windows.attrs.get("kernel") or shape_of(windows.operands[1])[2:]
    dilation = (tuple(windows.attrs["dilations"]) or (1,))[0]
    return (int(sym(kernel[0]).value) - 1) * dilation + 1


def _bytes(value: Value) -> Sym:
    type = type_of(value)
    return type.size * type.dtype.bytes
