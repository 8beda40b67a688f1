"""Expressions of symbolic integers that are drawn, for which no statement was thought of."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.proofs.of_sizes import AT, J, N, P, X, Y

VARIABLES = (X, Y, N, AT, J, P)
DIVISORS = (2, 3, 4, 6, 8, 12, 24, -4)
FACTORS = (-6, -1, 2, 3, 4, 8, 12)

Drawn = Callable[..., Any]


def drawn(rng: random.Random, depth: int) -> Drawn:
    """An expression, as a function of a room of functions and of `VARIABLES`."""
    if depth == 0 or rng.random() < 0.1:
        k = rng.randrange(len(VARIABLES))
        return lambda o, *v: v[k]
    a, b = drawn(rng, depth - 1), drawn(rng, depth - 1)
    number = rng.randint(-9, 9)
    divisor, factor = rng.choice(DIVISORS), rng.choice(FACTORS)
    return rng.choice(
        (
            lambda o, *v: a(o, *v) + b(o, *v),
            lambda o, *v: a(o, *v) - factor * b(o, *v),
            lambda o, *v: a(o, *v) + number,
            lambda o, *v: factor * a(o, *v) + b(o, *v),
            lambda o, *v: a(o, *v) // divisor,
            lambda o, *v: a(o, *v) % divisor,
            lambda o, *v: a(o, *v) - divisor * (a(o, *v) // divisor),
            lambda o, *v: divisor * ((a(o, *v) + number) // divisor) + (a(o, *v) + number) % divisor,
            lambda o, *v: o.minimum(a(o, *v), b(o, *v), number),
            lambda o, *v: o.maximum(a(o, *v), b(o, *v) + number),
            lambda o, *v: o.select(o.ge0(a(o, *v) + number), a(o, *v), b(o, *v)),
            lambda o, *v: o.eq0(factor * a(o, *v) + number),
            lambda o, *v: o.logical_not(o.ge0(factor * a(o, *v) - number)),
        )
    )
