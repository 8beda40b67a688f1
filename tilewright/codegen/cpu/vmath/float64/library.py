"""The platform's scalar math library, called lane by lane, for functions and arguments that are rare.

The loader resolves the library's symbols in the process.
"""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.functions import by_lane
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.ir import dtype as dt


def call_per_lane(symbol: str, x: Reg) -> Reg:
    """The vector of results of a scalar double function."""
    return by_lane(dt.f64, lambda one: one.text.call(dt.f64, 1, symbol, one), x)
