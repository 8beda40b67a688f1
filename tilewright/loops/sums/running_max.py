"""Sums of exponentials relative to their greatest exponent, in one pass: the greatest one so far, and sums that are
corrected where it grows (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Op, Value, insert_before
from tilewright.ir.scalar import converted_from, scalar_operation
from tilewright.ir.sym import ZERO, Sym, ceildiv, ge0, minimum, sym
from tilewright.ir.types import ScalarType
from tilewright.loops.analysis.bounds import Box
from tilewright.loops.analysis.deps import Access, Accumulation, accesses, accumulation_of, conflicts, ordered
from tilewright.loops.analysis.region import covers, new_tile, refuse_in_vector, tile_axes
from tilewright.loops.edit import (
    TakenNames,
    base_name,
    block_of,
    body_of,
    buffer_type,
    describe,
    enclosing_loops,
    extent_of,
    fresh_var,
    is_loop,
    kind_of,
    loop_var,
    names_in,
    nest_of,
    new_loop,
    places_of,
    put_ops,
    ranges_at,
    refuse,
    substitute_in,
    take_ops,
)
from tilewright.loops.primitive import primitive

STEP = "running_max"


@dataclass(frozen=True, eq=False)
class Running:
    """The loop over blocks, the exponentials of a block (as they are, and converted), the nests over rows that keep the
    greatest exponent and make the factors of it, and for each sum the nest that corrects it; `inner` are the loops over
    a block, one for each loop that was given."""

    loop: Op
    weights: list[Value]
    keep: Op
    factors: Op
    corrections: list[Op]
    inner: list[Op]


@primitive
def running_max(
    func: Func, maximum: Value, greatest: Op, weights: Op, sums: Sequence[Op], block: int, space: str = "scratch"
) -> Running:
    """Make one loop over blocks of the loops that find the `greatest` exponents, compute the exponentials relative to
    these, and add those up.

        for k in 0..n { for i { m[i] = max(m[i], x[i, k]) } }
        for k in 0..n { for i { p[i, k] = exp(x[i, k] - m[i]) } }
        for k in 0..n { for i { s[i] += p[i, k] * v[k] } }

    becomes

        for ko in 0..ceildiv(n, 4) {
          for i { f[i] = m[i] }
          for ki in 0..4 { for i { m[i] = max(m[i], x[i, 4*ko + ki]) } }
          for i { h[i] = select(m[i] == -inf, 0, m[i]); f[i] = exp(f[i] - h[i]) }
          for ki in 0..4 { for i { p[i, ki] = exp(x[i, 4*ko + ki] - h[i]) } }
          for i { s[i] = s[i] * f[i] }
          for ki in 0..4 { for i { s[i] += p[i, ki] * v[4*ko + ki] } }
        }

    Among the `sums` may be loops that do nothing but convert the exponentials for those behind. Behind the end of the
    last block x counts as -inf, and what exponentials are multiplied by as 0. Buffers that are new are in the memory
    `space`. Sums are rounded differently, and sums of rows that are -inf all over are 0 in place of NaN. ScheduleError
    where the loops are not of one block in this order and of one extent, do anything else, the sums do not begin at 0,
    or the exponentials are needed elsewhere.
    """
    refuse_in_vector(STEP, maximum, [*enclosing_loops(greatest), greatest])
    if block < 1:
        refuse(STEP, greatest, f"a block of {block} iterations is none")
    made = _Running(func, maximum, greatest, weights, list(sums), block, space)
    made.check()
    return made.run()


@dataclass(frozen=True, eq=False)
class _Sum:
    """A loop that adds up exponentials: its accumulation, the load of the exponential, and the row of the maximum that
    belongs to an element of the sum, in terms of the loop's variables."""

    loop: Op
    term: Accumulation
    load: Op
    row: tuple[Sym, ...]


