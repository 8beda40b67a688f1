"""Complex numbers: what few ops on pairs of tensors compute, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tilewright.frontends.stablehlo.node import ProgramOp, adapter
from tilewright.frontends.stablehlo.values import ComplexPair, Held, as_value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops.composites import complex as cx
from tilewright.ops.composites.fourier import fft, irfft, resized
from tilewright.ops.view import shape_of


def as_pair(held: Held) -> ComplexPair:
    """Real numbers with zeros as their imaginary parts."""
    return held if isinstance(held, ComplexPair) else cx.as_pair(as_value(held))


UNARY: Mapping[str, Callable[[ComplexPair], Held]] = MappingProxyType(
    {
        "abs": cx.abs_, "negate": cx.neg, "exponential": cx.exp, "exponential_minus_one": cx.expm1, "log": cx.log,
        "log_plus_one": cx.log1p, "cosine": cx.cos, "sine": cx.sin, "tan": cx.tan, "tanh": cx.tanh, "sqrt": cx.sqrt,
        "rsqrt": lambda x: cx.reciprocal(cx.sqrt(x)), "logistic": cx.sigmoid, "sign": cx.sign,
    }
)  # fmt: skip
"""Ops of one operand."""

BINARY: Mapping[str, Callable[[ComplexPair, ComplexPair], Held]] = MappingProxyType(
    {
        "add": cx.add, "subtract": cx.sub, "multiply": cx.mul, "divide": cx.div, "power": cx.pow_,
        "atan2": lambda a, b: as_pair(ew.atan2(a.real, b.real)),
    }
)  # fmt: skip
"""Ops of two operands."""


@adapter("complex")
def _complex(node: ProgramOp) -> Held:
    return ComplexPair(node.x(0), node.x(1))


@adapter("real")
def _real(node: ProgramOp) -> Held:
    x = node.held(0)
    return x.real if isinstance(x, ComplexPair) else x


@adapter("imag")
def _imaginary(node: ProgramOp) -> Held:
    return as_pair(node.held(0)).imaginary


@adapter("fft")
def _fft(node: ProgramOp) -> Held:
    """Axis by axis: real ones begin, or end, with the last."""
    kind = str(node.attribute("fft_type")).rsplit(" ", 1)[-1].strip(">")
    lengths = node.integers("fft_length")
    held = node.held(0)
    rank = len(shape_of(held.real if isinstance(held, ComplexPair) else as_value(held)))
    axes = list(range(rank - len(lengths), rank))
    if not axes or axes[0] < 0:
        raise ModelError(f"a transform over {len(lengths)} axes of {rank}")
    if kind == "IRFFT":
        pair = as_pair(held)
        for axis in axes[:-1]:
            pair = fft(pair, axis, inverse=True)
        half = sym(lengths[-1] // 2 + 1)
        return irfft(cx.each(pair, lambda v: resized(v, rank - 1, half)), rank - 1, sym(lengths[-1]))
    found = (
        fft(as_value(held), rank - 1, bins=sym(lengths[-1] // 2 + 1))
        if kind == "RFFT"
        else fft(as_pair(held), rank - 1, inverse=kind == "IFFT")
    )
    for axis in reversed(axes[:-1]):
        found = fft(found, axis, inverse=kind == "IFFT")
    return found
