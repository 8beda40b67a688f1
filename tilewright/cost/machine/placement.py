"""Where the operators of a model are computed that a device beside a CPU could: the assignment that takes least time.

Each operator takes some seconds here and some there, and each value that is made on one side and read on the other is
copied, once. What that comes to is least for a minimum cut of a network: operators are its nodes, on the side of the
source those of the CPU (Stone, "Multiprocessor scheduling with the aid of network flow algorithms", 1977).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.cost.core import source_of
from tilewright.cost.parallel import threads
from tilewright.cost.roofline import KernelWork, kernel_cycles
from tilewright.target.machine import HostLink
from tilewright.target.target import Target

TRIPS = 16
"""Iterations that are expected of a loop whose end is computed."""

_UNIT = 1e12
"""Capacities are whole picoseconds, so that a flow has an end."""
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class OpWork:
    """What an operator does, as often as it runs: multiply-adds of products, other scalar operations, and bytes that
    are read and written. Of a `serial` one each step may need the one before."""

    products: float = 0
    operations: float = 0
    bytes: float = 0
    serial: bool = False
    times: int = 1


@dataclass(frozen=True)
class Moved:
    """A value that some operators read: the number of its maker, those of its readers, -1 for what is always on the
    CPU, its bytes, and how often it is made."""

    maker: int
    readers: tuple[int, ...]
    bytes: float
    times: int = 1


CLOCK = 3e9
"""Cycles a second that are expected of the cores of a CPU of which nothing else is known."""


def host_seconds(work: OpWork, target: Target, clock: float = CLOCK) -> float:
    """On a CPU whose cores have so many cycles a second."""
    moved = ((work.bytes, source_of(work.bytes, target)),)
    kernel = KernelWork({4: work.products} if work.products else {}, work.operations, moved=moved)
    return work.times * kernel_cycles(kernel, target, 1 if work.serial else threads(target)) / clock


def device_seconds(work: OpWork, link: HostLink) -> float:
    """On the device, in a call with others."""
    rate = link.alone if work.serial else link.operations
    return work.times * max((2 * work.products + work.operations) / rate, work.bytes / link.bandwidth)


def copy_seconds(moved: Moved, link: HostLink) -> float:
    """Of a copy to the other side. A call of the device has one copy there and one back at least."""
    return moved.times * (link.call / 2 + moved.bytes / link.bus)


def cheapest_sides(
    here: Sequence[float], there: Sequence[float | None], moved: Iterable[tuple[Moved, float]]
) -> list[bool]:
    """Which operators are best computed on the device, where each takes so many seconds `here`, on the CPU, and `there`
    (None: the device cannot), and each value takes some to be copied. Of equal assignments that with most operators on
    the device."""
    network = _Network(len(here) + 2)
    cpu, device = len(here), len(here) + 1
    for k, (own, other) in enumerate(zip(here, there, strict=True)):
        network.join(k, device, round(own * _UNIT))
        network.join(cpu, k, _NEVER if other is None else round(other * _UNIT))
    for value, seconds in moved:
        maker, *readers = (cpu if k < 0 else k for k in (value.maker, *value.readers))
        back, forth, cost = network.node(), network.node(), round(seconds * _UNIT)
        network.join(back, maker, cost)
        network.join(maker, forth, cost)
        for reader in readers:
            network.join(reader, back, _NEVER)
            network.join(forth, reader, _NEVER)
    reached = network.cut(cpu, device)
    return [k not in reached for k in range(len(here))]


@dataclass(frozen=True)
class Held:
    """What a device has to hold for some operators to run there: the bytes of a constant, and the numbers of these."""

    readers: tuple[int, ...]
    bytes: int


def cheapest_within(
    here: Sequence[float], there: Sequence[float | None], moved: Sequence[tuple[Moved, float]], held: Sequence[Held],
    capacity: int,
) -> list[bool]:
    """As `cheapest_sides`, where the device holds so many bytes of constants. Each byte has a price, the least one with
    which what is chosen fits: so the device has what saves most time a byte, and what is left of its memory takes
    operators that still fit, those that save most first."""

    def with_price(price: float) -> list[bool]:
        priced = [(Moved(-1, each.readers, each.bytes), price * each.bytes) for each in held]
        return cheapest_sides(here, there, [*moved, *priced])

    found = with_price(0)
    if bytes_held(found, held) <= capacity:
        return found
    low, high = 0.0, (1 + sum(here)) / max(1, min(each.bytes for each in held if each.bytes))
    found = with_price(high)  # nothing is worth that
    for _ in range(_HALVINGS):
        price = (low * high) ** 0.5 if low else high * 1e-3
        sides = with_price(price)
        if bytes_held(sides, held) <= capacity:
            found, high = sides, price
        else:
            low = price
    return _filled(found, here, there, moved, held, capacity)


_HALVINGS = 24
"""Prices that are tried between one that is too low and one that is not."""


def bytes_held(sides: Sequence[bool], held: Sequence[Held]) -> int:
    """Bytes of constants that the device holds."""
    return sum(each.bytes for each in held if any(sides[k] for k in each.readers))


def _filled(
    sides: list[bool], here: Sequence[float], there: Sequence[float | None], moved: Sequence[tuple[Moved, float]],
    held: Sequence[Held], capacity: int,
) -> list[bool]:
    """With more operators on the device, one after the other, as long as these fit and make the call shorter."""

    def cost(sides: Sequence[bool]) -> float:
        at = [*sides, False]  # the last one is -1
        own = sum((there[k] or 0.0) if on else here[k] for k, on in enumerate(sides))
        return own + sum(s for v, s in moved if len({at[k] for k in (*v.readers, v.maker)}) > 1)

    least = cost(sides)
    saved = {k: own - other for k, (own, other) in enumerate(zip(here, there, strict=True)) if other is not None}
    for k in sorted(saved, key=saved.__getitem__, reverse=True)[:_MOST_TRIED]:
        tried = [*sides[:k], True, *sides[k + 1 :]]
        if not sides[k] and bytes_held(tried, held) <= capacity and (found := cost(tried)) < least:
            sides, least = tried, found
    return sides


_MOST_TRIED = 64
"""Operators that are tried one by one."""


class _Network:
    """Dinic's algorithm: flow along shortest ways, until none is left."""

    def __init__(self, nodes: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(nodes)]  # of each node, by number
        self.ends: list[int] = []
        self.room: list[int] = []  # an edge and the one in its opposite direction follow each other

    def node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def join(self, a: int, b: int, room: int) -> None:
        for start, end, own in ((a, b, room), (b, a, 0)):
            self.edges[start].append(len(self.ends))
            self.ends.append(end)
            self.room.append(own)

    def cut(self, source: int, sink: int) -> set[int]:
        """The nodes on the side of the source, as few as there may be."""
        while sink in (depth := self._depths(source)):
            following = [0] * len(self.edges)
            while self._pushed(source, sink, depth, following):
                pass
        return set(depth)

    def _depths(self, source: int) -> dict[int, int]:
        found, waiting = {source: 0}, deque([source])
        while waiting:
            node = waiting.popleft()
            for edge in self.edges[node]:
                if self.room[edge] and self.ends[edge] not in found:
                    found[self.ends[edge]] = found[node] + 1
                    waiting.append(self.ends[edge])
        return found

    def _pushed(self, source: int, sink: int, depth: dict[int, int], following: list[int]) -> bool:
        """Whether there was a way more."""
        way: list[int] = []
        node = source
        while node != sink:
            if following[node] == len(self.edges[node]):
                if not way:
                    return False
                node = self.ends[way.pop() ^ 1]
                following[node] += 1
                continue
            edge = self.edges[node][following[node]]
            end = self.ends[edge]
            if self.room[edge] and depth.get(end) == depth[node] + 1:
                way.append(edge)
                node = end
            else:
                following[node] += 1
        least = min(self.room[edge] for edge in way)
        for edge in way:
            self.room[edge] -= least
            self.room[edge ^ 1] += least
        return True
