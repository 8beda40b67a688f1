"""Where programs of elements read and write, and what is known of positions that are data.

A position that is data is a variable that `bind` gives a value. What the value can be follows from how it is computed:
chosen under a comparison, limited by `min` and `max`, or of a few bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.scalar import scalar_operation
from tilewright.ir.sym import Sym, maximum, minimum, prove_ge0, sym, var
from tilewright.ir.types import BufferType, ScalarType, TensorType

Ends = tuple[Sym | None, Sym | None]
"""The least and the greatest value; None where it is not known."""

Ranges = dict[Sym, tuple[Sym, Sym]]

_UNKNOWN: Ends = (None, None)
_SMALL_BITS = 32
"""Integers of so many bits and fewer have ends that are worth knowing."""


@dataclass(frozen=True)
class AxisAccess:
    """An index along one axis of a load or a store, where it is done at all: the loops around it, of these `extents`,
    have iterations there, variables lie in their `ranges`, outermost first, and the `guards` hold. `data` are those
    that are no counters of loops; some have no range."""

    op: Op
    shape: tuple[Sym, ...]
    axis: int
    index: Sym
    ranges: Ranges
    guards: tuple[Sym, ...]
    extents: tuple[Sym, ...]
    data: frozenset[Sym]


@dataclass
class Walk:
    """A walk through a program of elements whose outer loops have the given ranges."""

    ranges: Ranges
    guards: tuple[Sym, ...] = ()
    data: frozenset[Sym] = frozenset()
    known: dict[Value, Ends] = field(default_factory=dict)
    unbounded: dict[Sym, Sym | int] = field(default_factory=dict)
    _ends: dict[Value, Ends] = field(default_factory=dict)

    def accesses(self, block: Block) -> Iterator[AxisAccess]:
        """All loads and stores, axis by axis, in program order."""
        for op in block.ops:
            match op.name:
                case "load":
                    yield from self._of(op, op.operands[0])
                case "store":
                    yield from self._of(op, op.operands[1])
                case "bind":
                    self._bind(op)
                case "for":
                    yield from self._loop(op)
                case "if":
                    yield from self._if(op)
                case "run":
                    yield from self.accesses(op.blocks[0])

    def _of(self, op: Op, memory: Value) -> Iterator[AxisAccess]:
        type = memory.type
        assert isinstance(type, TensorType | BufferType)
        guards = (*self.guards, *map(self._shown, op.attrs.get("guard", ())))
        if 0 in guards:
            return
        extents = tuple(high + 1 for v, (_, high) in self.ranges.items() if v not in self.data)
        for axis, index in enumerate(op.attrs["idx"]):
            yield AxisAccess(op, type.shape, axis, self._shown(index), self.ranges, guards, extents, self.data)

    def _shown(self, e: Sym) -> Sym:
        """The expression without the bounds that data are only declared with."""
        return e if self.data.isdisjoint(e.vars) else e.subs(self.unbounded)

    def _loop(self, op: Op) -> Iterator[AxisAccess]:
        v, extent = op.attrs["var"], self._shown(op.attrs["extent"])
        if extent == 0:
            return
        outer = self.ranges
        self.ranges = {**outer, v: (sym(0), extent - 1)}
        yield from self.accesses(op.blocks[0])
        self.ranges = outer

    def _if(self, op: Op) -> Iterator[AxisAccess]:
        guards, known = self.guards, self.known
        self.guards = (*guards, *map(self._shown, op.attrs.get("guard", ())))
        self.known = dict(known)
        for condition in op.operands:
            for value, ends in _where_true(condition, self._of_value).items():
                self.known[value] = _both(self.known.get(value, _UNKNOWN), ends)
        yield from self.accesses(op.blocks[0])
        self.guards, self.known = guards, known

    def _bind(self, op: Op) -> None:
        """The bounds that the variable is declared with are what is to be shown, and prove nothing."""
        declared, (low, high) = op.attrs["var"], self._of_value(op.operands[0])
        v = self.unbounded[declared] = var(f"{declared.name}.any", None)
        self.data |= {declared, v}
        if low is not None and high is not None:
            self.ranges = {**self.ranges, v: (low, high)}

    # Values

    def _of_value(self, value: Value) -> Ends:
        if value not in self._ends:
            low, high = self._computed(value)
            self._ends[value] = _if_simple(low), _if_simple(high)
        return _both(self._ends[value], self.known.get(value, _UNKNOWN))

    def _computed(self, value: Value) -> Ends:
        op, type = value.op, value.type
        if op is None or not isinstance(type, ScalarType) or type.dtype.is_float:
            return _UNKNOWN
        rule = _RULES.get(op.name)
        found = None if rule is None else rule(self, op)
        return _of_dtype(type) if found is None else found

    def _number(self, op: Op) -> Ends:
        return sym(int(op.attrs["value"])), sym(int(op.attrs["value"]))

    def _index(self, op: Op) -> Ends:
        shown = self._shown(op.attrs["expr"])
        return shown, shown

    def _converted(self, op: Op) -> Ends | None:
        (operand,) = op.operands
        ends = self._of_value(operand)
        return ends if _keeps(operand, ends, op.result.scalar) else None

    def _shifted(self, op: Op) -> Ends | None:
        (a, b), (by, most) = map(self._of_value, op.operands)
        if by is None or by is not most or not by.is_const:
            return None
        step = 1 << by.value
        return None if a is None else a // step, None if b is None else b // step

    def _chosen(self, op: Op) -> Ends:
        condition, a, b = op.operands
        holds = _where_true(condition, self._of_value).get(a, _UNKNOWN)
        fails = _where_false(condition, self._of_value).get(b, _UNKNOWN)
        (low, high), (least, most) = _both(self._of_value(a), holds), _both(self._of_value(b), fails)
        return _least(low, least), _greatest(high, most)


_DEPTH = 6
"""Nested operations of an end of a value: what is longer says little, and takes long to prove anything of."""


def _if_simple(e: Sym | None) -> Sym | None:
    return None if e is None or _depth(e) > _DEPTH else e


@lru_cache(maxsize=1 << 12)
def _depth(e: Sym) -> int:
    return 1 + max(map(_depth, e.args), default=0)


def _keeps(source: Value, ends: Ends, type: ScalarType) -> bool:
    """Whether a conversion changes no value that is possible."""
    before = source.scalar.dtype
    if before.is_float or type.dtype.kind == "bool":
        return False
    if type.dtype.bits == 64 or type.dtype.bits > before.bits:
        return True
    low, high = ends
    half = 1 << (type.dtype.bits - 1)
    return low is not None and high is not None and low.interval[0] >= -half and high.interval[1] < half


def _of_dtype(type: ScalarType) -> Ends:
    dtype = type.dtype
    if dtype.kind == "bool":
        return sym(0), sym(1)
    if not dtype.is_int:
        return _UNKNOWN
    if dtype.kind == "uint":
        return sym(0), sym((1 << dtype.bits) - 1) if dtype.bits <= _SMALL_BITS else None
    half = 1 << (dtype.bits - 1)
    return (sym(-half), sym(half - 1)) if dtype.bits <= _SMALL_BITS else _UNKNOWN


def _sum(a: Sym | None, b: Sym | None) -> Sym | None:
    return None if a is None or b is None else a + b


def _difference(a: Sym | None, b: Sym | None) -> Sym | None:
    return None if a is None or b is None else a - b


def _least(a: Sym | None, b: Sym | None) -> Sym | None:
    return None if a is None or b is None else minimum(a, b)


def _greatest(a: Sym | None, b: Sym | None) -> Sym | None:
    return None if a is None or b is None else maximum(a, b)


def _any(extremum: Callable[..., Sym], *ends: Sym | None) -> Sym | None:
    """The minimum, or the maximum, of those that are known."""
    known = [e for e in ends if e is not None]
    return extremum(*known) if known else None


def _both(a: Ends, b: Ends) -> Ends:
    """What is known of a value of which two things are: the narrower of two ends where one can be told."""
    return _narrower(a[0], b[0], 1), _narrower(a[1], b[1], -1)


def _narrower(a: Sym | None, b: Sym | None, sign: int) -> Sym | None:
    if a is None or b is None:
        return b if a is None else a
    return a if prove_ge0(sign * (a - b)) else b


def _where_true(condition: Value, ends: Callable[[Value], Ends]) -> Mapping[Value, Ends]:
    """What a condition says of the values that it compares, where it holds."""
    op = condition.op
    if op is None:
        return {}
    if op.name == "and":
        found = dict(_where_true(op.operands[0], ends))
        for value, more in _where_true(op.operands[1], ends).items():
            found[value] = _both(found.get(value, _UNKNOWN), more)
        return found
    return _compared(op, scalar_operation(op).signs, ends)


def _where_false(condition: Value, ends: Callable[[Value], Ends]) -> Mapping[Value, Ends]:
    op = condition.op
    return {} if op is None else _compared(op, _SIGNS - scalar_operation(op).signs, ends)


_SIGNS = frozenset({-1, 0, 1})


def _compared(op: Op, signs: frozenset[int], ends: Callable[[Value], Ends]) -> Mapping[Value, Ends]:
    """What is known of two integers whose difference has one of these signs; nothing of what is not compared."""
    if not signs or {-1, 1} <= signs or op.operands[0].scalar.dtype.is_float:
        return {}
    a, b = op.operands[::-1] if 1 in signs else op.operands
    (low, _), (_, high) = ends(a), ends(b)  # a < b, a <= b or a == b
    if signs == {0}:
        return {a: ends(b), b: ends(a)}
    step = 0 if 0 in signs else 1
    return {a: (None, None if high is None else high - step), b: (None if low is None else low + step, None)}


def _of_both(rule: Callable[[Ends, Ends], Ends]) -> Callable[[Walk, Op], Ends | None]:
    return lambda accesses, op: rule(accesses._of_value(op.operands[0]), accesses._of_value(op.operands[1]))


_RULES: Mapping[str, Callable[[Walk, Op], Ends | None]] = {
    "const": Walk._number,
    "index": Walk._index,
    "cast": Walk._converted,
    "select": Walk._chosen,
    "shr": Walk._shifted,
    "add": _of_both(lambda a, b: (_sum(a[0], b[0]), _sum(a[1], b[1]))),
    "sub": _of_both(lambda a, b: (_difference(a[0], b[1]), _difference(a[1], b[0]))),
    "min": _of_both(lambda a, b: (_least(a[0], b[0]), _any(minimum, a[1], b[1]))),
    "max": _of_both(lambda a, b: (_any(maximum, a[0], b[0]), _greatest(a[1], b[1]))),
}
"""The ends of what scalar ops give; None where no more is known of them than of the dtype."""
