"""The texts of intrinsics as programs."""

from __future__ import annotations

from tilewright.ir.core import Func
from tilewright.ir.sym import Sym, parse_sym, var
from tilewright.loops.kernel_info import parse_kernel
from tilewright.target.machine import Intrinsic


def kernel_of(intrinsic: Intrinsic) -> Func:
    """What it computes, as a kernel over its operands."""
    return parse_kernel(intrinsic.body)


def conditions_of(intrinsic: Intrinsic, kernel: Func) -> tuple[Sym, ...]:
    """Its limits as expressions over the dims of its kernel, not 0 where they hold."""
    return tuple(_expression(text, kernel) for text in intrinsic.limits)


def _expression(text: str, kernel: Func) -> Sym:
    dims: dict[str, Sym] = {d.name: d for d in kernel.dims}
    return parse_sym(text, lambda name: dims[name] if name in dims else var(name))
