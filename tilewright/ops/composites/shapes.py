"""Shapes that formats say by rules: targets with 0 and -1, and slices with ends beyond the axis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tilewright.ir import sym as s
from tilewright.ir.diag import ModelError, TypeRuleError
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops.define.binding import is_input_value

MAX_ELEMENTS = 2**34
TO_THE_END = 10**9
"""Exporters write ends from here on (and their negatives) to mean "all that there is"."""


def checked_shape(shape: tuple[Sym, ...], what: str) -> tuple[Sym, ...]:
    """ModelError when a dim is negative or there are more elements than memory can ever hold."""
    if any(d.is_const and d.value < 0 for d in shape):
        raise ModelError(f"{what} gives the shape [{', '.join(map(str, shape))}] with a negative dim")
    if math.prod(d.value for d in shape if d.is_const) > MAX_ELEMENTS:
        raise ModelError(f"{what} gives the shape [{', '.join(map(str, shape))}], more than memory can hold")
    return shape


def target_shape(shape: Sequence[Sym], target: Sequence[Sym], keep_zero: bool = False) -> tuple[Sym, ...]:
    """The dims that Reshape's target means: 0 copies the dim of the input, -1 takes what is left.

    Of a tensor without elements, -1 is what is left beside the dims that both have, as it is where these are unknown,
    and a 0 beyond its axes is a dim of none.
    """
    for d in target:
        if d.is_const and d.value < -1:
            raise ModelError(f"{d} is no dim to reshape to")
    if sum(d == -1 for d in target) > 1:
        raise ModelError("the target of Reshape holds -1 more than once")
    copies = [d == 0 and not keep_zero for d in target]
    total = product(shape)
    if any(copies[len(shape) :]) and total != 0:
        raise ModelError(f"the target of Reshape copies a dim beyond the {len(shape)} axes of the tensor")
    copied = [shape[k] if copy and k < len(shape) else target[k] for k, copy in enumerate(copies)]
    if any(_is_input_value(d) for d in target):
        return _run_time_target(shape, copied, keep_zero)
    if -1 not in target:
        return tuple(copied)
    rest = product(d for d in copied if d != -1)
    if rest == 0 and total == 0:
        whole, parts = Counter(shape), Counter(d for d in copied if d != -1)
        total, rest = product((whole - parts).elements()), product((parts - whole).elements())
    if rest == 0 or (total.is_const and rest.is_const and total.value % rest.value):
        raise TypeRuleError(f"{total} elements cannot be divided into {rest}")
    return tuple(s.floordiv(total, rest) if d == -1 else d for d in copied)


def _is_input_value(d: Sym) -> bool:
    """Does the dim depend on the value of a graph input, so that it may turn out to be 0 or -1?"""
    lowest = d.bounds[0]
    return (lowest is None or lowest < 0) and any(map(is_input_value, d.vars))


def _run_time_target(shape: Sequence[Sym], target: Sequence[Sym], keep_zero: bool) -> tuple[Sym, ...]:
    """The rules for 0 and -1 as conditions on values that are known when the model is called."""
    dims = []
    for k, d in enumerate(target):
        copies = _is_input_value(d) and k < len(shape) and not keep_zero
        dims.append(s.select(s.eq(d, 0), shape[k], d) if copies else d)
    rest = product(s.select(s.eq(d, -1), sym(1), d) for d in dims)
    inferred = s.floordiv(product(shape), s.maximum(rest, 1))
    return tuple(s.select(s.eq(d, -1), inferred, d) for d in dims)


def slice_bounds(start: Sym, end: Sym, step: int, size: Sym) -> tuple[Sym, Sym]:
    """First position and number of elements of start:end:step in an axis of `size` elements. As the standard has it, a
    start below the first element is that element, also where the step is negative; in NumPy nothing is left then."""
    low, high = (sym(0), size) if step > 0 else (sym(-1), size - 1)
    start = _clamped(_from_front(start, size), s.minimum(0, high), high)  # there may be no first element
    end = _clamped(_from_front(end, size), low, high)
    distance = end - start if step > 0 else start - end
    return start, s.maximum(s.ceildiv(distance, abs(step)), 0)


def at_most_one(size: Sym) -> bool:
    """Is a size 0 or 1 in all calls? Values of inputs are looked at by their signs, on which positions depend."""
    free = next((v for v in size.vars if v.bounds == (None, None)), None)
    if free is None:
        return bool(s.prove(s.le(size, 1)))
    low, high = s.var(f"{free.name}_below", None, -2), s.var(f"{free.name}_above", 0)
    return all(at_most_one(size.subs({free: case})) for case in (low, sym(-1), high))


def _from_front(position: Sym, size: Sym) -> Sym:
    lowest, highest = position.bounds
    if lowest is not None and lowest >= 0:
        return position
    if highest is not None and highest < 0:
        return position if position.is_const and position.value <= -TO_THE_END else position + size
    return s.select(s.lt(position, 0), position + size, position)


def _clamped(position: Sym, low: Sym, high: Sym) -> Sym:
    if position.is_const and position.value >= TO_THE_END:
        return high
    if position.is_const and position.value <= -TO_THE_END:
        return low
    return s.minimum(s.maximum(position, low), high)
