"""Orders: the k greatest or least elements, and sorting as the case where k is all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, ceildiv, le, logical_not, lt, maximum, minimum, sym
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import Dim, checked_axis
from tilewright.ops.sorting import (
    SortEntries,
    SortEntry,
    entry_of,
    key_in,
    key_of,
    levels,
    merge_sort,
    pick,
    sift,
)
from tilewright.ops.traits.facts import FIRST, Traits

FEW = 8
"""So many elements at most are kept in registers."""

MANY = 64
"""Of so many elements for each that is wanted a heap finds these sooner than a search for the least of them, which
looks at all elements once for each binary digit."""

SHORT = 128
"""Of so many elements each counts those that precede it, which are a few vectors; of a fourth where few are wanted."""

COLUMNS, STRIP = 4, 256
"""So many columns at least are lanes of vectors, and so many at most share the rows that they read."""

TOGETHER = 4
"""Elements that others are compared with at once, so that a count is loaded and stored less often."""

BLOCK = 32
"""Elements whose greatest is compared at once with the last of those that are kept."""


def _topk_types(x: TensorType, *, k: Dim, axis: int, largest: bool = True) -> tuple[TensorType, ...]:
    a = checked_axis(axis, x.rank)
    count, size = sym(k), x.shape[a]
    if (highest := (size - count).bounds[1]) is not None and highest < 0:
        raise ValueError(f"{count} elements of {size} are too many")
    if (lowest := count.bounds[0]) is not None and count.is_const and lowest < 0:
        raise ValueError(f"{count} elements are too few")
    shape = tuple(count if n == a else d for n, d in enumerate(x.shape))
    return TensorType(x.dtype, shape), TensorType(dt.i64, shape)


@irregular(_topk_types)
def topk(
    t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, k: Dim, axis: int, largest: bool = True
) -> None:
    """The `k` greatest (or least) elements along `axis` in order, and their positions (i64).

    Of equal elements the one at the lower position comes first; NaN counts as the greatest. Elements of short rows
    count those that precede them. A few of many are kept while the others pass by, in registers or in a heap; otherwise
    they are picked out, and sorted.
    """
    (x,), (values, positions) = inputs, outputs
    a = checked_axis(axis, x.rank)
    others = [d for n, d in enumerate(x.shape) if n != a]
    size, count = x.shape[a], sym(k)
    is_few = count.is_const and count.value <= FEW
    columns = product(x.shape[a + 1 :])
    if is_few and not (columns.is_const and columns.value < COLUMNS):
        _keep_in_columns(t, x, values, positions, a, count.value, largest)
        return
    with t.loop(product(others), "row", "parallel") as row:
        outer = unflattened(row, others)

        def key(j: Sym) -> Scalar:
            return key_of(t, x[with_axis(outer, a, j)], largest)

        def give(ordered: SortEntries) -> None:
            with t.loop(count, "rank") as rank:
                position, place = ordered[rank].position, with_axis(outer, a, rank)
                source = t.bind(position, "position")
                values.store(place, x[with_axis(outer, a, source)])
                positions.store(place, position)

        is_short = le(size, SHORT // 4 if is_few else SHORT)
        with t.when(is_short):
            give(_by_ranks(t, key, x.dtype, size, count))
        if is_short.is_const and is_short.value:
            return
        with t.when(logical_not(is_short)):
            if is_few:
                give(_kept_in_registers(t, key, x.dtype, size, count))
                return
            is_part = le(count * MANY, size)
            heap = SortEntries.allocated(t, x.dtype, count)
            with t.when(is_part, le(1, count)):
                _keep_in_heap(t, key, x.dtype, heap, size, count)
                give(heap)
            if not (is_part.is_const and is_part.value):
                with t.when(logical_not(is_part)):
                    give(_picked_and_sorted(t, key, x.dtype, size, count))


topk.declares(Traits(chooses=FIRST, is_exact=True))


Key = Callable[[Sym], Scalar]
"""The key of the element at a position of a row."""


def _keep_in_columns(
    t: ScalarBuilder, x: Array, values: Array, positions: Array, axis: int, count: int, largest: bool
) -> None:
    """A few of each column: each element takes the place of the first one kept that it precedes, which goes on to the
    next place, and so on; many columns do so at once."""
    before, size, after = product(x.shape[:axis]), x.shape[axis], product(x.shape[axis + 1 :])
    strip = minimum(sym(STRIP), after)
    strips = maximum(ceildiv(after, STRIP), 1)
    with t.loop(before * strips, "strip", "parallel") as k:
        row, first = (k, sym(0)) if strips == 1 else (k // strips, k % strips * STRIP)
        width = strip if strips == 1 else minimum(strip, after - first)
        outer = unflattened(row, x.shape[:axis])

        def place(position: Sym, column: Sym) -> tuple[Sym, ...]:
            return (*outer, position, *unflattened(first + column, x.shape[axis + 1 :]))

        kept = [SortEntries.allocated(t, x.dtype, strip) for _ in range(count)]
        with t.loop(width, "l") as column:
            for entries in kept:
                entries.store(column, _last_entry(t, x.dtype))
        with t.loop(size, "j") as j, t.loop(width, "l") as column:
            entry = entry_of(t, key_of(t, x[place(j, column)], largest), t.index(j))
            for entries in kept:
                present = entries[column]
                precedes = entry.precedes(present)
                entries.store(column, entry.where(precedes, present))
                entry = present.where(precedes, entry)
        for rank, entries in enumerate(kept):
            with t.loop(width, "l") as column:
                position = entries[column].position
                values.store(place(sym(rank), column), x[place(t.bind(position, "position"), column)])
                positions.store(place(sym(rank), column), position)


def _by_ranks(t: ScalarBuilder, key: Key, dtype: DType, size: Sym, count: Sym) -> SortEntries:
    """The first `count` entries of a short row, in order: each goes where as many stand before it as precede it."""
    short = minimum(size, SHORT)
    entries, ordered = (SortEntries.allocated(t, dtype, n) for n in (short + TOGETHER - 1, count + 1))
    ranks = t.alloc(dt.i64, (short,))
    with t.loop(short, "j") as j:
        entries.store(j, entry_of(t, key(j), t.index(j)))
        ranks.store((j,), 0)
    with t.loop(TOGETHER - 1, "j") as j:
        entries.store(short + j, _last_entry(t, dtype))
    with t.loop(ceildiv(short, TOGETHER), "others") as group:
        others = [entries[group * TOGETHER + k] for k in range(TOGETHER)]
        with t.loop(short, "j") as j:
            before = (other.precedes(entries[j]).cast(dt.i64) for other in others)
            ranks.store((j,), sum(before, ranks[j]))
    with t.loop(short, "j") as j:
        ordered.store(minimum(t.bind(ranks[j], "at"), count), entries[j])
    return ordered


def _last_entry(t: ScalarBuilder, dtype: DType) -> SortEntry:
    """What all entries of elements of a dtype precede."""
    return SortEntry(t.const(-(1 << 63), dt.i64), t.const((1 << 63) - 1, dt.i64) if dtype.bits > 32 else None)


def _kept_in_registers(t: ScalarBuilder, key: Key, dtype: DType, size: Sym, count: Sym) -> SortEntries:
    """The first `count` entries, in order: each that comes before the last one pushes it out."""
    kept = SortEntries.allocated(t, dtype, count, "reg")
    with t.loop(count, "rank", "unroll") as rank:
        kept.store(rank, _last_entry(t, dtype))

    def put(entry: SortEntry, comes_before: Callable[[SortEntry], Scalar]) -> None:
        """From the last one on: what comes first stays, the others move by one, and the entry takes the gap."""
        with t.loop(count - 1, "rank", "unroll") as rank:
            at = count - 1 - rank
            before, present = kept[at - 1], kept[at]
            moved = entry.where(comes_before(present), present)
            kept.store(at, before.where(comes_before(before), moved))
        first = kept[sym(0)]
        kept.store(sym(0), entry.where(comes_before(first), first))

    if count.value:
        with t.loop(count, "j") as j:
            entry = entry_of(t, key(j), t.index(j))
            put(entry, entry.precedes)
        _pass_by(t, key, dtype, count, size, lambda: kept[count - 1], lambda entry: put(entry, entry.exceeds))
    return kept


def _keep_in_heap(t: ScalarBuilder, key: Key, dtype: DType, heap: SortEntries, size: Sym, count: Sym) -> None:
    """The first `count` entries, in order."""
    depth = levels(t, count)
    with t.loop(count, "j") as j:
        heap.store(j, entry_of(t, key(j), t.index(j)))
    with t.loop(count // 2, "node") as node:
        start = count // 2 - 1 - node
        sift(t, heap, start, heap[start], count, depth)

    _pass_by(t, key, dtype, count, size, lambda: heap[sym(0)], lambda entry: sift(t, heap, 0, entry, count, depth))
    with t.loop(count - 1, "place") as place:
        last = count - 1 - place
        moved, root = heap[last], heap[sym(0)]
        heap.store(last, root)
        sift(t, heap, 0, moved, last, depth)


def _picked_and_sorted(t: ScalarBuilder, key: Key, dtype: DType, size: Sym, count: Sym) -> SortEntries:
    """The first `count` entries, in order."""
    entries, spare = (SortEntries.allocated(t, dtype, n) for n in (count + 1, count))
    with t.when(lt(count, size)):
        keys = t.alloc(dt.i64 if dtype.bits > 32 else dt.i32, (size,))
        with t.loop(size, "j") as j:
            keys.store((j,), key(j))
        pick(t, keys, count, entries)
    with t.when(le(size, count)), t.loop(count, "j") as j:
        entries.store(j, entry_of(t, key(j), t.index(j)))
    merge_sort(t, entries, spare, count)
    return entries


def _pass_by(
    t: ScalarBuilder,
    key: Key,
    dtype: DType,
    begin: Sym,
    size: Sym,
    last: Callable[[], SortEntry],
    put: Callable[[SortEntry], None],
) -> None:
    """`put` the entries from `begin` on that precede the `last` of those kept, which are at lower positions: few of
    many blocks have any."""

    def put_if_before(found: Scalar, place: Sym) -> None:
        with t.when(found.cast(dt.i64) > key_in(last())):
            put(entry_of(t, found, t.index(place)))

    keys = t.alloc(dt.i64 if dtype.bits > 32 else dt.i32, (BLOCK,))
    with t.loop((size - begin) // BLOCK, "block") as block:
        first = begin + block * BLOCK
        with t.loop(BLOCK, "j") as j:
            keys.store((j,), key(first + j))
        best = t.alloc(keys.dtype, (1,), "reg")
        best.store((0,), keys[0])
        with t.loop(BLOCK, "j") as j:
            best.store((0,), t.apply("max", best[0], keys[j]))
        with t.when(best[0].cast(dt.i64) > key_in(last())), t.loop(BLOCK, "j") as j:
            put_if_before(keys[j], first + j)
    with t.loop((size - begin) % BLOCK, "j") as j:
        place = size - (size - begin) % BLOCK + j
        put_if_before(key(place), place)


@topk.requires
def _enough_elements(x: TensorType, *, k: Dim, axis: int, largest: bool) -> tuple[Sym, str]:
    count, size = sym(k), x.shape[checked_axis(axis, x.rank)]
    return le(
        count, size
    ), f"the {count} greatest or least of {size} elements: it must be that {le(count, size)}"


def unflattened(position: Sym, shape: Sequence[Sym]) -> tuple[Sym, ...]:
    """The index of the element at a row-major `position` of a tensor of `shape`."""
    index: list[Sym] = []
    for d in reversed(shape[1:]):
        d = sym(1) if d == 0 else d  # then there is no element, nor a position
        index.append(position % d)
        position = position // d
    return (position, *reversed(index)) if shape else ()


def with_axis(outer: Sequence[Sym], axis: int, position: Sym) -> tuple[Sym, ...]:
    """An index of all axes but one, with that one put in."""
    return (*outer[:axis], position, *outer[axis:])
