"""What is stated of symbolic integers: expressions, and the canonical forms that arithmetic gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir import sym as sizes
from tilewright.ir.sym import Ranges, Sym, const, var

X, Y = var("x", None), var("y", None)
"""Any integers."""
N, M = var("n"), var("m")
"""Sizes."""
AT, J = var("i", 0, 3), var("j", 0, 7)
"""Positions along axes of 4 and of 8."""
P, Q = var("p", 0, 1), var("q", 0, 1)
"""Conditions."""
D = var("d", 1)
"""A divisor."""

Expression = Callable[..., Any]
"""Of a room of functions (`floordiv`, `minimum`, ...) and variables: an expression of symbolic integers, or a term."""


@dataclass(frozen=True)
class SizeStatement:
    """The canonical form of an expression, within ranges of its variables, which a rule brings about."""

    rule: str
    expression: Expression
    variables: tuple[Sym, ...]
    becomes: str
    ranges: Mapping[Sym, tuple[Sym, Sym]] = field(default_factory=dict)

    @property
    def case(self) -> str:
        return f"{self.becomes}"

    def canonical(self) -> Sym:
        made: Sym = sizes.sym(self.expression(sizes, *self.variables))
        ranges: Ranges = dict(self.ranges)
        return sizes.simplify(made, ranges) if ranges else made


def stated_of_sizes() -> Iterator[SizeStatement]:
    def s(rule: str, expression: Expression, variables: tuple[Sym, ...], becomes: str, **ranges: Any) -> SizeStatement:
        named = {v: (const(0), high) for v in variables for name, high in ranges.items() if v.name == name}
        return SizeStatement(rule, expression, variables, becomes, named)

    yield s("quotient and remainder", lambda o, x: 6 * (x // 6) + x % 6, (X,), "x")
    yield s("quotient and remainder", lambda o, x: (x + 5) - 6 * ((x + 5) // 6), (X,), "(x + 5) % 6")
    yield s("quotient and remainder", lambda o, x, d: d * (x // d) + x % d, (X, D), "x")
    yield s("remainder taken off", lambda o, x: x - x % 6, (X,), "6*(x // 6)")
    yield s("remainder of a quotient", lambda o, x: 6 * ((x // 6) % 4) + x % 6, (X,), "x % 24")
    yield s("multiples leave a division", lambda o, x, y: (6 * x + y) // 6, (X, Y), "x + y // 6")
    yield s("multiples leave a division", lambda o, x, d: (x * d + 3 * d) // d, (X, D), "x + 3")
    yield s("multiples leave a remainder", lambda o, x, y: (6 * x + y) % 6, (X, Y), "y % 6")
    yield s("multiples leave a remainder", lambda o, x, d: (x * d) % d, (X, D), "0")
    yield s("division by a negative number", lambda o, x: x // -6, (X,), "-x // 6")
    yield s("division by a negative number", lambda o, x: x % -6, (X,), "-(-x % 6)")
    yield s("common factor of a division", lambda o, x, n, d: (n * d + 4 * d) // (2 * d), (X, N, D), "n // 2 + 2")
    yield s("common factor of a remainder", lambda o, n, d: (3 * d * n) % (6 * d), (N, D), "3*d*(n % 2)")
    yield s("division of polynomials", lambda o, n, d: ((n + d) * (n + 2 * d)) // (n + d), (N, D), "2*d + n")
    yield s("quotient within bounds", lambda o, i: (i + 8) // 4, (AT,), "2")
    yield s("quotient within bounds", lambda o, i: i % 4, (AT,), "i")
    yield s("coarse and fine parts", lambda o, x, i: (4 * x + i) // 12, (X, AT), "x // 3")
    yield s("coarse and fine parts", lambda o, x, i: (4 * x + i) % 12, (X, AT), "4*(x % 3) + i")
    yield s("quotient of a quotient", lambda o, n: (n // 4) // 6, (N,), "n // 24")
    yield s("quotient of a quotient", lambda o, n: (n // 4 + 3) // 6, (N,), "(n + 12) // 24")
    yield s("quotient of a remainder", lambda o, x: (x % 24) // 4, (X,), "(x // 4) % 6")
    yield s("remainder of a remainder", lambda o, x: (x % 24) % 6, (X,), "x % 6")
    yield s("remainder of a remainder", lambda o, n, m: (2 * (n % 6) + m) % 4, (N, M), "(2*n + m) % 4")
    yield s("superfluous operands", lambda o, n: o.minimum(n, n + 3), (N,), "n")
    yield s("superfluous operands", lambda o, n: o.maximum(n, 0), (N,), "n")
    yield s("nested extremes", lambda o, x, y: o.maximum(o.maximum(x, 3), y, x), (X, Y), "max(x, y, 3)")
    yield s("conditions without common factors", lambda o, x: o.ge0(6 * x - 9), (X,), "x >= 2")
    yield s("conditions without common factors", lambda o, x: o.eq0(6 * x - 12), (X,), "x == 2")
    yield s("conditions that never hold", lambda o, x: o.eq0(6 * x - 9), (X,), "0")
    yield s("decided conditions", lambda o, n: o.ge0(n + 1), (N,), "1")
    yield s("opposite conditions", lambda o, x: o.logical_not(o.ge0(x - 3)), (X,), "x < 3")
    yield s("opposite of all and any", lambda o, x, y: o.logical_not(o.minimum(o.ge0(x), o.ge0(y))), (X, Y),
            "x < 0 or y < 0")  # fmt: skip
    yield s("powers of conditions", lambda o, p: p * p * p, (P,), "p")
    yield s("choices", lambda o, p, x: o.select(p, x, x), (P, X), "x")
    yield s("choices", lambda o, p: o.select(p, 0, 1), (P,), "-p + 1")
    yield s("choices of choices", lambda o, p, q, x, y: o.select(p, x, o.select(q, x, y)), (P, Q, X, Y),
            "select(max(p, q), x, y)")  # fmt: skip
    yield s("divisions that ranges decide", lambda o, x, n: (x + n * 0) // n, (X, N), "0", x=N - 1)
    yield s("divisions that ranges decide", lambda o, x, n: x % n, (X, N), "x", x=N - 1)
    yield s("extremes that ranges decide", lambda o, x, n: o.minimum(x, n - 1), (X, N), "x", x=N - 1)
    yield s("conditions that ranges decide", lambda o, x, n: o.ge0(n - 1 - x), (X, N), "1", x=N - 1)
