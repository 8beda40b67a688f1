"""Orthogonal polynomials by their recurrences, of as many steps as each element's degree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tilewright.ir import dtype as dt
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.sort import unflattened
from tilewright.ops.traits.facts import FIRST, Traits

First = Callable[[Scalar], Scalar]
Next = Callable[[Scalar, Scalar, Scalar, Scalar], Scalar]
"""The polynomial of degree k + 1 of x, k, and those of degree k and k - 1."""

HIGHEST_DEGREE = 1 << 20
"""Each degree is a step of an element's own, and one that is read from data may be any number."""


def _chebyshev(x: Scalar, k: Scalar, p: Scalar, q: Scalar) -> Scalar:
    return x * 2 * p - q


KINDS: Mapping[str, tuple[First, Next]] = MappingProxyType(
    {
        "chebyshev_t": (lambda x: x, _chebyshev),
        "chebyshev_u": (lambda x: x * 2, _chebyshev),
        "chebyshev_v": (lambda x: x * 2 - 1, _chebyshev),
        "chebyshev_w": (lambda x: x * 2 + 1, _chebyshev),
        "hermite_h": (lambda x: x * 2, lambda x, k, p, q: x * 2 * p - k * 2 * q),
        "hermite_he": (lambda x: x, lambda x, k, p, q: x * p - k * q),
        "laguerre_l": (lambda x: -x + 1, lambda x, k, p, q: ((k * 2 + 1 - x) * p - k * q) / (k + 1)),
        "legendre_p": (lambda x: x, lambda x, k, p, q: ((k * 2 + 1) * x * p - k * q) / (k + 1)),
    }
)
"""The polynomials of degree 1, and those after; that of degree 0 is 1, and of negative degrees 0."""

_TOO_HIGH = f"the degree of a polynomial is above {HIGHEST_DEGREE}"


def _types(x: TensorType, degree: TensorType, *, kind: str) -> tuple[TensorType, ...]:
    if kind not in KINDS:
        raise ValueError(f"there are no polynomials '{kind}': {', '.join(KINDS)}")
    if not x.dtype.is_float or degree.dtype != dt.i64 or degree.shape != x.shape:
        raise ValueError(f"polynomials are of floats, with a degree of i64 for each, not of {x} and {degree}")
    return (x,)


@irregular(_types)
def orthogonal_polynomial(t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, kind: str) -> None:
    """The polynomial of a kind whose degree is given for each element of x, an error beyond 2^20."""
    (x, degree), (y,) = inputs, outputs
    first, after = KINDS[kind]
    with t.loop(product(x.shape), "element", "parallel") as element:
        place = unflattened(element, x.shape)
        at = x[place]
        t.check(degree[place] <= HIGHEST_DEGREE, "ExecutionError", _TOO_HIGH)
        n = t.apply("max", t.apply("min", degree[place], HIGHEST_DEGREE), -1)
        one, none = t.const(1, x.dtype), t.const(0, x.dtype)
        p, q = t.alloc(x.dtype, (1,), "reg"), t.alloc(x.dtype, (1,), "reg")
        p.store((0,), t.select(n > 0, first(at), t.select(n < 0, none, one)))
        q.store((0,), one)
        steps = t.bind(t.apply("max", n - 1, t.const(0, dt.i64)), "steps", 0, HIGHEST_DEGREE)
        with t.loop(steps, "k") as k:
            found = after(at, t.index(k + 1).cast(x.dtype), p[0], q[0])
            q.store((0,), p[0])
            p.store((0,), found)
        y.store(place, p[0])


orthogonal_polynomial.declares(Traits(continuous=FIRST))
