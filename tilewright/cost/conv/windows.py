"""Pooling with large windows: which way reads fewer elements."""

from __future__ import annotations

LEAST_SAVING = 1
"""How many times more elements the direct way must read, beside what passes and kernels cost."""

STORED = 12
"""Reads of elements, in a cache of the core, that it costs to write one to memory and to read it from there."""

KERNEL = 16_000
"""Reads of elements that take as long as a kernel is begun and ended."""

LONGEST_FILTER = 4096
"""Elements of a filter along an axis that are looked at one by one for those that meet padding alone."""

STRIDED = 3
"""Reads of elements side by side that take as long as one of vectors whose elements lie apart along a line: two loads,
which cross cache lines, and what picks from them."""

PASS = 4
"""Reads of elements that a pass of an axis costs as much as, where windows are reduced along that axis alone."""


def reads_of_line(elements: int, stride: int) -> int:
    """What so many reads of vectors along a line take, whose lanes are `stride` elements apart."""
    return elements * (STRIDED if stride > 1 else 1)


def doubling_reads(line: int, kernel: int) -> int:
    """Elements of a line that are read where windows of `kernel` elements grow by doubling: in the passes that double,
    and in those that join what the kernel has of the sizes."""
    return 2 * kernel.bit_length() * line


def grows_by_doubling(count: int, visits: int, line: int, kernel: int) -> bool:
    """Whether the windows along an axis should grow by doubling: there are `count` of them, each would visit `visits`
    elements, and they lie on a line of so many elements."""
    return count * visits > PASS * doubling_reads(line, kernel)


def is_worth_taking_apart(direct: int, apart: int, stored: int, kernels: int) -> bool:
    """Whether windows should be reduced along one axis after the other, of elements that are read in both ways, those
    that are `stored` between the axes, and the number of `kernels` that come in."""
    return direct > LEAST_SAVING * (apart + STORED * stored + KERNEL * kernels)
