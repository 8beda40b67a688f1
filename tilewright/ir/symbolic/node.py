"""The structure of symbolic integers: what can be asked of an expression without building another one."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Self

import numpy as np

from tilewright.ir.symbolic.interval import (
    INFINITY,
    Interval,
    interval_floordiv,
    interval_hull,
    interval_mod,
    interval_product,
    interval_scaled,
    interval_sum,
)

Kind = Literal["const", "var", "add", "mul", "floordiv", "mod", "min", "max", "ge0", "eq0", "select"]

NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*", re.ASCII)
RESERVED_NAMES = frozenset({"and", "or", "not", "min", "max", "select", "ceildiv"})

_RANK = {
    "var": 0,
    "const": 1,
    "mul": 2,
    "add": 3,
    "floordiv": 4,
    "mod": 5,
    "min": 6,
    "max": 7,
    "ge0": 8,
    "eq0": 9,
}


def check_variable(name: str, lo: int | None, hi: int | None) -> None:
    """ValueError where no variable can have this name or these bounds."""
    if not NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise ValueError(
            f"'{name}' cannot name a variable: a name is letters, digits, '_' and inner '.', starts with no digit, "
            f"and is none of {', '.join(sorted(RESERVED_NAMES))}"
        )
    if lo is not None and hi is not None and lo > hi:
        raise ValueError(f"variable '{name}' has no value: its lower bound {lo} exceeds its upper bound {hi}")


class SymNode:
    """A node of an expression: its kind, its operands, and the facts that follow from these."""

    __slots__ = (
        "__weakref__",
        "_args",
        "_divides",
        "_interval",
        "_key",
        "_make",
        "_payload",
        "_reach",
        "_terms",
        "_vars",
        "kind",
        "name",
    )

    kind: Kind
    name: str
    _make: Callable[..., Self] | None  # the function that makes this kind of operands; None for const and var
    _payload: Any  # const: its value; var: (lo, hi)
    _args: tuple[Self, ...] | None  # None until asked for, where `_terms` holds the content
    _terms: tuple[tuple[Self, int], ...] | None  # the polynomial; None where that is the node itself times 1
    _divides: bool  # for a monomial: whether a factor is a division or a remainder
    _key: tuple[Any, ...] | None
    _vars: frozenset[Self] | None
    _interval: Interval | None
    _reach: tuple[Interval, int] | None  # what `symbolic.reach` knows

    @property
    def args(self) -> tuple[Self, ...]:
        """The operands: terms of an add, factors of a mul (a coefficient first), operands of an atom."""
        return self._args or ()

    @property
    def terms(self) -> tuple[tuple[Self, int], ...]:
        """The polynomial as (monomial, coefficient) pairs; the monomial of the constant term is `ONE`."""
        return ((self, 1),) if self._terms is None else self._terms

    @property
    def is_const(self) -> bool:
        return self.kind == "const"

    @property
    def value(self) -> int:
        """The value of a constant; ValueError for any other expression."""
        if self.kind != "const":
            raise ValueError(
                f"'{self}' is not a constant: it depends on {_names(self.vars)}; substitute these first"
            )
        return int(self._payload)

    @property
    def vars(self) -> frozenset[Self]:
        """All variables that occur in the expression."""
        if self.kind == "var":  # not cached: it would be a reference cycle
            return frozenset((self,))
        if self._vars is None:
            parts = (
                self._args
                if self._terms is None
                else [mono for mono, _ in self._terms if mono.kind != "const"]
            )
            self._vars = frozenset().union(*(part.vars for part in parts or ()))
        return self._vars

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """Inclusive numeric bounds that follow from the bounds of the variables; None where there is none."""
        lo, hi = self.interval
        return (None if lo == -INFINITY else int(lo), None if hi == INFINITY else int(hi))

    @property
    def interval(self) -> Interval:
        """`bounds` with infinities in the place of None."""
        if self._interval is None:
            self._interval = interval_of(self, _OWN_INTERVAL)
        return self._interval

    @property
    def is_bool(self) -> bool:
        """Whether the bounds show that the value is 0 or 1."""
        lo, hi = self.interval
        return lo >= 0 and hi <= 1

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """A structural key: an order that does not depend on the order of construction or on hashes."""
        if self._key is None:
            self._key = _sort_key_of(self)
        return self._key

    def evaluate(self, env: Mapping[str, int]) -> int:
        """The value where every variable has the value that `env` has for its name; KeyError where it has none."""
        return int(_evaluate(self, env, _ON_INTS))

    def evaluate_numpy(self, env: Mapping[str, np.ndarray | int]) -> Any:
        """`evaluate` for integer arrays, which broadcast as NumPy's do; computed in int64."""
        arrays = {
            name: value if isinstance(value, int) else value.astype(np.int64, copy=False) for name, value in env.items()
        }
        return _evaluate(self, arrays, _ON_ARRAYS)

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __bool__(self) -> bool:
        if self.kind != "const":
            raise TypeError(
                f"the truth of '{self}' is not known here; use `prove`, or `is None` to test for presence"
            )
        return bool(self._payload)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __str__(self) -> str:
        return text(self, 0)

    def __repr__(self) -> str:
        return f"Sym({self})"


