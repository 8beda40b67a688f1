"""Products of float32 whose operands are rounded to 16 bits, for instructions that add up groups of these: where that
is faster. The estimate counts cycles of one core, as that of Winograd's algorithm (`cost/conv/winograd.py`) does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tilewright.cost.core import move_cycles, multiply_cycles, pass_cycles, products_per_float, source_of
from tilewright.target.dots import Dot
from tilewright.target.target import Target

GAIN = 0.9
"""Share of the time in float32 up to which operands are rounded: a smaller gain is not worth the rounding errors."""

ELEMENT, NARROW = 4, 2
"""Bytes of an element, and of a rounded one."""


@dataclass(frozen=True, slots=True)
class SumsShape:
    """What decides the time of a product of matrices or of a convolution: the `products` of two elements, those with
    the zeros that fill up groups (`filled`), elements of the constant operand (`weights`) and of the other (`data`).
    Steps over time read the weights several times (`passes`)."""

    products: float
    filled: float
    weights: float
    data: float
    passes: int = 1


def narrow_share(shapes: Sequence[SumsShape], dot: Dot, target: Target, all_weights: int) -> float:
    """The time with operands rounded for `dot`, in that of the direct sums of float32, in a model with `all_weights`
    bytes of these; of several typical sizes, which all count the same, the mean."""
    return fmean(_share(shape, dot, target, all_weights) for shape in shapes)


def _share(shape: SumsShape, dot: Dot, target: Target, all_weights: int) -> float:
    wide, narrow = (_weights_cycles(shape, element, all_weights, target) for element in (ELEMENT, NARROW))
    wide += multiply_cycles(shape.products, ELEMENT, target)
    narrow += multiply_cycles(shape.filled, ELEMENT, target) / products_per_float(dot, target)
    narrow += pass_cycles(shape.data / target.f32_lanes, target)
    return narrow / wide if wide else 1.0


def _weights_cycles(shape: SumsShape, element: int, all_weights: int, target: Target) -> float:
    size = shape.weights * element
    source = source_of(size if shape.passes > 1 else max(size, all_weights * element / ELEMENT), target)
    return shape.passes * move_cycles(size, source, target)


def rounding_gains(share: float, fastest: float = 1.0) -> bool:
    """Whether a `share` of the direct sums' time is a gain where the fastest algorithm for float32 takes `fastest` of
    that."""
    return share <= GAIN * fastest
