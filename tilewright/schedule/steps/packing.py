"""The packed layout of a constant operand: its elements in the order in which a loop nest reads them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Op
from tilewright.ir.sym import Sym, sym
from tilewright.loops.edit import buffer_type, enclosing_loops, extent_of, loop_var
from tilewright.loops.storage.packing import Packing
from tilewright.schedule.steps.access import variables


def packing_for(load: Op, loops: Sequence[Op], parts: Sequence[Op] = ()) -> Packing | None:
    """Packing for the operand of `load`, which `loops` (outermost first, with those around them) run over. Those of
    `parts` are laid out as if they were around the next loop along their axis.

    Each index must be a mixed-radix number of loop variables, like `16*co + ci`; None when one is not. What data choose
    is outside of all loops: the matrices of a stack stay apart.
    """
    around = [*enclosing_loops(loops[0]), *loops]
    order: dict[Sym, float] = {loop_var(o): n for n, o in enumerate(around)}
    extents = {loop_var(o): extent_of(o) for o in around}
    for chosen in variables(load.attrs["idx"]) - order.keys():
        most = chosen.bounds[1]
        order[chosen], extents[chosen] = -0.5, sym(0) if most is None else sym(most + 1)
    for part in (v for v in map(loop_var, parts) if v in order):
        along = {v for i in load.attrs["idx"] if part in i.vars for v in i.vars if extents.get(v, 1) != 1}
        order[part] = min((order[v] for v in along if order[v] > order[part]), default=order[part] + 0.5) - 0.5
    factors: list[tuple[int, ...]] = []
    places: list[float] = []  # of each piece, the position of its loop in the nest
    for i, n in zip(load.attrs["idx"], buffer_type(load.operands[0]).shape, strict=True):
        pieces = _radix(i, extents)
        if pieces is None:
            return None
        if len(pieces) == 1 and n.is_const and pieces[0][1] > n.value:
            pieces.insert(0, (None, 1))  # a vector that is longer than the axis gets zeros after it
        factors.append(tuple(size for _, size in pieces[1:]))
        places += [order[v] if v is not None else -1 for v, _ in pieces]
    numbered = sorted(range(len(places)), key=lambda piece: places[piece])
    return Packing(tuple(factors), tuple(numbered))


def _radix(i: Sym, extents: dict[Sym, Sym]) -> list[tuple[Sym | None, int]] | None:
    """Pieces (variable, extent) of an index, most significant first; the extent of the first is not used."""
    if i.is_const:
        return [(None, 1)]
    moving = [term for term in i.terms if extents.get(term[0]) != 1]
    terms = sorted(moving, key=lambda term: -term[1])
    if not terms:
        return [(None, 1)]
    pieces: list[tuple[Sym | None, int]] = []
    step = 1
    for v, coef in reversed(terms):
        if v not in extents or coef != step:
            return None
        extent = extents[v]
        if v is not terms[0][0]:
            if not extent.is_const:
                return None
            step *= extent.value
        pieces.insert(0, (v, extent.value if extent.is_const else 0))
    return pieces