def _names(variables: Iterable[SymNode]) -> str:
    return ", ".join(sorted(v.name for v in variables))


def _sort_key_of(e: SymNode) -> tuple[Any, ...]:
    if e.kind == "var":
        lo, hi = e._payload
        return 0, e.name, (lo is None, lo or 0), (hi is None, hi or 0)
    if e.kind == "const":
        return 1, e._payload
    return _RANK.get(e.kind, 10), tuple(arg.sort_key for arg in e.args)


_OWN_INTERVAL: Callable[[Any], Interval] = operator.attrgetter("interval")


def interval_of(e: SymNode, of: Callable[[Any], Interval]) -> Interval:
    """The interval of `e` where `of` gives those of its parts."""
    if e.kind == "const":
        return e._payload, e._payload
    if e.kind == "var":
        lo, hi = e._payload
        return (-INFINITY if lo is None else lo), (INFINITY if hi is None else hi)
    if e._terms is not None:
        total: Interval = (0, 0)
        for mono, coef in e._terms:
            total = interval_sum(total, interval_scaled(of(mono), coef))
        return total
    parts = [of(arg) for arg in e.args]
    match e.kind:
        case "mul":
            product: Interval = (1, 1)
            for part in parts:
                product = interval_product(product, part)
            return product
        case "floordiv":
            return interval_floordiv(*parts)
        case "mod":
            return interval_mod(*parts)
        case "min":
            return min(lo for lo, _ in parts), min(hi for _, hi in parts)
        case "max":
            return max(lo for lo, _ in parts), max(hi for _, hi in parts)
        case "select":
            return interval_hull(parts[1:])
    return 0, 1


_ON_INTS: Mapping[str, Callable[..., Any]] = {
    "mul": lambda *values: math.prod(values),
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
    "ge0": lambda value: int(value >= 0),
    "eq0": lambda value: int(value == 0),
}
_ON_ARRAYS: Mapping[str, Callable[..., Any]] = {
    "mul": lambda *values: functools.reduce(operator.mul, values),
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "min": lambda *values: functools.reduce(np.minimum, values),
    "max": lambda *values: functools.reduce(np.maximum, values),
    "ge0": lambda value: np.greater_equal(value, 0).astype(np.int64),
    "eq0": lambda value: np.equal(value, 0).astype(np.int64),
    "select": lambda condition, a, b: np.where(np.not_equal(condition, 0), a, b),
}


def _evaluate(e: SymNode, env: Mapping[str, Any], meaning: Mapping[str, Callable[..., Any]]) -> Any:
    """The value of e; of integers a select takes only the branch that it chooses."""
    if e.kind == "const":
        return e._payload
    if e.kind == "var":
        return env[e.name]
    if e._terms is not None:
        return sum(coef * _evaluate(mono, env, meaning) for mono, coef in e._terms)
    if e.kind == "select" and meaning is _ON_INTS:
        return _evaluate(e.args[1] if _evaluate(e.args[0], env, meaning) else e.args[2], env, meaning)
    if e.kind == "select":
        with np.errstate(divide="ignore"):  # both branches are computed, also the one not taken
            return meaning[e.kind](*[_evaluate(arg, env, meaning) for arg in e.args])
    return meaning[e.kind](*[_evaluate(arg, env, meaning) for arg in e.args])


# --- text ----------------------------------------------------------------------------------------------------

# How tightly a spelling binds, from the loosest to the tightest.
_OR, _AND, _COMPARISON, _SUM, _PRODUCT, _PRIMARY = range(1, 7)


def text(e: SymNode, least: int) -> str:
    """The spelling of e, in parentheses where it binds less tightly than `least`."""
    spelled, level = _spelled(e)
    return f"({spelled})" if level < least else spelled


