"""Which results of a kernel may take the place of an argument: those that write an element only after its last read.

Threads, vectors and unrolled loops keep the order of accesses within an iteration only, so a read and a write of one
element must lie in the same iteration of every loop around both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.loops.analysis.deps import Access, accesses, disjoint, separated
from tilewright.loops.analysis.injective import is_injective
from tilewright.loops.edit import address_of, body_of, is_loop
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.spec import versions_of

Pair = tuple[int, int]
"""Positions of an input and of an output among a kernel's arguments."""


def overwritable(func: Func) -> tuple[Pair, ...]:
    """Pairs (input, output) of arguments of one type that are proven to be right in the same memory.

    Constants are left out.
    """
    found = [set(_pairs(func, body)) for body in versions_of(func.body)]
    return tuple(sorted(set.intersection(*found)))


def _pairs(func: Func, body: Block) -> Iterator[Pair]:
    info = kernel_info(func)
    first = len(func.args) - info.outputs
    touched: dict[Value, list[_Numbered]] = {}
    for n, access in enumerate(accesses(body)):
        touched.setdefault(access.buffer, []).append((n, access))
    for o, target in enumerate(func.args[first:], first):
        stores = [(n, a) for n, a in touched.get(target, ()) if a.write]
        for i, source in enumerate(func.args[:first]):
            loads = touched.get(source, ())
            is_candidate = source.type == target.type and bool(loads) and i not in info.constants
            if is_candidate and all(_reads_first(load, store) for store in stores for load in loads):
                yield i, o


def copied(func: Func, nest: Op) -> Pair | None:
    """The pair, of those that may be in the same memory, of whose elements a nest of loops does nothing but copy some:
    it does nothing at all where they are."""
    pair = kept_in_place(func, nest)
    return pair if pair in kernel_info(func).inplace else None


def kept_in_place(func: Func, nest: Op) -> Pair | None:
    """The arguments of which a nest of loops does nothing but copy elements of one to the same places of the other."""
    inside = list(body_of(nest).walk()) if is_loop(nest) else []
    stores = [op for op in inside if op.name == "store"]
    if not stores or not moves(nest):
        return None
    pairs = {_moved(func, store) for store in stores}
    pair = pairs.pop()
    return None if pairs else pair


def moves(nest: Op) -> bool:
    """Whether a nest of loops does nothing but move elements."""
    return is_loop(nest) and all(is_loop(op) or op.name in ("load", "store") for op in body_of(nest).walk())


def _moved(func: Func, store: Op) -> Pair | None:
    """The arguments from which and to which a store moves an element, at the same place in both."""
    load, target = store.operands[0].op, store.operands[1]
    if load is None or load.name != "load" or load.attrs["idx"] != store.attrs["idx"]:
        return None
    source = load.operands[0]
    if "guard" in load.attrs or source not in func.args or target not in func.args:
        return None
    return func.args.index(source), func.args.index(target)


_Numbered = tuple[int, Access]
"""An access and its position in program order."""


def _reads_first(load: _Numbered, store: _Numbered) -> bool:
    """Whether the store is proven to write no element that the load reads later or in another iteration."""
    (at, a), (then, b) = load, store
    band = [x for x, y in zip(a.loops, b.loops, strict=False) if x is y]
    return _meet_in_one_round(a, b, band) and (at < then or disjoint(a, b, band))


def _meet_in_one_round(a: Access, b: Access, band: Sequence[Op]) -> bool:
    """Whether the two touch one element in the same iteration of all loops of `band` only."""
    same = a.idx == b.idx and a.loops == b.loops and not a.unknown
    if same and (is_injective((address_of(a.op),), band) or is_injective(a.idx, band)):
        return True
    return separated(a, b, band, {}) == set(band)
