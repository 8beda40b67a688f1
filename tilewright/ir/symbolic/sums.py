"""What is built of sums, products and quotients of symbolic integers, and of expressions of the same kind."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.symbolic.arith import Sym, floordiv, sum_of, sym


def ceildiv(a: Sym | int, b: Sym | int) -> Sym:
    """a / b rounded up, for a positive b."""
    return floordiv(sym(a) + b - 1, b)


def weighted_sum(start: Sym, factors: Iterable[Sym], weights: Iterable[Sym]) -> Sym:
    """`start` and the product of each factor with its weight, of which there are as many."""
    total = dict(start.terms)
    for factor, weight in zip(factors, weights, strict=True):
        scale, part = (weight._payload, factor) if weight.kind == "const" else (1, factor * weight)
        for mono, coef in part.terms:
            total[mono] = total.get(mono, 0) + coef * scale
    return sum_of(total)


def rebuild(e: Sym, args: tuple[Sym, ...]) -> Sym:
    """The canonical expression of e's kind over other operands."""
    return e if e._make is None else e._make(*args)
