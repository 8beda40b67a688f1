"""Lines of padding that a convolution multiplies: whether it is worth leaving them out."""

from __future__ import annotations

from tilewright.cost.conv.layouts import ELEMENT, PASSES
from tilewright.cost.core import move_cycles, multiply_cycles
from tilewright.target.target import VECTOR_BYTES, Target

MOST_INSIDE = 0.8
"""Share of the lines that windows read inside of the image up to which the others are left out: every part has filters
of its own in the model, and a kernel; and conditions on lines of larger shares gain nothing where filters come from
beyond the L2 (measured on Zen 5: 7x7 dilated by 2 on 19 lines, of which 82 % are inside)."""

MOST_PARTS = 3
"""Parts of an image at most; convolutions that would have more skip lines by conditions."""

KERNEL = 2000
"""Cycles in which a kernel is begun and ended."""


def leaves_padding_out(
    inside: float, products: int, results: int, filters: int, parts: int, target: Target
) -> bool:
    """Whether a convolution of so many products and results, of which the share `inside` reads no lines of padding,
    should be one for each of `parts` of the image, with so many elements of filters in all."""
    if not skips_lines(inside) or parts > MOST_PARTS:
        return False
    saved = (1 - inside) * multiply_cycles(products, ELEMENT, target)
    joined = PASSES * target.calibration.exposed.passes * results * ELEMENT / VECTOR_BYTES if parts > 1 else 0
    return saved > parts * KERNEL + joined + move_cycles(filters * ELEMENT, "l3", target)


def skips_lines(inside: float) -> bool:
    """Whether a convolution whose windows read the share `inside` of their lines within the image has a condition for
    each line of a window rather than lines of padding."""
    return inside <= MOST_INSIDE
