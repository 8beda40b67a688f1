"""Special functions: all are computed in f64, and results rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from tilewright.frontends.torch.node import AtenNode, Number
from tilewright.frontends.torch.registry import aten
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops.composites import special as sp
from tilewright.ops.polynomials import orthogonal_polynomial
from tilewright.ops.view import expand

Function = Callable[[Value], Value]



def _in_f64(function: Function) -> Callable[..., Value]:
    """The adapter that computes a function of one number in f64."""

    def translate(node: AtenNode, **operand: Value) -> Value:
        (x,) = operand.values()
        return node.value(function(node.value(x, dt.f64)), node.dtype)

    return translate


_UNARY: dict[str, Function] = {
    "lgamma": sp.lgamma, "special_gammaln": sp.lgamma,
    "digamma": sp.digamma, "special_digamma": sp.digamma, "special_psi": sp.digamma,
    "erfc": sp.erfc, "special_erfc": sp.erfc, "special_erfcx": sp.erfcx,
    "erfinv": sp.erfinv, "special_erfinv": sp.erfinv, "special_ndtri": sp.ndtri, "special_log_ndtr": sp.log_ndtr,
    "i0": partial(sp.bessel_i, 0), "special_i0": partial(sp.bessel_i, 0),
    "special_i0e": partial(sp.bessel_i, 0, scaled=True),
    "special_i1": partial(sp.bessel_i, 1), "special_i1e": partial(sp.bessel_i, 1, scaled=True),
    "special_modified_bessel_i0": partial(sp.bessel_i, 0), "special_modified_bessel_i1": partial(sp.bessel_i, 1),
    "special_modified_bessel_k0": partial(sp.bessel_k, 0), "special_modified_bessel_k1": partial(sp.bessel_k, 1),
    "special_scaled_modified_bessel_k0": partial(sp.bessel_k, 0, scaled=True),
    "special_scaled_modified_bessel_k1": partial(sp.bessel_k, 1, scaled=True),
    "special_bessel_j0": partial(sp.bessel_j, 0), "special_bessel_j1": partial(sp.bessel_j, 1),
    "special_airy_ai": lambda x: sp.where(ew.is_inf(x), math.nan, sp.airy(x)),
    "special_bessel_y0": partial(sp.bessel_y, 0), "special_bessel_y1": partial(sp.bessel_y, 1),
}  # fmt: skip

_UNARY |= {
    f"prims::{theirs}": _UNARY[name]
    for theirs, name in {
        "lgamma": "lgamma", "digamma": "digamma", "erf_inv": "erfinv", "erfcx": "special_erfcx", "erfc": "erfc",
        "ndtri": "special_ndtri", "bessel_i0": "i0", "bessel_i0e": "special_i0e", "bessel_i1": "special_i1",
        "bessel_i1e": "special_i1e", "bessel_j0": "special_bessel_j0", "bessel_j1": "special_bessel_j1",
    }.items()
}  # fmt: skip

for _name, _function in _UNARY.items():
    aten(_name)(_in_f64(_function))


@aten("polygamma", "special_polygamma")
def polygamma(node: AtenNode, n: int, self: Value) -> Value:
    return node.value(sp.polygamma(n, node.value(self, dt.f64)), node.dtype)


@aten("special_zeta", "prims::zeta")
def zeta(node: AtenNode, self: Value | Number, other: Value | Number) -> Value:
    return node.value(sp.zeta(node.value(self, dt.f64), node.value(other, dt.f64)), node.dtype)


@aten("igamma", "igammac", "special_gammainc", "special_gammaincc", "prims::igamma", "prims::igammac")
def incomplete_gamma(node: AtenNode, **operands: Value) -> Value:
    a, x = (expand(node.value(v, dt.f64), shape=node.shape) for v in operands.values())
    is_upper = node.op.split(".")[1] in ("igammac", "special_gammaincc")
    return node.value(sp.incomplete_gamma(a, x, is_upper), node.dtype)


@aten("special_entr")
def entropy(node: AtenNode, self: Value) -> Value:
    """-x log(x); 0 of 0, and -inf below."""
    x, zero = node.value(self, node.dtype), node.value(0, node.dtype)
    low = ew.select(ew.eq(x, zero), zero, node.value(-math.inf, node.dtype))
    found = ew.select(ew.gt(x, zero), ew.neg(ew.mul(x, ew.log(x))), low)
    return ew.select(ew.is_nan(x), x, found)


@aten("special_spherical_bessel_j0")
def spherical_bessel_j0(node: AtenNode, x: Value) -> Value:
    """sin(x) / x, near 0 by its series."""
    wide = node.value(x, dt.f64)
    square = ew.mul(wide, wide)
    near = sp.polynomial(square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(6)])
    found = sp.where(ew.lt(ew.abs_(wide), 0.5), near, ew.div(ew.sin(wide), wide))
    return node.value(sp.where(ew.is_inf(wide), 0.0, found), node.dtype)

_SERIES = (
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
)  # fmt: skip
_SHIFTED = tuple(f"shifted_{name}" for name in _SERIES[:4])


@aten(*(f"special_{name}" for name in (*_SERIES, *_SHIFTED)))
def orthogonal(node: AtenNode, x: Value | Number, n: Value | Number) -> Value:
    """Polynomials whose degrees are data."""
    kind = node.op.split(".")[1].removeprefix("special_")
    wide = node.value(x, dt.f64)
    if kind.startswith("shifted_"):
        wide = ew.sub(ew.add(wide, wide), 1.0)
    kind = kind.removeprefix("shifted_").replace("_polynomial", "")
    degree = node.value(n, dt.i64)
    found = orthogonal_polynomial(
        expand(wide, shape=node.shape), expand(degree, shape=node.shape), kind=kind
    )
    return node.value(found, node.dtype)
