"""How many elements a vector unit works on at a time."""

from __future__ import annotations

from tilewright.cost.machine.ways import room
from tilewright.target.machine import Accelerator

BLOCKS = 8
"""Of large work: the first block comes in and the last goes out with nothing beside them, an eighth of all each."""

LEAST = 2048
"""Elements of a block where there are more: the starts of copies and runs take the time of some hundreds."""

MOST_TAPS = 25
"""Of a depthwise kernel that is added up by elementwise work: each tap is an operand of it."""


def block_elements(elements: int, size: int, machine: Accelerator, memory: str) -> int:
    """Elements of a block of which each takes `size` bytes in a memory that holds two blocks."""
    fits = max(1, (room(machine, memory) - 1024) // (2 * size))
    return min(fits, max(LEAST, -(-elements // BLOCKS)))
