"""Into how many parts the depth of a product is best cut on a device of many threads, each of which has an element of
the result."""

from __future__ import annotations

from tilewright.target.machine import HostLink

LEAST = 32
"""Elements of a part at least, of which parts are multiples: two steps of a tensor core."""

ELEMENT = 4
"""Bytes of a partial sum."""


def parts_of_depth(results: int, depth: int, read: int, link: HostLink) -> int:
    """The number of parts with which the product takes least time; 1 where it is best left whole. `read` are the bytes
    of both operands. Where parts are added up, partial sums are written and read, by one more kernel."""

    def seconds(parts: int) -> float:
        return max(_rounds(results * parts, depth // parts, link), read / link.bandwidth) + _added(results, parts, link)

    found = [n for n in range(1, max(1, depth // LEAST) + 1) if depth % n == 0 and (n == 1 or depth // n % LEAST == 0)]
    return min(found, key=lambda n: (seconds(n), n))


def _rounds(sums: int, depth: int, link: HostLink) -> float:
    """Seconds of so many sums of `depth` products: all threads together are no faster than the device, and one sum is
    no faster than one thread."""
    return 2 * sums * depth / min(link.operations, link.alone * sums)


def _added(results: int, parts: int, link: HostLink) -> float:
    if parts == 1:
        return 0
    return link.kernel + _rounds(results, parts, link) / 2 + 2 * ELEMENT * results * parts / link.bandwidth