@dataclass(eq=False)
class _Running:
    """The state of one application; nothing is changed before all is checked."""

    func: Func
    maximum: Value
    greatest: Op
    weights: Op
    sums: list[Op]
    block: int
    space: str

    def check(self) -> None:
        loops = self.loops = [self.greatest, self.weights, *self.sums]
        home = block_of(self.greatest)
        for a, b in pairwise(loops):
            if b.parent is not home or home.ops.index(b) <= home.ops.index(a):
                refuse(STEP, b, f"it does not follow {describe(a)} in its block")
        for loop in loops:
            if extent_of(loop) != extent_of(self.greatest) or kind_of(loop) != "serial":
                refuse(STEP, loop, f"it differs from {describe(self.greatest)} in extent or kind, or is not serial")
            if any(op.blocks and (not is_loop(op) or kind_of(op) != "serial") for op in loop.walk()):
                refuse(STEP, loop, "it holds more than serial loops")
        self._check_maximum()
        self._check_weights()
        self.stores, self.reads = [self.store], list[Op]()
        self.found = [s for s in map(self._sum, self.sums) if s is not None]
        self._check_needed()
        self._check_order(home.ops[home.ops.index(loops[0]) : home.ops.index(loops[-1])])

    def _check_maximum(self) -> None:
        self.peak = self._only_accumulation(self.greatest, "max")
        if self.peak.buffer is not self.maximum or not buffer_type(self.maximum).dtype.is_float:
            refuse(STEP, self.greatest, f"it does not find the greatest elements of {describe(self.maximum)}")
        self._check_covered(self.greatest, self.maximum)

    def _only_accumulation(self, loop: Op, combine: str) -> Accumulation:
        stores = [op for op in loop.walk() if op.name == "store"]
        found = accumulation_of(stores[0]) if len(stores) == 1 else None
        if found is None or found.combine.name != combine or "guard" in found.store.attrs:
            refuse(STEP, loop, f"it does more than to accumulate by {combine} in one place")
        if sum(op.name == "load" and op.operands[0] is found.buffer for op in loop.walk()) != 1:
            refuse(STEP, loop, f"it reads {describe(found.buffer)} besides")
        if any(loop_var(loop) in i.vars for i in found.idx):
            refuse(STEP, loop, "each of its iterations accumulates in another element")
        return found

    def _check_covered(self, loop: Op, buffer: Value) -> None:
        """All elements of a local buffer are what the loop accumulates in."""
        whole = Box(tuple(ZERO for _ in buffer_type(buffer).shape), buffer_type(buffer).shape)
        stores = [a for a in accesses(body_of(loop)) if a.buffer is buffer and a.write]
        if buffer.op is None or buffer.op.parent is not loop.parent or not covers(stores[0], whole):
            refuse(STEP, buffer, f"{describe(loop)} does not accumulate in all of it, or it is not of its block")

    def _check_weights(self) -> None:
        stores = [op for op in self.weights.walk() if op.name == "store"]
        power = stores[0].operands[0].op if len(stores) == 1 else None
        difference = power.operands[0].op if power is not None and power.name == "exp" else None
        said = scalar_operation(difference)
        is_less = said.linear == "together" and said.arity == 2 and not said.commutative
        if difference is None or not is_less or "guard" in stores[0].attrs:
            refuse(STEP, self.weights, "it computes no exponential of a difference")
        self.store, self.difference = stores[0], difference
        subtracted = difference.operands[1].op
        loads = [o for o in self.weights.walk() if o.name == "load" and o.operands[0] is self.maximum]
        if loads != [subtracted] or difference.operands[1].users != [difference]:
            refuse(STEP, self.weights, f"it does not subtract {describe(self.maximum)}, or reads it besides")
        self.shift = loads[0]
        self.powers = self.store.operands[1]
        idx, k = self.store.attrs["idx"], loop_var(self.weights)
        self.axes = [n for n, i in enumerate(idx) if k in i.vars]
        if len(self.axes) != 1 or idx[self.axes[0]] is not k or self.powers.op is None:
            refuse(STEP, self.powers, f"{describe(self.weights)} does not go along one axis of a local buffer")

    def _check_needed(self) -> None:
        if not self.found:
            refuse(STEP, self.weights, "nothing adds up the exponentials")
        known = {*self.stores, *self.reads}
        for buffer in self._powers():
            if any(op not in known for op in buffer.users):
                refuse(STEP, buffer, "the exponentials are needed elsewhere")

    def _powers(self) -> list[Value]:
        """The buffers of exponentials, the others converted from the first."""
        return [store.operands[1] for store in self.stores]

    def _sum(self, loop: Op) -> _Sum | None:
        """What a loop adds up; None for one that converts."""
        loads = [o for o in loop.walk() if o.name == "load" and o.operands[0] in self._powers()]
        if len(loads) != 1 or any(o.operands[0] is self.maximum for o in loop.walk() if o.name == "load"):
            refuse(STEP, loop, "it does not read one exponential alone")
        load, k = loads[0], loop_var(loop)
        if load.attrs["idx"][self.axes[0]] is not k or "guard" in load.attrs:
            refuse(STEP, loop, "it does not go along the exponentials")
        self.reads.append(load)
        if self._converts(loop, load):
            return None
        term = self._only_accumulation(loop, "add")
        self._check_term(term, load)
        self._check_covered(loop, term.buffer)
        self._check_zero(term.buffer, loop)
        row = self._row_of(load, loop)
        inside = {loop_var(o) for o in loop.walk() if is_loop(o)} - {*term.idx}
        if any(i.vars & inside for i in row):
            refuse(STEP, term.buffer, "one element of it adds up exponentials of several rows")
        return _Sum(loop, term, load, row)

    def _converts(self, loop: Op, load: Op) -> bool:
        """Whether a loop does nothing but to convert the exponentials, each in its own place."""
        stores = [op for op in loop.walk() if op.name == "store"]
        if len(stores) != 1 or _plain(stores[0].operands[0]) is not load.result or "guard" in stores[0].attrs:
            return False
        target = stores[0].operands[1]
        if target.op is None or target.op.parent is not loop.parent or stores[0].attrs["idx"] != load.attrs["idx"]:
            return False
        if buffer_type(target).shape != buffer_type(load.operands[0]).shape or target in self._powers():
            return False
        self.stores.append(stores[0])
        return True

    def _check_term(self, term: Accumulation, load: Op) -> None:
        """A term is the exponential, or its product with what is read elsewhere."""
        value = _plain(term.value)
        if value is load.result:
            return
        op = value.op
        factors = [] if op is None or scalar_operation(op).linear != "each" else [_plain(v) for v in op.operands]
        if load.result not in factors:
            refuse(STEP, term.buffer, "its terms are no products of an exponential")
        (other,) = [v for v in factors if v is not load.result] or [load.result]
        if other.op is None or other.op.name != "load" or other is load.result:
            refuse(STEP, term.buffer, "its terms are no products of an exponential with an element")
        if other.op.attrs.get("guard") and other.op.attrs.get("other", 0) != 0:
            refuse(STEP, term.buffer, "what is multiplied has a condition, and is not 0 without it")

    def _check_zero(self, buffer: Value, loop: Op) -> None:
        """Nothing but zeros are in a sum before."""
        inside = set(loop.walk())
        home = block_of(loop)
        before = [o for op in home.ops[: home.ops.index(loop)] for o in op.walk() if buffer in o.operands]
        for op in before:
            value = op.operands[0].op if op.name == "store" else None
            if value is None or value.name != "const" or value.attrs["value"] != 0:
                refuse(STEP, buffer, "it does not begin at 0")
        for other in self.loops:
            if other is not loop and any(buffer in o.operands for o in other.walk()):
                refuse(STEP, buffer, f"{describe(other)} uses it, too")
        if not before or any(op.name not in ("load", "store") for op in places_of(buffer) if op in inside):
            refuse(STEP, buffer, "it does not begin at 0")

    def _row_of(self, load: Op, loop: Op) -> tuple[Sym, ...]:
        """The element of the maximum that an exponential is relative to."""
        mapping: dict[Sym, Sym] = {}
        inside = {loop_var(o) for o in self.weights.walk() if is_loop(o)}
        for n, (own, read) in enumerate(zip(self.store.attrs["idx"], load.attrs["idx"], strict=True)):
            if n == self.axes[0] or own is read:
                continue
            if own not in inside or mapping.setdefault(own, read) is not read:
                refuse(STEP, loop, f"it reads exponentials at {read}, which are written at {own}")
        row = tuple(i.subs(mapping) for i in self.shift.attrs["idx"])
        if any(i.vars & inside for i in row):
            refuse(STEP, loop, "it reads exponentials of rows that are not known")
        return row

    def _check_order(self, ops: Sequence[Op]) -> None:
        """What stands between may as well come before, and blocks may follow each other but for what is corrected."""
        self.between: list[Op] = []
        before: list[Op] = []
        for op in ops:
            if op in self.loops:
                before.append(op)
                continue
            if op.name != "alloc" and (op.results or op.name not in ("store", "for", "if")):
                refuse(STEP, op, "it stands between the loops, and has to stay there")
            for x, y in conflicts(accesses(before), accesses(op)):
                refuse(STEP, op, f"its {y.place} uses {describe(x.buffer)}, as a loop before does")
            self.between.append(op)
        corrected = {self.maximum, *(s.term.buffer for s in self.found)}
        outer, v = ranges_at(self.greatest), loop_var(self.greatest)
        for n, first in enumerate(self.loops):
            for second in self.loops[n + 1 :]:
                for x, y in conflicts(_at(first, v), _at(second, v)):
                    if x.buffer not in corrected and not ordered(x, y, self.greatest, outer):
                        refuse(STEP, second, f"its {y.place} may come before a later {x.place}")

    # What becomes of it

    def run(self) -> Running:
        names = names_in(self.func)
        n = extent_of(self.greatest)
        outer = fresh_var(names, f"{base_name(loop_var(self.greatest))}o", ceildiv(n, self.block))
        shape = tuple(sym(self.block) if k == self.axes[0] else d for k, d in enumerate(buffer_type(self.powers).shape))
        tiles = {buffer: new_tile(STEP, buffer, shape, self.space) for buffer in self._powers()}
        factor, shift = (new_tile(STEP, self.maximum, buffer_type(self.maximum).shape, self.space) for _ in range(2))
        home = block_of(self.greatest)
        home.ops = [op for op in home.ops if op not in self.between]
        insert_before(self.greatest, self.between)
        row = {k: self._inner(k, outer, n, names) for k in self.loops}
        for op in (*self.stores, *self.reads):
            op.set_operands([*op.operands[:-1], tiles[op.operands[-1]]])
            idx = list(op.attrs["idx"])
            idx[self.axes[0]] = idx[self.axes[0]] - self.block * outer
            op.attrs["idx"] = tuple(idx)
        self.shift.set_operands([shift])
        for buffer in tiles:
            assert buffer.op is not None
            buffer.op.erase()
        keep, factors = self._keep(factor, names), self._factors(factor, shift, names)
        corrections = [self._correction(s, factor, names) for s in self.found]
        before = dict(zip((s.loop for s in self.found), corrections, strict=True))
        ops = [v.op for v in (*tiles.values(), factor, shift) if v.op is not None]
        ops += [keep, row[self.greatest], factors, row[self.weights]]
        for loop in self.sums:
            ops += [*([before[loop]] if loop in before else []), row[loop]]
        for loop in self.loops[1:]:
            home.ops.remove(loop)
            loop.parent = None
        self.greatest.attrs |= {"var": outer, "extent": ceildiv(n, self.block)}
        self.greatest.attrs.pop("boustrophedon", None)
        put_ops(body_of(self.greatest), ops)
        return Running(self.greatest, list(tiles.values()), keep, factors, corrections, list(row.values()))

    def _inner(self, loop: Op, outer: Sym, n: Sym, names: TakenNames) -> Op:
        """The loop over a block of what `loop` does, with conditions where the last one may not be whole."""
        k = loop_var(loop)
        inner = fresh_var(names, f"{base_name(k)}i", sym(self.block))
        place = self.block * outer + inner
        made = new_loop(inner, sym(self.block), take_ops(body_of(loop)), loc=loop.loc)
        substitute_in(made, {k: place})
        ends = [end for end in (n.args if n.kind == "min" else (n,)) if end % self.block is not ZERO]
        if ends:  # the last block is whole where the others are the end
            self._guard(loop, made, ge0(minimum(*ends) - 1 - place))
        return made

    def _guard(self, loop: Op, made: Op, inside: Sym) -> None:
        """Put the condition of a whole block around what moves along it."""
        powers = {*self.stores, *self.reads}
        for op in made.walk():
            is_moving = op.name == "load" and any(loop_var(made) in i.vars for i in op.attrs["idx"])
            if is_moving and op not in powers:
                op.attrs["guard"] = (*op.attrs.get("guard", ()), inside)
                if loop in self.sums:
                    op.attrs["other"] = 0
        user, at = (self.peak.combine, self.peak.value) if loop is self.greatest else (None, None)
        if loop is self.weights:
            user, at = self.difference, self.difference.operands[0]
        if user is None or at is None:
            return
        scalar = at.scalar
        flag = Op("index", [], [ScalarType(dt.bool_)], {"expr": inside})
        none = Op("const", [], [scalar], {"value": -math.inf})
        chosen = Op("select", [flag.result, at, none.result], [scalar])
        user.set_operands([chosen.result if v is at else v for v in user.operands])
        insert_before(user, [flag, none, chosen])

    def _rows(self, names: TakenNames) -> tuple[list[tuple[Sym, Sym]], tuple[Sym, ...], ScalarType]:
        axes = tile_axes(names, buffer_type(self.maximum).shape)
        return axes, tuple(v for v, _ in axes), ScalarType(buffer_type(self.maximum).dtype)

    def _keep(self, factor: Value, names: TakenNames) -> Op:
        axes, at, scalar = self._rows(names)
        load = Op("load", [self.maximum], [scalar], {"idx": at})
        return nest_of(axes, [load, Op("store", [load.result, factor], [], {"idx": at})])[0]

    def _factors(self, factor: Value, shift: Value, names: TakenNames) -> Op:
        axes, at, scalar = self._rows(names)
        new = Op("load", [self.maximum], [scalar], {"idx": at})
        least = Op("const", [], [scalar], {"value": -math.inf})
        is_none = Op("eq", [new.result, least.result], [ScalarType(dt.bool_)])
        zero = Op("const", [], [scalar], {"value": 0.0})
        chosen = Op("select", [is_none.result, zero.result, new.result], [scalar])
        old = Op("load", [factor], [scalar], {"idx": at})
        less = Op("sub", [old.result, chosen.result], [scalar])
        power = Op("exp", [less.result], [scalar])
        ops = [
            new, least, is_none, zero, chosen, Op("store", [chosen.result, shift], [], {"idx": at}),
            old, less, power, Op("store", [power.result, factor], [], {"idx": at}),
        ]  # fmt: skip
        return nest_of(axes, ops)[0]

    def _correction(self, s: _Sum, factor: Value, names: TakenNames) -> Op:
        """Multiply a sum by the factors of its rows."""
        type = buffer_type(s.term.buffer)
        axes = tile_axes(names, type.shape)
        at = tuple(v for v, _ in axes)
        mapping = dict(zip(s.term.idx, at, strict=True))
        scalar = ScalarType(type.dtype)
        old = Op("load", [s.term.buffer], [scalar], {"idx": at})
        by = Op("load", [factor], [scalar], {"idx": tuple(i.subs(_variables(mapping)) for i in s.row)})
        less = Op("mul", [old.result, by.result], [scalar])
        return nest_of(axes, [old, by, less, Op("store", [less.result, s.term.buffer], [], {"idx": at})])[0]


def _plain(value: Value) -> Value:
    """The float that a float is converted from."""
    while (source := converted_from(value)) is not None:
        if not (source.scalar.dtype.is_float and value.scalar.dtype.is_float):
            break
        value = source
    return value


def _variables(mapping: Mapping[Sym, Sym]) -> dict[Sym, Sym]:
    return {k: v for k, v in mapping.items() if k.kind == "var"}


def _at(loop: Op, v: Sym) -> list[Access]:
    """What an iteration of a loop touches, with `v` for its variable."""
    own = {loop_var(loop): v}
    return [replace(a, idx=tuple(i.subs(own) for i in a.idx)) for a in accesses(body_of(loop))]
