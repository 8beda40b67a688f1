"""What one instruction does, in terms that all machines share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from tilewright.asm.parse import Instruction


@dataclass(frozen=True, slots=True)
class Effects:
    """Counts of what instructions do with vector registers; of one, or summed up over several.

    multiply_adds: fused multiply-adds and dot products of groups, of vectors or of single elements.
    arithmetic: whatever occupies a vector unit, the multiply-adds included: also shuffles and conversions.
    loads: reads of memory into vector registers, alone or as an operand of arithmetic, apart from
    broadcasts: of one element to all lanes, or of one element that arithmetic then takes for all lanes.
    constants: those loads and broadcasts that read constants of the function.
    stores: writes of vector registers to memory.
    spills: loads and stores whose memory lies on the stack; they are counted as loads and stores too.
    gathers, scatters: accesses with an address for each lane. lane_moves: memory to or from one lane.
    calls, branches: of any kind.
    """

    instructions: int = 0
    multiply_adds: int = 0
    arithmetic: int = 0
    loads: int = 0
    broadcasts: int = 0
    constants: int = 0
    stores: int = 0
    spills: int = 0
    gathers: int = 0
    scatters: int = 0
    lane_moves: int = 0
    calls: int = 0
    branches: int = 0


@dataclass(frozen=True, slots=True)
class Described:
    """The effects of one instruction; `bits` is the width of its widest vector operand, or of the element
    where it works on one; `writes` numbers the vector register that it changes."""

    effects: Effects
    bits: int = 0
    writes: str = ""


Describe = Callable[[Instruction], Described]
"""Knows one instruction set."""


def total(effects: Iterable[Effects]) -> Effects:
    """The sum, count by count."""
    found = list(effects)
    return Effects(**{f.name: sum(getattr(e, f.name) for e in found) for f in fields(Effects)})
