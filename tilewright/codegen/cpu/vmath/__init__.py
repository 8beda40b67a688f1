"""Vector math: elementary functions as LLVM IR text for any number of lanes.

The text uses generic LLVM instructions and intrinsics, so that every target takes it, and the target's own only
where it is told of them. On a target without fused multiply-add, products are rounded before they are added, but where
an algorithm needs them exactly: results differ by rounding, within the same bounds.
Both precisions are computed here, but for a few functions, and circular ones of huge numbers, in double precision,
which the platform's math library computes lane by lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tilewright.codegen.cpu.vmath.functions import DOUBLE, SINGLE, Function
from tilewright.codegen.cpu.vmath.text import function_text
from tilewright.ir.diag import InternalError
from tilewright.target.scale import Scale

_TABLES: Mapping[str, Mapping[str, Function]] = MappingProxyType({"f32": SINGLE, "f64": DOUBLE})

SUPPORTED: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        name: MappingProxyType({dtype: table[name].ulp for dtype, table in _TABLES.items()})
        for name in sorted(SINGLE)
        if SINGLE[name].ulp
    }
)
"""The largest error of each function that is not exact, by dtype, in units of the last place of the exact result.

For f32 it bounds what `bench/ulp.py` measured: over all 2^32 arguments for the functions that models use
most, over each 33rd for the others, over random pairs for pow. Sigmoid was measured at all
arguments with 2^-27 <= |x| < 128 and at each 1023rd of the others. For f64 it bounds what `bench/ulp64.py` measured
at 2.6 million arguments; of functions that the math library computes it is what that usually promises.
"""


def _function(name: str, dtype: str) -> Function:
    function = _TABLES.get(dtype, {}).get(name)
    if function is None:
        raise InternalError(
            f"there is no vector math function {name} for {dtype}",
            hint=f"f32 and f64 have {', '.join(SUPPORTED)}; compute narrower floats in f32",
        )
    return function


def vmath_arity(name: str, dtype: str) -> int:
    """How many arguments the function takes."""
    return _function(name, dtype).arity


def vmath_symbol(name: str, dtype: str, lanes: int) -> str:
    """The function's symbol, without the at sign: `tw_exp_f32x16`."""
    return f"tw_{name}_{dtype}x{lanes}"


def vmath_function(
    name: str, dtype: str, lanes: int, scale: Scale | None = None, *, fuses: bool = True
) -> str:
    """The text of an internal, always inlined function on vectors of `lanes` elements (one lane: on scalars).

    The arguments and the result have the same type. `scale` is what the target has to multiply by powers of two, and
    `fuses` says whether it has fused multiply-adds; results may differ by these, never by the lanes. The text may hold
    helper functions, named after the symbol, and needs the declarations of `vmath_declarations` in its module. It is
    the same at every call.
    """
    function = _function(name, dtype)
    if lanes < 1:
        raise InternalError(
            f"vector math function {name} cannot have {lanes} lanes", hint="ask for 1 or more"
        )
    return function_text(function, vmath_symbol(name, dtype, lanes), dtype, lanes, scale, fuses)


def vmath_declarations(name: str, dtype: str) -> tuple[str, ...]:
    """The declarations of library functions that the text calls; a module must hold each just once."""
    return tuple(f"declare double @{symbol}(double)" for symbol in _function(name, dtype).calls)
