"""Tensors that come from nothing: fills, counters, and dims as data."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym
from tilewright.ops.define import Compute, compute, primitive
from tilewright.ops.define.scalar_builder import Scalar, ScalarBuilder
from tilewright.ops.shape import Dim, checked_axis, dims


@primitive
def full(*, value: float, dtype: DType, shape: Sequence[Dim]) -> Compute:
    """A tensor of `shape` whose every element is `value`."""
    return compute([], dims(shape), lambda t, i, r: t.const(value, dtype))


@primitive
def iota(*, shape: Sequence[Dim], axis: int, dtype: DType = dt.i64) -> Compute:
    """The position along `axis` as the value of every element."""
    a = checked_axis(axis, len(shape))
    return compute([], dims(shape), lambda t, i, r: t.index(i[a]).cast(dtype))


@primitive
def sym_tensor(*, values: tuple[Sym, ...], scalar: bool = False) -> Compute:
    """Dims as data: the i64 vector of `values`, or with `scalar` the only one of them as a rank-0 tensor."""
    if scalar and len(values) != 1:
        raise ValueError(f"a scalar has one value, not {len(values)}")

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        chosen = s.sym(values[-1]) if values else s.sym(0)
        for k in reversed(range(len(values) - 1)):
            chosen = s.select(s.eq(i[0], k), values[k], chosen)
        return t.index(chosen)

    return compute([], () if scalar else (len(values),), body)


def dim_value(d: Dim) -> Value:
    """A dim as a rank-0 tensor of i64."""
    value: Value = sym_tensor(values=(s.sym(d),), scalar=True)
    return value


def number_like(value: float, x: Value) -> Value:
    """A rank-0 tensor with the dtype of x."""
    found: Value = full(value=value, dtype=x.tensor.dtype, shape=())
    return found
