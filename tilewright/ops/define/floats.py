"""Floats that are computed from dims: what their elements are, and which expression of dims they round to.

Models compute sizes in floats (`Shape -> Cast -> Mul -> Floor -> Cast`). A float is a `Ratio` as long as the
arithmetic is exact. Where it rounds, it is kept as what computes it, and the integer that is made of it in the end is
the one of exact arithmetic only where both are compared and found equal: over all values of the dim up to a limit,
with the arithmetic of the dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.ir import sym as s
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ir.symbolic.reach import fits_64_bits
from tilewright.ops.define.bodies import apply_scalar

MAX_DENOMINATOR = 1 << 10
"""A float constant is tried as the fraction whose nearest float it is, with at most this denominator."""

LARGEST_COMPARED = 1 << 20
"""Dims up to this value are compared; a larger one is refused when the model is called."""

_FEWEST_COMPARED = 1 << 10

MOST_EXCEPTIONS = 64
"""Regular exceptions that a condition of the call may name."""

_FIRST_COMPARED = 1 << 12
_MANTISSAS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}


class UnknownValueError(ValueError):
    """The element is not an expression of dims that can be written down."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A float that is exactly `over / under`, where `under` is positive."""

    over: Sym
    under: Sym

    @property
    def is_const(self) -> bool:
        return self.over.is_const and self.under.is_const

    @property
    def value(self) -> float:
        """The value of a constant ratio."""
        return float(Fraction(self.over.value, self.under.value))


@dataclass(frozen=True, slots=True)
class Computed:
    """A float that rounding has touched: `name` (a scalar operation, or "cast") of `operands` of `operand_dtype`."""

    name: str
    operands: tuple[Element, ...]
    operand_dtype: DType
    dtype: DType

    @property
    def is_const(self) -> bool:
        return False


Float = Ratio | Computed
Element = Sym | Ratio | Computed

ROUNDED = frozenset({"add", "sub", "mul", "div", "min", "max", "neg", "abs", "select", "cast"})
"""What makes a Computed: operations whose results every machine rounds alike."""


def mantissa(dtype: DType) -> int:
    """How many binary digits a float has: integers up to 2 to this power are exact."""
    return _MANTISSAS.get(dtype.name, 0)


def is_plain(x: Element) -> bool:
    """Whether arithmetic with `x` has a chance to be exact: no constant of many digits."""
    if not isinstance(x, Ratio) or not x.is_const:
        return not isinstance(x, Computed)
    over = abs(x.over.value)
    return over // (over & -over or 1) <= MAX_DENOMINATOR and x.under.value <= MAX_DENOMINATOR


def is_binary(x: Ratio) -> bool:
    """Whether the denominator is a small power of two, so that floats may hold the ratio."""
    if not x.under.is_const:
        return False
    under = x.under.value
    return under & (under - 1) == 0 and under <= MAX_DENOMINATOR


def variables(x: Element) -> frozenset[Sym]:
    """The dims that an element depends on."""
    if isinstance(x, Sym):
        return frozenset(x.vars)
    if isinstance(x, Ratio):
        return frozenset((*x.over.vars, *x.under.vars))
    return frozenset().union(*map(variables, x.operands))


def computed(x: Element, dtype: DType, env: Mapping[str, np.ndarray]) -> Any:
    """The elements that arithmetic in the dtypes gives, for arrays of values of the dims."""
    if isinstance(x, Sym):
        return _array(x, env).astype(dtype.storage)
    if isinstance(x, Ratio):
        return np.asarray(_array(x.over, env) / _array(x.under, env)).astype(dtype.storage)
    if x.name == "cast":
        return computed(x.operands[0], x.operand_dtype, env).astype(x.dtype.storage)
    return _applied(x.name, x.operands, x.operand_dtype, x.dtype, env)


def _applied(
    name: str, operands: Sequence[Element], operand_dtype: DType, dtype: DType, env: Mapping[str, np.ndarray]
) -> Any:
    arrays = [
        _array(x, env) != 0
        if name == "select" and k == 0 and isinstance(x, Sym)
        else computed(x, operand_dtype, env)
        for k, x in enumerate(operands)
    ]
    return apply_scalar(name, arrays, dtype)


