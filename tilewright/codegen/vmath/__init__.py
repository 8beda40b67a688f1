"""Vector math: elementary functions as LLVM IR text for any number of lanes.

The text uses generic LLVM instructions and intrinsics only, so that every target takes it; a target without fused
multiply-add gets the right numbers slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tilewright.codegen.vmath import exponential, logarithm, rational
from tilewright.codegen.vmath.body import Body, Value, llvm_type
from tilewright.ir.diag import InternalError

_UNARY_F32: Mapping[str, tuple[Callable[[Body, Value], Value], float]] = MappingProxyType(
    {
        "erf": (rational.erf, 4.5),
        "exp": (exponential.exp, 4.0),
        "log": (logarithm.log, 4.0),
        "sigmoid": (exponential.sigmoid, 4.0),
        "tanh": (rational.tanh, 4.6),
    }
)

SUPPORTED: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {name: MappingProxyType({"f32": ulp}) for name, (_, ulp) in _UNARY_F32.items()}
)
"""Largest error in ulp of each function, per dtype."""


def vmath_symbol(name: str, dtype: str, lanes: int) -> str:
    """The function's symbol, without the at sign: `tw_exp_f32x16`."""
    return f"tw_{name}_{dtype}x{lanes}"


def vmath_function(name: str, dtype: str, lanes: int) -> str:
    """The text of an internal function that maps vectors of `lanes` elements (one lane: scalars) to the result."""
    if dtype not in SUPPORTED.get(name, {}) or lanes < 1:
        raise InternalError(f"no vector math function {name} for {lanes} lanes of {dtype}")
    body = Body(lanes)
    result = _UNARY_F32[name][0](body, body.argument(dtype, "x"))
    vector = llvm_type(dtype, lanes)
    lines = [
        f"define internal {vector} @{vmath_symbol(name, dtype, lanes)}({vector} %x) alwaysinline nounwind {{",
        *body.lines,
        f"  ret {result.typed}",
        "}",
    ]
    return "\n".join(lines) + "\n"
