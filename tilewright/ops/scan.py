"""Running totals along an axis.

Whatever axis it is, the tensor is seen as [before, axis, after]. One total follows from the one before, so that the
totals of the other axes are those that are interleaved:

    after > 1, columns:  for strip of columns parallel { for j { for l { totals[l] += x[before, j, l] } } }
    after = 1, rows:     for group of rows parallel { for j { for r unroll { totals[r] += x[r, j] } } }
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.ir.core import Value
from tilewright.ir.scalar import identity
from tilewright.ir.sym import Sym, ceildiv, le, lt, maximum, minimum, sym
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import irregular, op
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import checked_axis
from tilewright.ops.traits.facts import FIRST, Traits
from tilewright.ops.view import reshape, shape_of

STRIP = 1024
"""Columns that are summed together: their totals stay in L1, and threads share the strips."""

GROUP = 8
"""Rows that are summed together: their additions hide one another's latency."""

LOGADDEXP = "logaddexp"
COMBINATIONS = ("add", "mul", "max", "min", LOGADDEXP)


@dataclass(frozen=True, slots=True)
class _Running:
    """One scan of x[before, axis, after] into out: how a total goes on, and which one belongs to a position."""

    trace: ScalarBuilder
    x: Array
    out: Array
    combine: str
    exclusive: bool
    reverse: bool

    def totals(self, count: Sym, space: str) -> Array:
        """Memory for `count` totals."""
        dtype = self.x.dtype.accumulator if self.x.dtype.is_float else self.x.dtype
        return self.trace.alloc(dtype, (count,), space)

    def start(self, totals: Array, k: Sym | int) -> None:
        totals.store((k,), self._nothing)

    @property
    def _nothing(self) -> float | bool:
        return -math.inf if self.combine == LOGADDEXP else identity(self.combine, self.x.dtype)

    def place(self, row: Sym, j: Sym, column: Sym) -> tuple[Sym, Sym, Sym]:
        """Where the j-th element from the start is."""
        return row, self.x.shape[1] - 1 - j if self.reverse else j, column

    def begin(self, totals: Array, row: Sym, first: Sym, width: Sym) -> None:
        """The totals of some columns are their first elements."""
        t, size = self.trace, self.x.shape[1]
        if self.exclusive:  # the totals only matter where more elements follow
            with t.when(le(1, size)), t.loop(width, "l") as column:
                self.out.store(self.place(row, sym(0), first + column), self._nothing)
        with t.when(le(2 if self.exclusive else 1, size)), t.loop(width, "l") as column:
            place = self.place(row, sym(0), first + column)
            element = self.x[place].cast(totals.dtype)
            totals.store((column,), element)
            if not self.exclusive:
                self.out.store(place, element.cast(self.out.dtype))

    def step(self, totals: Array, k: Sym | int, row: Sym, j: Sym, column: Sym) -> None:
        """Take the j-th element from the start into total k."""
        place = self.place(row, j, column)
        before = totals[k]
        after = self._combined(before, self.x[place].cast(totals.dtype))
        totals.store((k,), after)
        self.out.store(place, (before if self.exclusive else after).cast(self.out.dtype))

    def _combined(self, a: Scalar, b: Scalar) -> Scalar:
        t = self.trace
        if self.combine != LOGADDEXP:
            return t.apply(self.combine, a, b)
        rest = t.apply("log1p", t.apply("exp", -t.apply("abs", a - b)))
        return t.select(a.eq(b), a + math.log(2), t.apply("max", a, b) + rest)  # the first is for infinities


