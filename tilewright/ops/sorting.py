"""Sorting in loop programs: elements become integers that compare as the elements do, the greatest first.

Elements of up to 32 bits are one integer together with their position: the key above, and below it a number that is
larger for lower positions, so that entries are never equal, and order and positions cost nothing beyond the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, ceildiv, le, lt, maximum, minimum, sym
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder

LOW = (1 << 32) - 1
"""The lower half of an entry of one integer."""


@dataclass(frozen=True, slots=True)
class SortEntry:
    """A key with its position: one integer, or two."""

    key: Scalar
    place: Scalar | None

    def precedes(self, other: SortEntry) -> Scalar:
        """Is it greater or, of equal keys, at the lower position?"""
        before = self.key > other.key
        if self.place is None or other.place is None:
            return before
        return before | (self.key.eq(other.key) & (self.place < other.place))

    def exceeds(self, other: SortEntry) -> Scalar:
        """Does it precede one at a lower position?"""
        return self.key > other.key

    def where(self, condition: Scalar, other: SortEntry) -> SortEntry:
        """This entry where a condition holds, else the other one."""
        t = condition.trace
        key = t.select(condition, self.key, other.key)
        if self.place is None or other.place is None:
            return SortEntry(key, None)
        return SortEntry(key, t.select(condition, self.place, other.place))

    @property
    def reversed(self) -> SortEntry:
        """The entry that precedes just those that this one follows."""
        t = self.key.trace
        return SortEntry(t.apply("xor", self.key, -1), None if self.place is None else t.apply("xor", self.place, -1))

    @property
    def position(self) -> Scalar:
        return (self.key & LOW).trace.apply("xor", self.key & LOW, LOW) if self.place is None else self.place


@dataclass(frozen=True, slots=True)
class SortEntries:
    """Memory for entries."""

    keys: Array
    places: Array | None

    @classmethod
    def allocated(cls, t: ScalarBuilder, dtype: DType, size: Sym, space: str = "scratch") -> Self:
        """Room for `size` elements of a dtype."""
        keys = t.alloc(dt.i64, (size,), space)
        return cls(keys, t.alloc(dt.i64, (size,), space) if dtype.bits > 32 else None)

    def __getitem__(self, at: Sym) -> SortEntry:
        return SortEntry(self.keys[at], None if self.places is None else self.places[at])

    def store(self, at: Sym, entry: SortEntry) -> None:
        self.keys.store((at,), entry.key)
        if self.places is not None and entry.place is not None:
            self.places.store((at,), entry.place)


def key_of(t: ScalarBuilder, value: Scalar, largest: bool) -> Scalar:
    """An integer (i32, or i64 for elements of 64 bits) that is the greater, the earlier the value comes: the largest
    (or least) first. NaN counts as the greatest value, and zeros are equal."""
    key = _ordered(t, value)
    return key if largest else t.apply("xor", key, -1)


def entry_of(t: ScalarBuilder, key: Scalar, position: Scalar) -> SortEntry:
    """The entry of a key and a position."""
    if key.dtype is dt.i64:
        return SortEntry(key, position)
    return SortEntry(t.apply("shl", key.cast(dt.i64), 32) | t.apply("xor", position, LOW), None)


def key_in(entry: SortEntry) -> Scalar:
    """The key (i64) of an entry."""
    return entry.key if entry.place is not None else entry.key.trace.apply("shr", entry.key, 32)


def _ordered(t: ScalarBuilder, value: Scalar) -> Scalar:
    """An integer that compares as the value does."""
    whole = dt.i64 if value.dtype.bits > 32 else dt.i32
    least = -(1 << (whole.bits - 1))
    if not value.dtype.is_float:
        key = value.cast(whole)
        return t.apply("xor", key, least) if value.dtype in (dt.u32, dt.u64) else key
    x = value if whole is dt.i64 else value.cast(dt.f32)
    bits = t.bitcast(t.select(x.eq(0), 0.0, x), whole)
    ordered = t.apply("xor", bits, t.apply("shr", bits, whole.bits - 1) & (-1 - least))
    return t.select(t.apply("is_nan", x), -1 - least, ordered)


class Cell:
    """An integer of a loop program that changes."""

    def __init__(self, t: ScalarBuilder, start: Sym | int) -> None:
        self._trace = t
        self._memory = t.alloc(dt.i64, (1,), "reg")
        self.set(t.index(start))

    def set(self, value: Scalar) -> None:
        self._memory.store((0,), value)

    def add(self, value: Scalar) -> None:
        self.set(self.scalar + value)

    @property
    def scalar(self) -> Scalar:
        return self._memory[0]

    def index(self, name: str, lo: int = 0) -> Sym:
        """Its value now, which is at least `lo`."""
        return self._trace.bind(self.scalar, name, lo)


def levels(t: ScalarBuilder, size: Sym) -> Sym:
    """The least number of doublings of 1 that give more than `size`."""
    if size.is_const:
        return sym(size.value.bit_length())
    found = Cell(t, 0)
    power = Cell(t, 1)
    with t.loop(62, "bit"):
        found.add((power.scalar <= t.index(size)).cast(dt.i64))
        power.add(power.scalar)
    return found.index("levels")


def sift(t: ScalarBuilder, heap: SortEntries, start: Sym | int, entry: SortEntry, size: Sym, depth: Sym) -> None:
    """Put an entry into a heap, whose root is the last in the order, at `start` or below it."""
    gap, following = Cell(t, start), Cell(t, start)
    with t.loop(depth, "level"):
        first = 2 * following.index("node") + 1
        with t.when(lt(first, size)):
            second = minimum(first + 1, size - 1)
            low, high = heap[first], heap[second]
            takes_second = low.precedes(high)
            child = high.where(takes_second, low)
            place = t.select(takes_second, t.index(second), t.index(first))
            moves = entry.precedes(child)
            with t.when(moves):
                heap.store(gap.index("gap"), child)
                gap.set(place)
            following.set(t.select(moves, place, t.index(size)))
    heap.store(gap.index("gap"), entry)


def heapify(t: ScalarBuilder, heap: SortEntries, size: Sym, depth: Sym) -> None:
    """Make a heap of the first `size` entries, a number of `depth` binary digits: the lowest layers first, in which no
    entry sinks far."""
    width = Cell(t, 1)
    with t.loop(maximum(depth - 2, 0), "doubling"):
        width.add(width.scalar)
    with t.loop(maximum(depth - 1, 0), "layer") as layer:
        first = width.index("first", 1) - 1
        with t.loop(maximum(minimum(first + 1, size // 2 - first), 0), "node") as node:
            sift(t, heap, first + node, heap[first + node], size, layer + 1)
        width.set(t.apply("shr", width.scalar, 1))


def merge_sort(t: ScalarBuilder, entries: SortEntries, spare: SortEntries, count: Sym) -> None:
    """Bring the first `count` entries into order; `spare` is memory for as many."""
    width = Cell(t, 1)
    with t.loop(ceildiv(levels(t, count), 2), "pass"):
        narrow = width.index("width", 1)
        _merge(t, entries, spare, narrow, count)
        _merge(t, spare, entries, 2 * narrow, count)
        width.set(width.scalar * 4)


def _merge(t: ScalarBuilder, source: SortEntries, target: SortEntries, width: Sym, count: Sym) -> None:
    """Merge each two runs of so many entries. Of two complete runs the first half of the result is found from the
    front and the second one from the back: neither leaves its runs, and their steps overlap."""
    pairs = count // (2 * width)
    with t.loop(pairs, "runs") as runs:
        begin = 2 * width * runs
        end = begin + 2 * width
        low, high = Cell(t, begin), Cell(t, begin + width)
        low_end, high_end = Cell(t, begin + width - 1), Cell(t, end - 1)
        with t.loop(width, "at") as at:
            first, second = source[low.index("low")], source[high.index("high")]
            takes_low = first.precedes(second)
            target.store(begin + at, first.where(takes_low, second))
            low.add(takes_low.cast(dt.i64))
            high.add(t.apply("not", takes_low).cast(dt.i64))
            first, second = source[low_end.index("low")], source[high_end.index("high")]
            takes_high = first.precedes(second)
            target.store(end - 1 - at, second.where(takes_high, first))
            high_end.add(-takes_high.cast(dt.i64))
            low_end.add(-t.apply("not", takes_high).cast(dt.i64))
    begin = 2 * width * pairs
    middle = minimum(begin + width, count)
    low, high = Cell(t, begin), Cell(t, middle)
    with t.loop(count - begin, "at") as at:
        i, j = low.index("low"), high.index("high")
        first, second = source[minimum(i, middle - 1)], source[minimum(j, count - 1)]
        is_last = t.index(le(count, j), dt.bool_)
        takes_low = t.index(lt(i, middle), dt.bool_) & (is_last | first.precedes(second))
        target.store(begin + at, first.where(takes_low, second))
        low.add(takes_low.cast(dt.i64))
        high.add(t.apply("not", takes_low).cast(dt.i64))


def pick(t: ScalarBuilder, keys: Array, count: Sym, entries: SortEntries) -> None:
    """Store the entries of the `count` keys that come first, in the order of their positions; after them `entries` has
    room for one more. Of more than `count` keys the digits of the least one that is taken are found from the highest
    on, each by counting the keys that are not below a number: that takes few instructions, as vectors."""
    (size,), bits = keys.shape, keys.dtype.bits
    least = -(1 << (bits - 1))
    number_type = dt.i64 if size.bounds[1] is None or size.bounds[1] >= 1 << 31 else dt.i32

    def number_of(holds: Callable[[Scalar], Scalar]) -> Scalar:
        number = t.alloc(number_type, (1,), "reg")
        number.store((0,), 0)
        with t.loop(size, "j") as j:
            number.store((0,), number[0] + holds(keys[j]).cast(number_type))
        return number[0].cast(dt.i64)

    digits, passing = Cell(t, 0), Cell(t, size)
    with t.loop(bits, "digit") as digit, t.when(passing.scalar > t.index(count)):
        trial = digits.scalar | t.apply("shl", t.const(1, dt.i64), t.index(bits - 1 - digit))
        bound = (trial + least).cast(keys.dtype)
        number = number_of(lambda key: key >= bound)
        is_enough = number >= t.index(count)
        digits.set(t.select(is_enough, trial, digits.scalar))
        passing.set(t.select(is_enough, number, passing.scalar))
    last = (digits.scalar + least).cast(keys.dtype)
    at, equals = Cell(t, 0), Cell(t, 0)
    equals.set(t.index(count) - number_of(lambda key: key > last))
    with t.loop(size, "j") as j:
        is_equal = keys[j].eq(last)
        entries.store(at.index("at"), entry_of(t, keys[j], t.index(j)))
        at.add(((keys[j] > last) | (is_equal & (equals.scalar > 0))).cast(dt.i64))
        equals.add(-is_equal.cast(dt.i64))