def _spelled(e: SymNode) -> tuple[str, int]:
    match e.kind:
        case "const":
            return str(e._payload), (_PRIMARY if e._payload >= 0 else _SUM)
        case "var":
            return e.name, _PRIMARY
        case "add" if _is_inequality(e):
            return _equation(e.terms[0][0].args[0], "!="), _COMPARISON
        case "add":
            return _sum_text(e.terms), _SUM
        case "mul" if e._terms is not None:
            return _sum_text(e.terms), _PRODUCT
        case "mul":
            return "*".join(text(factor, _PRIMARY) for factor in e.args), _PRODUCT
        case "floordiv" | "mod":
            sign = "//" if e.kind == "floordiv" else "%"
            nested = e.args[0].kind in ("floordiv", "mod")
            return (
                f"{text(e.args[0], _PRIMARY if nested else _PRODUCT)} {sign} {text(e.args[1], _PRIMARY)}",
                _PRODUCT,
            )
        case "ge0":
            return _comparison(e.args[0]), _COMPARISON
        case "eq0":
            return _equation(e.args[0], "=="), _COMPARISON
        case "min" if _is_condition(e):
            return " and ".join(text(arg, _AND + 1) for arg in e.args), _AND
        case "max" if _is_condition(e):
            return " or ".join(text(arg, _OR + 1) for arg in e.args), _OR
    return f"{e.kind}({', '.join(text(arg, 0) for arg in e.args)})", _PRIMARY


def _is_inequality(e: SymNode) -> bool:
    """Whether e is 1 - (x == 0), which is spelled as x != 0."""
    return [(mono.kind, coef) for mono, coef in e.terms] == [("eq0", -1), ("const", 1)]


def _is_condition(e: SymNode) -> bool:
    """Whether e is spelled as a comparison, or as `and` or `or` of such."""
    if e.kind in ("min", "max"):
        return all(_is_condition(arg) for arg in e.args)
    return e.kind in ("ge0", "eq0") or (e.kind == "add" and _is_inequality(e))


def _sum_text(terms: Iterable[tuple[SymNode, int]]) -> str:
    """The polynomial with these terms; 0 for none."""
    spelled = ""
    for mono, coef in terms:
        if mono.kind == "const":
            size = str(abs(coef))
        else:
            size = (f"{abs(coef)}*" if abs(coef) != 1 else "") + text(
                mono, _factor_level(mono, coef, bool(spelled))
            )
        if spelled:
            spelled += f" - {size}" if coef < 0 else f" + {size}"
        else:
            spelled = f"-{size}" if coef < 0 else size
    return spelled or "0"


def _factor_level(mono: SymNode, coef: int, is_later: bool) -> int:
    """How tightly a monomial must bind next to its coefficient: a quotient needs parentheses, a product none."""
    return _PRODUCT if mono.kind == "mul" or coef == 1 or (coef == -1 and is_later) else _PRIMARY


def _sides(e: SymNode) -> tuple[list[tuple[SymNode, int]], list[tuple[SymNode, int]], int]:
    """(positive, negative, constant) with e == positive - negative + constant."""
    positive: list[tuple[SymNode, int]] = []
    negative: list[tuple[SymNode, int]] = []
    constant = 0
    for mono, coef in e.terms:
        if mono.kind == "const":
            constant = coef
        elif coef > 0:
            positive.append((mono, coef))
        else:
            negative.append((mono, -coef))
    return positive, negative, constant


def _with_constant(terms: list[tuple[SymNode, int]], constant: int) -> str:
    if not terms:
        return str(constant)
    size = f" {'+' if constant > 0 else '-'} {abs(constant)}" if constant else ""
    return _sum_text(terms) + size


def _comparison(e: SymNode) -> str:
    """e >= 0 without negative terms: `i < n` for n - i - 1 >= 0."""
    positive, negative, constant = _sides(e)
    if not negative:
        return f"{_sum_text(positive)} >= {-constant}"
    if not positive:
        return f"{_sum_text(negative)} < {constant + 1}"
    if constant < 0:
        return f"{_with_constant(negative, -constant - 1)} < {_sum_text(positive)}"
    return f"{_sum_text(negative)} <= {_with_constant(positive, constant)}"


def _equation(e: SymNode, sign: str) -> str:
    """e == 0 (or != 0) without negative terms: `i == j + 1` for i - j - 1 == 0."""
    positive, negative, constant = _sides(e)
    if negative and constant > 0:
        return f"{_with_constant(positive, constant)} {sign} {_sum_text(negative)}"
    return f"{_sum_text(positive)} {sign} {_with_constant(negative, -constant)}"
