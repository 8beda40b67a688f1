"""Complex numbers: what few ops on pairs of tensors compute, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tilewright.frontends.composites.fourier import real_inverse, resized, transformed
from tilewright.frontends.stablehlo.node import ProgramOp, adapter
from tilewright.frontends.stablehlo.values import ComplexPair, Held, as_value
from tilewright.frontends.translation import type_of
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops.source import full
from tilewright.ops.view import concat, reshape, shape_of, slice_, transpose


def as_pair(held: Held) -> ComplexPair:
    """Real numbers with zeros as their imaginary parts."""
    if isinstance(held, ComplexPair):
        return held
    x = as_value(held)
    return ComplexPair(x, full(value=0.0, dtype=type_of(x).dtype, shape=type_of(x).shape))


def _mul(a: ComplexPair, b: ComplexPair) -> ComplexPair:
    real = ew.sub(ew.mul(a.real, b.real), ew.mul(a.imaginary, b.imaginary))
    return ComplexPair(real, ew.add(ew.mul(a.real, b.imaginary), ew.mul(a.imaginary, b.real)))


def _div(a: ComplexPair, b: ComplexPair) -> ComplexPair:
    size = ew.add(ew.mul(b.real, b.real), ew.mul(b.imaginary, b.imaginary))
    product = _mul(a, ComplexPair(b.real, ew.neg(b.imaginary)))
    return ComplexPair(ew.div(product.real, size), ew.div(product.imaginary, size))


def _abs(x: ComplexPair) -> Value:
    """Without overflow: the greater part is taken out of the root."""
    a, b = ew.abs_(x.real), ew.abs_(x.imaginary)
    greater, lesser = ew.max_(a, b), ew.min_(a, b)
    zero = full(value=0.0, dtype=type_of(a).dtype, shape=())
    one = full(value=1.0, dtype=type_of(a).dtype, shape=())
    share = ew.div(lesser, ew.select(ew.eq(greater, zero), one, greater))
    return ew.mul(greater, ew.sqrt(ew.add(one, ew.mul(share, share))))


def _exp(x: ComplexPair) -> ComplexPair:
    size = ew.exp(x.real)
    return ComplexPair(ew.mul(size, ew.cos(x.imaginary)), ew.mul(size, ew.sin(x.imaginary)))


def _log(x: ComplexPair) -> ComplexPair:
    return ComplexPair(ew.log(_abs(x)), ew.atan2(x.imaginary, x.real))


UNARY: Mapping[str, Callable[[ComplexPair], Held]] = MappingProxyType(
    {
        "abs": _abs, "negate": lambda x: ComplexPair(ew.neg(x.real), ew.neg(x.imaginary)),
        "exponential": _exp, "log": _log,
        "cosine": lambda x: ComplexPair(ew.mul(ew.cos(x.real), ew.cosh(x.imaginary)),
                                 ew.neg(ew.mul(ew.sin(x.real), ew.sinh(x.imaginary)))),
        "sine": lambda x: ComplexPair(ew.mul(ew.sin(x.real), ew.cosh(x.imaginary)),
                               ew.mul(ew.cos(x.real), ew.sinh(x.imaginary))),
    }
)  # fmt: skip
"""Ops of one operand."""

BINARY: Mapping[str, Callable[[ComplexPair, ComplexPair], Held]] = MappingProxyType(
    {
        "add": lambda a, b: ComplexPair(ew.add(a.real, b.real), ew.add(a.imaginary, b.imaginary)),
        "subtract": lambda a, b: ComplexPair(ew.sub(a.real, b.real), ew.sub(a.imaginary, b.imaginary)),
        "multiply": _mul, "divide": _div,
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
    inverse = kind in ("IFFT", "IRFFT")
    x = _joined(held, real=kind == "RFFT")
    if kind == "RFFT":
        x = transformed(x, bins=sym(lengths[-1] // 2 + 1))
    elif kind != "IRFFT":
        x = transformed(x, inverse=inverse)
    for axis in reversed(axes[:-1]):
        x = _swapped(transformed(_swapped(x, axis, rank - 1), inverse=inverse), axis, rank - 1)
    if kind == "IRFFT":
        half = sym(lengths[-1] // 2 + 1)
        return reshape(real_inverse(resized(x, rank - 1, half), sym(lengths[-1])), shape=_real_shape(x, lengths[-1]))
    return ComplexPair(_part(x, 0), _part(x, 1))


def _real_shape(x: Value, length: int) -> tuple[object, ...]:
    return (*shape_of(x)[:-2], sym(length))


def _joined(held: Held, real: bool) -> Value:
    """Real and imaginary parts along a new last axis."""
    parts = [as_value(held)] if real else [as_pair(held).real, as_pair(held).imaginary]
    wide = [reshape(p, shape=(*shape_of(p), 1)) for p in parts]
    return wide[0] if real else concat(*wide, axis=len(shape_of(wide[0])) - 1)


def _part(x: Value, k: int) -> Value:
    *outer, _ = shape_of(x)
    starts = (*[0] * len(outer), k)
    one = slice_(x, starts=starts, sizes=(*outer, 1), steps=(1,) * len(starts))
    return reshape(one, shape=tuple(outer))


def _swapped(x: Value, a: int, b: int) -> Value:
    order = list(range(len(shape_of(x))))
    order[a], order[b] = order[b], order[a]
    return x if a == b else transpose(x, perm=tuple(order))
