"""Operators along axes that are values of the program: the same operators on shapes that follow from these values.

Axes a_0, a_1, ... are Syms; whether axis k of a tensor is among them is the Sym `or(a_i = k)`, and with it every dim of
what is computed is one. The rank of a result follows from the number of axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.frontends.translation import Translation, type_of
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, TypeRuleError, UnsupportedError
from tilewright.ir.sym import ONE, ZERO, Sym, sym
from tilewright.ir.types import product
from tilewright.ops.view import reshape, shape_of

MOST_AXES = 16
"""Of a tensor whose axes are computed: expressions of its dims have the third power of so many terms."""


def from_front(translation: Translation, axes: Sequence[Sym], rank: int) -> tuple[Sym, ...]:
    """The axes counted from 0; calls in which one is out of range, or there twice, are refused."""
    if rank > MOST_AXES:
        raise UnsupportedError(
            f"computed axes of a tensor of rank {rank} are not supported (at most {MOST_AXES})",
            hint=translation.fixing(*axes),
        )
    if len(axes) > rank:
        raise ModelError(f"{len(axes)} axes of a tensor of rank {rank} name an axis twice")
    found: list[Sym] = []
    for a in axes:
        lowest = a.bounds[0]
        axis = a if lowest is not None and lowest >= 0 else s.select(s.lt(a, 0), a + rank, a)
        inside = s.logical_and(s.le(0, axis), s.lt(axis, rank))
        require(translation, inside, f"an axis must be one of {-rank} to {rank - 1} for a tensor of rank {rank}")
        for other in found:
            require(translation, s.ne(axis, other), "axes name an axis twice")
        found.append(axis)
    return tuple(found)


def require(translation: Translation, condition: Sym, message: str) -> None:
    """Refuse calls in which a condition does not hold; TypeRuleError where it never does."""
    if condition.is_const and not condition.value:
        raise TypeRuleError(message)
    if not condition.is_const:
        translation.require(condition, message)


def as_scalar(translation: Translation, x: Value, what: str) -> Value:
    """The one element of `x` as a scalar; calls in which it has another number of elements are refused."""
    require(translation, s.eq(type_of(x).size, 1), f"{what} must be one number, it is {x.type}")
    return reshape(x, shape=()) if shape_of(x) else x


def chosen(axes: Sequence[Sym], rank: int) -> list[Sym]:
    """For each axis of a tensor whether it is among `axes`, as 0 or 1."""
    return [s.truth(sum((s.eq(a, k) for a in axes), ZERO)) for k in range(rank)]


def pick(values: Sequence[Sym], axes: Sequence[Sym], k: int, default: Sym) -> Sym:
    """The value that is given for axis k; `default` where it is not among `axes`."""
    found = default
    for a, value in zip(axes, values, strict=True):
        found = s.select(s.eq(a, k), value, found)
    return found


def without(shape: Sequence[Sym], flags: Sequence[Sym], count: int) -> tuple[Sym, ...]:
    """The dims whose flag is 0, in order, where `count` flags are 1."""
    kept = [ONE - f for f in flags]
    result = []
    for place in range(len(shape) - count):
        d, before = ZERO, ZERO
        for size, keep in zip(shape, kept, strict=True):
            d = s.select(s.logical_and(keep, s.eq(before, place)), size, d)
            before = before + keep
        result.append(d)
    return tuple(result)


def with_ones(shape: Sequence[Sym], flags: Sequence[Sym]) -> tuple[Sym, ...]:
    """The dims in order, and dims of 1 where a flag is 1."""
    result, before = [], ZERO
    for flag in flags:
        d = ONE
        for place, size in enumerate(shape):
            d = s.select(s.logical_and(ONE - flag, s.eq(before, place)), size, d)
        result.append(d)
        before = before + ONE - flag
    return tuple(result)


def reduced(
    operator: Callable[..., Value], x: Value, axes: Sequence[Sym], keepdims: bool, *operands: Value
) -> Value:
    """A reduction: each axis is split in two, of which one has one element, and the second ones are reduced."""
    shape = shape_of(x)
    flags = chosen(axes, len(shape))
    pairs = [(s.select(f, ONE, d), s.select(f, d, ONE)) for f, d in zip(flags, shape, strict=True)]
    apart = reshape(x, shape=tuple(d for pair in pairs for d in pair))
    small = operator(apart, *operands, axes=tuple(range(1, 2 * len(shape), 2)), keepdims=False)
    return small if keepdims else reshape(small, shape=without(shape, flags, len(axes)))


def apart(shape: Sequence[Sym], axis: Sym) -> tuple[Sym, Sym, Sym]:
    """The numbers of elements before an axis, along it and after it."""
    before = product(s.select(s.lt(sym(k), axis), d, ONE) for k, d in enumerate(shape))
    after = product(s.select(s.lt(axis, sym(k)), d, ONE) for k, d in enumerate(shape))
    size = ONE
    for k, d in enumerate(shape):
        size = s.select(s.eq(axis, k), d, size)
    return before, size, after


def along(x: Value, axis: Sym, operator: Callable[[Value], Value]) -> Value:
    """What `operator` makes of x seen as [before, axis, after]; it keeps the shape."""
    shape = shape_of(x)
    return reshape(operator(reshape(x, shape=apart(shape, axis))), shape=shape)
