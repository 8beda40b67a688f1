"""Factors that stay the same while a loop sums: they multiply its sum, and not each of its terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.ir.core import Func, Op, Value, erase_dead, insert_before
from tilewright.ir.scalar import identity, scalar_operation
from tilewright.ir.sym import ONE, ZERO, Sym
from tilewright.ir.types import ScalarType
from tilewright.loops.analysis.deps import Accumulation, accumulation_of
from tilewright.loops.analysis.linear import Linear, Summand, stores_to
from tilewright.loops.analysis.region import new_tile, tile_axes
from tilewright.loops.conditions.simplify import PURE
from tilewright.loops.edit import (
    TakenNames,
    block_of,
    body_of,
    buffer_type,
    describe,
    enclosing,
    extent_of,
    is_loop,
    loop_var,
    names_in,
    nest_of,
    places_of,
    refuse,
    rename_vars,
)
from tilewright.loops.primitive import primitive
from tilewright.loops.storage.rfactor import rfactor

STEP = "factor_out"


@dataclass(frozen=True, eq=False)
class Alone:
    """Sums of the other operand alone: the loops that clear them, those over them around what adds them up, and the
    loops over their terms."""

    buffer: Value
    clear: list[Op]
    sums: list[Op]
    terms: list[Op]


@dataclass(frozen=True, eq=False)
class Factored:
    """The tile of partial sums, the loops that clear it and those that add it, times its factors, to the buffer; and
    the sums of the other operand, where the terms have summands that stay."""

    buffer: Value
    clear: list[Op]
    add: list[Op]
    alone: Alone | None = None


@primitive
def factor_out(func: Func, buffer: Value, loop: Op) -> Factored:
    """Let `loop` sum from nothing, as `rfactor` does, without the factors of its terms that stay the same meanwhile.

        for k in 0..8 {
          v[c] = q[k, c] * s[c] - m[c]
          y[c] += x[k] * v[c]
        }

    becomes

        u[0] = 0
        for k in 0..8 { u[0] += x[k] }
        t[c] = 0
        for k in 0..8 {
          v[c] = q[k, c]
          t[c] += x[k] * v[c]
        }
        y[c] += t[c] * s[c] - u[0] * m[c]

    The factors may be in the terms themselves, as those of `x[k] * s[c]`, or, as here, in what is computed in registers
    for one factor of them. What is added up is rounded differently. ScheduleError where the loop does anything else
    with the buffer, or nothing of its terms stays.
    """
    term = _only_term(buffer, loop)
    around = _around(term.store, loop)
    filled = _filled(term, loop)
    if filled is None:
        linear = Linear(loop, frozenset(map(loop_var, around)), term.idx)
        parts = linear.parts(term.value)
    else:
        linear = Linear(loop, filled.inside, (filled.column,))
        parts = linear.parts(filled.store.operands[0])
    varying = [p for p in parts if p.varies is not None]
    if len(varying) != 1 or not (varying[0].factors or len(parts) > 1) or (filled is None and len(parts) > 1):
        refuse(STEP, buffer, f"no factor of its terms stays the same in {describe(loop)}")
    row = (*term.idx[:-1], ZERO)
    moved = term.idx[-1] - filled.read.attrs["idx"][-1] if filled is not None else ZERO
    made = rfactor(func, buffer, loop)
    alone = None
    if filled is not None and len(parts) > 1:
        alone = _sum_alone(names_in(func), buffer, row, filled.other, around, loop)
    old = body_of(made.add[-1]).ops[-4]
    places = old.attrs["idx"] if filled is None else (old.attrs["idx"][-1] - moved,)
    copies = _Copies(linear, places)
    reader = term.combine if filled is None else filled.store
    replaced = term.value if filled is None else filled.store.operands[0]
    reader.set_operands([varying[0].varies if v is replaced and varying[0].varies else v for v in reader.operands])
    _add_with_factors(made.add, copies, parts, None if alone is None else alone.buffer)
    erase_dead(block_of(reader), lambda op: op.name in PURE)
    return Factored(made.buffer, made.clear, made.add, alone)


# What is summed


def _only_term(buffer: Value, loop: Op) -> Accumulation:
    """The one statement of the loop that adds to the buffer, in loops alone."""
    terms = [accumulation_of(op) for op in stores_to(loop, buffer)]
    (term,) = terms if len(terms) == 1 else (None,)
    if term is None or not term.is_sum or not term.idx or "guard" in term.store.attrs:
        refuse(STEP, buffer, f"{describe(loop)} does more with it than to add up one term")
    if not all(map(is_loop, _around(term.store, loop))):
        refuse(STEP, buffer, f"its terms in {describe(loop)} have conditions")
    if any(loop_var(loop) in i.vars for i in term.idx):
        refuse(STEP, buffer, f"{describe(loop)} adds to another element each time")
    return term


def _around(op: Op, loop: Op) -> list[Op]:
    """The loops around it from `loop` on."""
    around = enclosing(op)
    return around[around.index(loop) :]


@dataclass(frozen=True, eq=False)
class _Filled:
    """A factor of the terms that one `store` in the loop fills in registers, for its `column`, and `read` loads; and
    the load of the other factor. `inside` are the variables of the loops around the store."""

    store: Op
    read: Op
    other: Op
    inside: frozenset[Sym]

    @property
    def column(self) -> Sym:
        column: Sym = self.store.attrs["idx"][-1]
        return column


def _filled(term: Accumulation, loop: Op) -> _Filled | None:
    """The factor of the term that is computed in registers; None where there is none that other loads leave alone."""
    op = term.value.op
    loads = [] if op is None or scalar_operation(op).linear != "each" else [v.op for v in op.operands]
    found = [o for o in loads if o is not None and o.name == "load"]
    read = next((o for o in found if _is_computed(o.operands[0], loop)), None)
    if len(found) != 2 or read is None:
        return None
    other = next((o for o in found if o is not read), read)
    inside = frozenset(map(loop_var, _around(term.store, loop)))
    (store,) = stores_to(loop, read.operands[0])
    column = read.attrs["idx"][-1]
    is_column = not (term.idx[-1] - column).vars & inside
    is_other = not any(i.vars & column.vars & inside for i in other.attrs["idx"])
    moves = any(loop_var(loop) in i.vars for i in other.attrs["idx"]) and "guard" not in read.attrs
    if not (is_column and is_other and moves) or stores_to(loop, other.operands[0]):
        return None
    if not all(d.is_const for d in buffer_type(term.buffer).shape[:-1]):
        return None
    return _Filled(store, read, other, frozenset(map(loop_var, _around(store, loop))))


def _is_computed(buffer: Value, loop: Op) -> bool:
    """Whether it is in registers, filled by one store in the loop and read by one load."""
    stores = stores_to(loop, buffer)
    if len(stores) != 1 or len(places_of(buffer)) != 2 or buffer_type(buffer).space != "reg":
        return False
    return bool(stores[0].attrs["idx"]) and all(map(is_loop, _around(stores[0], loop)))


# What becomes of it


def _sum_alone(
    names: TakenNames, buffer: Value, row: tuple[Sym, ...], other: Op, around: Sequence[Op], loop: Op
) -> Alone:
    """Add up the other factor alone before the loop of the products: of each row."""
    rows, read_by = (frozenset[Sym]().union(*(i.vars for i in idx)) for idx in (row, other.attrs["idx"]))
    sums = [o for o in around if loop_var(o) in rows]
    terms = [o for o in around if loop_var(o) in read_by - rows]
    scalar = ScalarType(buffer_type(buffer).dtype)
    shape = (*buffer_type(buffer).shape[:-1], ONE)
    tile = new_tile(STEP, buffer, shape, "reg")
    axes = tile_axes(names, shape)
    zero = Op("const", [], [scalar], {"value": identity("add", scalar.dtype)})
    clear = nest_of(axes, [zero, Op("store", [zero.result, tile], [], {"idx": tuple(v for v, _ in axes)})])
    old, read = Op("load", [tile], [scalar], {"idx": row}), other.clone({})
    total = Op("add", [old.result, read.result], [scalar])
    body = [old, read, total, Op("store", [total.result, tile], [], {"idx": row})]
    add = nest_of([(loop_var(o), extent_of(o)) for o in (*sums, *terms)], body)
    rename_vars(add[:1], names)
    assert tile.op is not None
    insert_before(loop, [tile.op, clear[0], add[0]])
    return Alone(tile, clear, add[: len(sums)], add[len(sums) :])


def _add_with_factors(loops: Sequence[Op], copies: _Copies, parts: Sequence[Summand], alone: Value | None) -> None:
    """Make the loops that add the tile to the buffer multiply it by its factors first, and add what is left."""
    old, tile, total, store = body_of(loops[-1]).ops[-4:]
    value = old.result
    for p in sorted(parts, key=lambda p: p.varies is None):
        found = tile.result
        if p.varies is None:
            assert alone is not None, "there are sums to multiply"
            row = Op("load", [alone], [old.result.type], {"idx": (*old.attrs["idx"][:-1], ZERO)})
            copies.ops.append(row)
            found = row.result
        for factor in p.factors:
            found = copies.apply("mul", found, copies.of(factor))
        value = copies.apply("sub" if p.negative else "add", value, found)
    insert_before(total, copies.ops)
    store.set_operands([value, store.operands[1]])
    total.erase()


@dataclass(eq=False)
class _Copies:
    """Copies of what stays, for elements at other `places`, and operations on them."""

    linear: Linear
    places: tuple[Sym, ...]
    ops: list[Op] = field(default_factory=list)
    made: dict[Value, Value] = field(default_factory=dict)

    def apply(self, name: str, a: Value, b: Value) -> Value:
        self.ops.append(Op(name, [a, b], [a.type]))
        return self.ops[-1].result

    def of(self, value: Value) -> Value:
        if value not in self.made:
            op = value.op
            assert op is not None
            if op.name != "load":
                for v in op.operands:
                    self.of(v)
            copy = op.clone(dict(self.made))
            for key in ("idx", "guard"):
                if key in copy.attrs:
                    copy.attrs[key] = self.linear.moved(copy.attrs[key], self.places)
            self.ops.append(copy)
            self.made[value] = copy.result
        return self.made[value]
