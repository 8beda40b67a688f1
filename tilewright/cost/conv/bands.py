"""Bands of an image: what lies between two steps of a kernel stays in L2, or is stored by a kernel of its own.

The tiles that a contraction reads are made band by band in its kernel, or all of them before it. By bands every band
reads the other operand again. Made before, they are written to memory and read for each panel of columns; then all
threads share the work of one band.

Windows (of a depthwise convolution, of pooling) are summed over bands of a convolution's result, or over all of it in
a kernel of their own. By bands the lines that two bands share are computed twice.

A result in blocks of channels that leaves the model without them is rearranged band by band, or in a kernel of its own.
By bands every band reads the weights again.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.cost.core import divisors, fits_l2, is_kept, l2_room, move_cycles, multiply_cycles
from tilewright.cost.parallel import bands_for_all_cores, share_of_greatest, threads
from tilewright.target.target import Target

PANEL_BLOCKS = 2
"""Blocks of columns that a kernel computes from one reading of the tiles."""

MOST_PANEL_BLOCKS = 4
"""Blocks of channels of a panel: enough for the columns of a register tile."""

SMALLEST_SIDE = 8
"""Rows and columns of the smallest image whose result is unpacked by squares of registers."""

PLAIN_BANDS_PER_CORE = 4
"""Panels of bands that every core should find at least, where the result is unpacked."""

FLOPS_PER_BYTE = 6
"""Operations of a contraction that take as long as a byte to or from the memory behind L2."""

TILE_TRAFFIC = 2
"""Time of a byte of tiles, which are written and read once, as a multiple of that of a byte that is only read in
order."""


@dataclass(frozen=True, slots=True)
class TiledImage:
    """The tiles that a contraction reads: `images` with `rows` of tiles each, every row of `row_bytes` for its data and
    for the sums of a panel; bytes of all tiles and filters; blocks of columns."""

    images: int
    rows: int
    row_bytes: int
    tiles: int
    filters: int
    columns: int


def why_tiles_are_stored(image: TiledImage, target: Target) -> str:
    """Why the tiles that a contraction reads should be made before it; empty where they should be made by bands."""
    room = max(1, int(l2_room(target, "band")) // image.row_bytes)
    length = max(n for n in range(1, min(room, image.rows) + 1) if image.rows % n == 0)
    bands = image.images * image.rows // length
    panels = image.columns / PANEL_BLOCKS
    again, stored = (bands - 1) * image.filters, TILE_TRAFFIC * (2 + panels) * image.tiles
    if again > stored:
        read, tiles = (f"{n / 1e6:.1f} MB" for n in (again, image.tiles))
        return f"one kernel would read filters for each band of the image, {read} more; the tiles between have {tiles}"
    if image.tiles <= l2_room(target, "tiles"):
        return "the transformed tiles fit the L2 cache, and all threads share the work of making them"
    return ""


@dataclass(frozen=True, slots=True)
class WindowedImage:
    """An image in blocks of channels that a contraction gives and windows read: `images` of `blocks` x `height` x
    `width` x `block` elements of `element` bytes, each from sums over `depth` terms; the windows read `kernel` lines
    for one, `step` lines apart, and give `results` lines."""

    images: int
    blocks: int
    height: int
    width: int
    block: int
    element: int
    depth: int
    kernel: int
    step: int
    results: int

    @property
    def stored(self) -> int:
        """Bytes of the image."""
        return self.images * self.blocks * self.height * self.width * self.block * self.element


def why_windows_are_apart(image: WindowedImage, target: Target) -> str:
    """Why windows should read the image from memory, not from bands of it; empty where they should be computed by
    bands."""
    if is_kept(image.stored, target):
        return "its result fits the L2 cache, from where another kernel reads it fast"
    line = PANEL_BLOCKS * image.width * image.block * image.element
    lines = min(int(l2_room(target, "kept")) // line, image.height)
    if lines < 2 * image.kernel:
        return f"the {image.kernel} lines that a window reads do not fit the L2 cache"
    bands = -(-image.results // ((lines - image.kernel) // image.step + 1))
    again = (bands - 1) * max(0, image.kernel - image.step)
    flops = 2 * image.images * again * image.width * image.blocks * image.block * image.depth
    if flops > FLOPS_PER_BYTE * 2 * image.stored:
        megabytes = image.stored / 1e6
        twice = f"{again} of {image.height} lines of the image twice"
        return f"one kernel would compute {twice}, which takes longer than storing its {megabytes:.1f} MB"
    return ""


def why_blocks_are_left_apart(height: int, width: int, stored: int, weights: int, target: Target) -> str:
    """Why an image of `stored` bytes should leave its blocks of channels in a kernel of its own, not band by band in
    that of the contraction with `weights` bytes; empty where it should leave them there."""
    if min(height, width) < SMALLEST_SIDE:
        return f"its lines are fewer or shorter than {SMALLEST_SIDE} elements"
    if fits_l2(stored, target):
        return "its result fits the L2 cache, from where another kernel reads it fast"
    if is_kept(weights, target):
        return ""
    return f"one kernel would read {weights / 1e6:.1f} MB of weights again for each band of the image"


def panel_of_windows(blocks: int) -> int:
    """Blocks of channels that are computed together: as many as share the contraction's other operand well."""
    most = panel_of_blocks(blocks)
    return blocks if most == 1 and blocks <= 2 * MOST_PANEL_BLOCKS else most


def panel_of_blocks(blocks: int) -> int:
    """The same of a result that leaves its blocks."""
    return max(n for n in divisors(blocks) if n <= MOST_PANEL_BLOCKS)


@dataclass(frozen=True, slots=True)
class WindowLines:
    """`rows` lines of windows, in panels of channels of which there are `parts`. A line reads `one` bytes of the lines
    that a contraction computes for it, two lines `two` bytes, in elements of `element` bytes, each a sum of `depth`
    terms."""

    rows: int
    one: int
    two: int
    element: int
    depth: int
    parts: int

    def read(self, lines: int) -> int:
        """Bytes that so many lines read."""
        return self.one + (lines - 1) * (self.two - self.one)


def lines_of_windows(image: WindowLines, target: Target) -> int:
    """Lines of a band with the fewest cycles, of bands of equal heights that are enough for all cores."""
    least = min(image.rows, -(-threads(target) // max(1, image.parts)))
    heights = dict.fromkeys(-(-image.rows // bands) for bands in range(least, image.rows + 1))
    return min(heights, key=lambda lines: cycles_of_bands(image, lines, target))


def cycles_of_bands(image: WindowLines, lines: int, target: Target) -> float:
    """Cycles of one core for a panel in bands of so many lines: lines that two bands read are computed twice, and what
    does not stay in L2 goes to L3 and comes from there. Where cores share bands unevenly, as if all had the greatest
    share."""
    read = image.read(lines)
    bands = -(-image.rows // lines)
    multiplying = multiply_cycles(bands * read / image.element * image.depth, image.element, target)
    moving = 2 * bands * move_cycles(read, "l2" if is_kept(read, target) else "l3", target)
    return (multiplying + moving) * share_of_greatest(bands * image.parts, threads(target))


def lines_of_plain(rows: int, line: int, parts: int, target: Target) -> int:
    """Lines of a band of a result that leaves its blocks, of `line` bytes for a panel: as many as stay near, and enough
    bands for all cores; they divide the image."""
    most = max(1, int(l2_room(target, "lines")) // line)
    bands = max(-(-rows // most), bands_for_all_cores(parts, PLAIN_BANDS_PER_CORE, target))
    return max(n for n in divisors(rows) if n <= max(1, rows // bands))
