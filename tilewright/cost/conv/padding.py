"""Lines of padding that a convolution multiplies: whether it is worth taking it apart so that it does not."""

from __future__ import annotations

from tilewright.cost.conv.layouts import ELEMENT, PASSES
from tilewright.cost.core import move_cycles, multiply_cycles
from tilewright.target.target import VECTOR_BYTES, Target

MOST_INSIDE = 0.8
"""Share of the lines that windows read inside of the image up to which it is taken apart: every part has filters of its
own in the model, and a kernel."""

MOST_PARTS = 3
"""Parts of an image at most."""

KERNEL = 2000
"""Cycles in which a kernel is begun and ended."""


def leaves_padding_out(
    inside: float, products: int, results: int, filters: int, parts: int, target: Target
) -> bool:
    """Whether a convolution of so many products and results, of which the share `inside` reads no lines of padding,
    should be one for each of `parts` of the image, with so many elements of filters in all."""
    if inside > MOST_INSIDE or parts > MOST_PARTS:
        return False
    saved = (1 - inside) * multiply_cycles(products, ELEMENT, target)
    joined = PASSES * target.calibration.exposed.passes * results * ELEMENT / VECTOR_BYTES if parts > 1 else 0
    return saved > parts * KERNEL + joined + move_cycles(filters * ELEMENT, "l3", target)
