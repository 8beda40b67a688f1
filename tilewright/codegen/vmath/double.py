"""Functions in double precision: the platform's scalar math library, called lane by lane.

The loader resolves the library's symbols in the process; `LIBRARY_CALLS` tells which ones a function needs.
"""

from __future__ import annotations

from tilewright.codegen.vmath.body import Body, Value

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


def call_per_lane(body: Body, symbol: str, *arguments: Value) -> Value:
    """The vector of results of a scalar double function."""
    scalars = [[body.lane(argument, lane) for argument in arguments] for lane in range(body.lanes)]
    results = []
    for operands in scalars:
        spelled = ", ".join(f"double {name}" for name in operands)
        results.append(body.emit("f64", f"call double @{symbol}({spelled})").name)
    return body.vector_of("f64", results)


def sigmoid(body: Body, x: Value) -> Value:
    """1 / (1 + e^-x), with e^-|x| so that nothing overflows and underflow is gradual."""
    e = call_per_lane(body, "exp", -body.abs(x))
    return body.select(x < 0.0, e, 1.0) / (e + 1.0)


def softplus(body: Body, x: Value) -> Value:
    """log(1 + e^x), without overflow."""
    e = call_per_lane(body, "exp", -body.abs(x))
    return body.at_least(x, 0.0) + call_per_lane(body, "log1p", e)