def _array(e: Sym, env: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.asarray(e.value if e.is_const else e.evaluate_numpy({v.name: env[v.name] for v in e.vars}))


@lru_cache(maxsize=256)
def conditions_of(
    guess: Sym,
    name: str,
    operands: tuple[Element, ...],
    operand_dtype: DType,
    dtype: DType,
    exceptions: int = MOST_EXCEPTIONS,
) -> tuple[Sym, ...]:
    """The values of the one dim behind `operands` for which `name` of them is `guess`, as conditions.

    UnknownValueError where there are several dims, where the two agree for few values only, where they differ for more
    than so many `exceptions`, or where values of `guess` may need more than 64 bits.
    """
    dims = frozenset().union(*map(variables, operands), guess.vars)
    if len(dims) != 1:
        raise UnknownValueError(f"rounded arithmetic on {len(dims)} dims cannot be followed")
    if not fits_64_bits(guess):
        raise UnknownValueError("the size has too many digits")
    (dim,) = dims
    low = -LARGEST_COMPARED if dim.bounds[0] is None else dim.bounds[0]
    high = LARGEST_COMPARED if dim.bounds[1] is None else min(dim.bounds[1], LARGEST_COMPARED)

    def compared(values: np.ndarray) -> np.ndarray:
        env = {dim.name: values}
        with np.errstate(all="ignore"):
            found = _applied(name, operands, operand_dtype, dtype, env)
            return np.broadcast_to(np.asarray(found, np.float64) == _array(guess, env), values.shape)

    if not exceptions and not compared(np.arange(max(low, 1), min(high, low + _FIRST_COMPARED) + 1)).all():
        raise UnknownValueError("rounding changes the size")
    values = np.arange(low, high + 1)
    return tuple(_told(dim, values, compared(values), exceptions))


def _told(dim: Sym, values: np.ndarray, equal: np.ndarray, exceptions: int) -> Iterator[Sym]:
    """Conditions on `dim` that hold only for `values` where `equal` is set."""
    first = int(np.argmax(equal))
    wrong = np.flatnonzero(~equal)
    runs, last = _runs(wrong[wrong > first], len(values) - 1, exceptions)
    if not exceptions and last < len(values) - 1:
        raise UnknownValueError("rounding changes the size")
    if not equal[first] or last - first < min(_FEWEST_COMPARED, len(values) // 2):
        raise UnknownValueError("rounding changes the size")
    yield s.ge(dim, int(values[first]))
    yield s.le(dim, int(values[last]))
    for run in runs:
        low, high, step = (
            int(values[run[0]]),
            int(values[run[-1]]),
            int(run[1] - run[0]) if len(run) > 1 else 1,
        )
        inside = s.logical_and(s.ge(dim, low), s.le(dim, high))
        yield s.logical_not(s.logical_and(inside, s.eq((dim - low) % step, 0)))


def _runs(wrong: np.ndarray, last: int, most: int) -> tuple[list[np.ndarray], int]:
    """Ascending positions as few arithmetic progressions, and the position up to which these are all.

    What a factor rounds wrongly are its multiples of some number whose mantissas lie in a range.
    """
    runs: list[np.ndarray] = []
    at = 0
    while at < len(wrong):
        if len(runs) == most:
            return runs, int(wrong[at]) - 1
        steps = np.diff(wrong[at:])
        breaks = np.flatnonzero(steps != steps[0]) if len(steps) else steps
        count = int(breaks[0]) + 1 if len(breaks) else len(steps) + 1
        if count == 2:  # two belong together by chance
            count = 1
        runs.append(wrong[at : at + count])
        at += count
    return runs, last


def simplest(x: Ratio) -> Ratio:
    """A constant as the simple fraction that it approximates, where there is one."""
    if not x.is_const:
        return x
    exact = Fraction(x.over.value, x.under.value)
    simple = exact.limit_denominator(MAX_DENOMINATOR)
    if np.float32(float(simple)) != np.float32(float(exact)):
        return x
    return Ratio(sym(simple.numerator), sym(simple.denominator))
