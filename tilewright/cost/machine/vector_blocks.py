"""How many elements a vector unit works on at a time."""

from __future__ import annotations

BLOCKS = 8
"""Of large work: the first block comes in and the last goes out with nothing beside them, an eighth of all each."""

LEAST = 2048
"""Elements of a block where there are more: the starts of copies and runs take the time of some hundreds."""

MOST_TAPS = 25
"""Of a depthwise kernel that is added up by elementwise work: each tap is an operand of it."""


def block_elements(elements: int) -> int:
    """Elements of a block, where the memory has room for two of them."""
    return max(LEAST, -(-elements // BLOCKS))
