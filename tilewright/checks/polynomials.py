"""Formulas of one length as polynomials, exact: what a symbolic count is from some length on, and sums of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, comb

from tilewright.ir.sym import Sym


@dataclass(frozen=True)
class Polynomial:
    """The sum of coefficients times powers of a length, which holds for lengths from `since` on. There are no zeros
    behind the last coefficient."""

    coefficients: tuple[Fraction, ...]
    since: int = 0

    @classmethod
    def of(cls, coefficients: Sequence[Fraction | int], since: int = 0) -> Polynomial:
        found = [Fraction(c) for c in coefficients]
        while found and not found[-1]:
            found.pop()
        return cls(tuple(found), since)

    @property
    def degree(self) -> int:
        """The highest power; 0 for constants."""
        return max(len(self.coefficients) - 1, 0)

    def __call__(self, length: int) -> Fraction:
        value = Fraction(0)
        for coefficient in reversed(self.coefficients):
            value = value * length + coefficient
        return value

    def plus(self, other: Polynomial) -> Polynomial:
        count = max(len(self.coefficients), len(other.coefficients))
        both = [self._padded(count), other._padded(count)]
        return Polynomial.of([a + b for a, b in zip(*both, strict=True)], max(self.since, other.since))

    def times(self, other: Polynomial) -> Polynomial:
        found = [Fraction(0)] * (len(self.coefficients) + len(other.coefficients))
        for j, a in enumerate(self.coefficients):
            for k, b in enumerate(other.coefficients):
                found[j + k] += a * b
        return Polynomial.of(found, max(self.since, other.since))

    def minus(self, other: Polynomial) -> Polynomial:
        return self.plus(other.times(Polynomial.of([-1])))

    def sums(self, values: Callable[[int], int]) -> Polynomial:
        """The sum over all lengths below n, for n from `since` on; `values` are those of lengths below it."""
        total = Polynomial.of([])
        for power, coefficient in enumerate(self.coefficients):
            total = total.plus(_power_sum(power).times(Polynomial.of([coefficient])))
        before = sum(values(k) for k in range(self.since)) - total(self.since)
        found = total.plus(Polynomial.of([before]))
        return Polynomial.of(found.coefficients, self.since)

    def text(self, variable: str) -> str:
        """Such as `71010 n^2 + 212751892 n + 5/2`."""
        terms = [(c, k) for k, c in reversed([*enumerate(self.coefficients)]) if c]
        said = ""
        for c, k in terms:
            sign = (" - " if c < 0 else " + ") if said else ("-" if c < 0 else "")
            power = "" if k == 0 else variable if k == 1 else f"{variable}^{k}"
            number = "" if abs(c) == 1 and k else str(abs(c))
            said += sign + " ".join(part for part in (number, power) if part)
        return said or "0"

    def _padded(self, count: int) -> list[Fraction]:
        return [*self.coefficients, *[Fraction(0)] * (count - len(self.coefficients))]


@lru_cache(maxsize=16)
def _power_sum(power: int) -> Polynomial:
    """The sum of k^power over k from 0 to n - 1: n^(p+1) is the sum of (k+1)^(p+1) - k^(p+1)."""
    found = Polynomial.of([*[0] * (power + 1), 1])
    for lower in range(power):
        found = found.minus(_power_sum(lower).times(Polynomial.of([comb(power + 1, lower)])))
    return found.times(Polynomial.of([Fraction(1, power + 1)]))


def polynomial(formula: Sym) -> Polynomial | None:
    """What a formula of one variable is for all lengths from `since` on; None where it is no polynomial there, as it
    rounds. Minima and maxima are decided, as one side is the smaller one in the end."""
    if formula.kind == "const":
        return Polynomial.of([formula.value])
    if formula.kind == "var":
        return Polynomial.of([0, 1])
    if formula.kind not in ("add", "mul", "min", "max"):
        return None
    parts = [polynomial(part) for part in formula.args]
    found = parts[0]
    for part in parts[1:]:
        if found is None or part is None:
            return None
        if formula.kind == "add":
            found = found.plus(part)
        elif formula.kind == "mul":
            found = found.times(part)
        else:
            found = _in_the_end(found, part, smaller=formula.kind == "min")
    return found


def _in_the_end(a: Polynomial, b: Polynomial, *, smaller: bool) -> Polynomial:
    """That one of the two which is the smaller (or the larger) one of all lengths that are long enough."""
    since, difference = max(a.since, b.since), a.minus(b)
    if not difference.coefficients:
        return Polynomial(a.coefficients, since)
    *lower, last = difference.coefficients
    chosen = a if (last < 0) == smaller else b
    if lower:  # beyond this bound on its roots (Cauchy's; of lines the root itself) the difference has one sign
        bound = -lower[0] / last if len(lower) == 1 else 1 + max(abs(c / last) for c in lower)
        since = max(since, ceil(bound))
    return Polynomial(chosen.coefficients, since)
