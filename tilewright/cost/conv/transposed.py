"""Transposed convolutions: as convolutions of their phases, or as blocks that are added up where they overlap."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.cost.conv.layouts import ELEMENT, PASSES
from tilewright.cost.core import begin_cycles, multiply_cycles, pass_cycles
from tilewright.target.target import VECTOR_BYTES, Target

TRANSFORMED = 2
"""Products of a convolution for one that Winograd's algorithm multiplies, with what its transforms take."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """A transposed convolution of one image: multiply-adds of the convolutions of its phases, which multiply padding
    (`may_transform`: Winograd's algorithm may compute them), and of the blocks that its elements give each;
    the elements of all `blocks`; and how many elements are looked at where they are added up."""

    by_phases: int
    may_transform: bool
    by_blocks: int
    blocks: int
    terms: int


def adds_up_blocks(shape: Overlap, target: Target) -> bool:
    """Whether to write the blocks and add them up takes less time than to multiply the padding of small images."""
    lanes = VECTOR_BYTES // ELEMENT
    by_phases = shape.by_phases / TRANSFORMED if shape.may_transform else shape.by_phases
    saved = multiply_cycles(by_phases - shape.by_blocks, ELEMENT, target)
    passes = pass_cycles(PASSES, target) * shape.blocks / lanes
    return saved > passes + begin_cycles(shape.terms / lanes, "loads", target)
