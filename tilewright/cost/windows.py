"""Pooling with large windows: which way reads fewer elements."""

from __future__ import annotations

WORTH = 32
"""How many times more elements the direct way must read: a pass over a tensor in memory costs about as much as a dozen
reads of elements that a cache of the core holds, and each kernel is begun and ended. Windows of up to 13 x 13, as
networks have them, stay as they are."""

PASS = 4
"""Reads of elements that a pass of an axis costs as much as, where windows are reduced along that axis alone."""


def doubling_reads(line: int, kernel: int) -> int:
    """Elements of a line that are read where windows of `kernel` elements grow by doubling: in the passes that double,
    and in those that join what the kernel has of the sizes."""
    return 2 * kernel.bit_length() * line


def grows_by_doubling(count: int, visits: int, line: int, kernel: int) -> bool:
    """Whether the windows along an axis should grow by doubling: there are `count` of them, each would visit `visits`
    elements, and they lie on a line of so many elements."""
    return count * visits > PASS * doubling_reads(line, kernel)


def is_worth_taking_apart(direct: int, apart: int) -> bool:
    """Whether windows should be reduced along one axis after the other, of elements that are read in both ways."""
    return direct > WORTH * apart