def _scan_columns(scan: _Running) -> None:
    t, (before, size, after) = scan.trace, scan.x.shape
    strip = minimum(sym(STRIP), after)
    strips = maximum(ceildiv(after, STRIP), 1)
    with t.loop(before * strips, "strip", "parallel") as k:
        row, first = (k, sym(0)) if strips == 1 else (k // strips, k % strips * STRIP)
        width = strip if strips == 1 else minimum(strip, after - first)
        totals = scan.totals(strip, "scratch")
        scan.begin(totals, row, first, width)
        with t.loop(maximum(size - 1, 0), "j") as j, t.loop(width, "l") as column:
            scan.step(totals, column, row, j + 1, first + column)


def _scan_rows(scan: _Running) -> None:
    t, (rows, size, _) = scan.trace, scan.x.shape
    with t.loop(ceildiv(rows, GROUP), "group", "parallel") as group:
        first = group * GROUP
        with t.when(le(first + GROUP, rows)):
            totals = scan.totals(sym(GROUP), "reg")
            with t.loop(GROUP, "r", "unroll") as r:
                scan.start(totals, r)
            with t.loop(size, "j") as j, t.loop(GROUP, "r", "unroll") as r:
                scan.step(totals, r, first + r, j, sym(0))
        with t.when(lt(rows, first + GROUP)), t.loop(rows - first, "r") as r:
            total = scan.totals(sym(1), "reg")
            scan.start(total, 0)
            with t.loop(size, "j") as j:
                scan.step(total, 0, first + r, j, sym(0))


def _running_types(x: TensorType, *, combine: str, exclusive: bool, reverse: bool) -> tuple[TensorType, ...]:
    if combine not in COMBINATIONS:
        raise ValueError(f"running totals combine with one of {', '.join(COMBINATIONS)}, not {combine!r}")
    if combine == LOGADDEXP and not x.dtype.is_float:
        raise ValueError("logarithms of sums are floats")
    if x.rank != 3:
        raise ValueError(f"running totals go along the middle one of three axes, not of {x.rank}")
    if x.dtype.kind == "bool":
        raise ValueError("running totals are of numbers, not of bool")
    return (x,)


@irregular(_running_types)
def running(
    t: ScalarBuilder,
    inputs: list[Array],
    outputs: list[Array],
    *,
    combine: str,
    exclusive: bool = False,
    reverse: bool = False,
) -> None:
    """y[b, i, a] = combine ("add", "mul", "max", "min" or "logaddexp") of x[b, 0..i, a]; `exclusive` leaves out
    x[b, i, a], `reverse` starts at the other end. 16-bit floats are combined in f32."""
    scan = _Running(t, inputs[0], outputs[0], combine, exclusive, reverse)
    if scan.x.shape[2] == 1:
        _scan_rows(scan)
    else:
        _scan_columns(scan)


running.declares(Traits(continuous=FIRST, has_state=True))


def _along(x: Value, axis: int, combine: str, exclusive: bool, reverse: bool) -> Value:
    shape = shape_of(x)
    a = checked_axis(axis, len(shape))
    if shape[a] == 1 and not exclusive:
        return x
    three = (product(shape[:a]), shape[a], product(shape[a + 1 :]))
    totals: Value = running(reshape(x, shape=three), combine=combine, exclusive=exclusive, reverse=reverse)
    return reshape(totals, shape=shape)


@op
def cumsum(x: Value, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Value:
    """The sum of all elements up to each position along `axis`; 16-bit floats are added in f32."""
    return _along(x, axis, "add", exclusive, reverse)


@op
def cumprod(x: Value, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Value:
    """The product of all elements up to each position along `axis`."""
    return _along(x, axis, "mul", exclusive, reverse)


@op
def cummax(x: Value, *, axis: int) -> Value:
    """The greatest of all elements up to each position along `axis`; NaN from the first NaN on."""
    return _along(x, axis, "max", False, False)


@op
def cummin(x: Value, *, axis: int) -> Value:
    """The least of all elements up to each position along `axis`; NaN from the first NaN on."""
    return _along(x, axis, "min", False, False)


@op
def cumlogsumexp(x: Value, *, axis: int) -> Value:
    """The logarithm of the sum of exp of all elements up to each position along `axis`."""
    return _along(x, axis, LOGADDEXP, False, False)
