"""Functions in double precision: the platform's scalar math library, called lane by lane.

The loader resolves the library's symbols in the process; `LIBRARY_CALLS` tells which ones a function needs.
"""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.functions import absolute, at_least, by_lane
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.ir import dtype as dt

DIRECT = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "exp2", "expm1",
    "log", "log1p", "pow", "sin", "sinh", "tan", "tanh",
)  # fmt: skip
"""Functions that the library has under the same name."""

LIBRARY_CALLS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in DIRECT},
    "rsqrt": (),
    "sigmoid": ("exp",),
    "softplus": ("exp", "log1p"),
}


def call_per_lane(symbol: str, *arguments: Reg) -> Reg:
    """The vector of results of a scalar double function."""
    text = arguments[0].text
    return by_lane(dt.f64, lambda *ones: text.call(dt.f64, 1, symbol, *ones), *arguments)


def sigmoid(x: Reg) -> Reg:
    """1 / (1 + e^-x), with e^-|x| so that nothing overflows and underflow is gradual."""
    e = call_per_lane("exp", -absolute(x))
    return (x < 0.0).select(e, 1.0) / (e + 1.0)


def softplus(x: Reg) -> Reg:
    """log(1 + e^x), without overflow."""
    e = call_per_lane("exp", -absolute(x))
    return at_least(x, 0.0) + call_per_lane("log1p", e)
