"""Reductions over axes: primitives, and composites of them with elementwise operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, le, sym
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import Compute, Operator, compute, op, primitive
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.elementwise import (
    abs_,
    add,
    cast,
    div,
    eq,
    exp,
    is_inf,
    is_nan,
    log,
    mul,
    or_,
    select,
    sqrt,
    sub,
)
from tilewright.ops.shape import checked_axes, checked_axis
from tilewright.ops.source import dim_value, full, iota
from tilewright.ops.view import shape_of, squeeze


def _reduction(name: str, combine: str, doc: str) -> Operator:
    """The operator that combines elements along axes by scalar operation `combine`."""

    def fn(x: Array, *, axes: Sequence[int], keepdims: bool = True) -> Compute:
        reduced = checked_axes(axes, x.rank)
        kept = [k for k in range(x.rank) if k not in reduced]
        shape = [sym(1) if k in reduced else d for k, d in enumerate(x.shape)]

        def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
            outer = [i[k] for k in kept] if keepdims else i
            position = dict(zip(kept, outer, strict=True)) | dict(zip(reduced, r, strict=True))
            return x[tuple(position[k] for k in range(x.rank))]

        by = {"min": "and", "max": "or", "add": "or", "mul": "and"}.get(combine, combine)
        by = by if x.dtype.kind == "bool" else combine
        if by in ("and", "or") and x.dtype.is_float:
            raise ValueError(f"{name} takes integers or bool, not {x.dtype}")
        return compute(
            [x],
            shape if keepdims else [x.shape[k] for k in kept],
            body,
            reduce=[x.shape[k] for k in reduced],
            combine=by,
        )

    fn.__name__, fn.__doc__ = name, doc
    return primitive(fn)


reduce_sum = _reduction("reduce_sum", "add", "The sum over `axes`; of no elements 0.")
reduce_prod = _reduction("reduce_prod", "mul", "The product over `axes`; of no elements 1.")
reduce_min = _reduction(
    "reduce_min", "min", "The least element over `axes`; NaN if there is one, of none the greatest."
)
reduce_max = _reduction(
    "reduce_max", "max", "The greatest element over `axes`; NaN if there is one, of none the least."
)
reduce_and = _reduction("reduce_and", "and", "The bitwise (of bools: logical) conjunction over `axes`.")
reduce_or = _reduction("reduce_or", "or", "The bitwise (of bools: logical) disjunction over `axes`.")


def dtype_of(x: Value) -> DType:
    """The dtype of a tensor value."""
    return x.tensor.dtype


def widened(x: Value) -> Value:
    """A 16-bit (or narrower) float tensor in f32; any other as it is."""
    dtype = dtype_of(x)
    return cast(x, dtype=dtype.accumulator) if dtype.is_float and dtype.accumulator != dtype else x


def as_dtype(x: Value, dtype: DType) -> Value:
    """x in `dtype`, without an op where it has it already."""
    return x if dtype_of(x) == dtype else cast(x, dtype=dtype)


def element_count(x: Value, axes: Sequence[int], dtype: DType, least: int = 0) -> Value:
    """The number of elements along `axes`, at `least` so many, as a rank-0 tensor."""
    count = s.maximum(product(shape_of(x)[a] for a in checked_axes(axes, len(shape_of(x)))), least)
    if count.is_const:
        return full(value=count.value, dtype=dtype, shape=())
    return cast(dim_value(count), dtype=dtype)


@op
def reduce_mean(x: Value, *, axes: Sequence[int], keepdims: bool = True, least_count: int = 0) -> Value:
    """The arithmetic mean over `axes`; of no elements NaN, or 0 with a `least_count` of 1."""
    wide = widened(x)
    total = reduce_sum(wide, axes=axes, keepdims=keepdims)
    return as_dtype(div(total, element_count(x, axes, dtype_of(wide), least_count)), dtype_of(x))


def mean_or_zero(x: Value, *, axes: Sequence[int], keepdims: bool = True) -> Value:
    """The arithmetic mean over `axes`; of no elements 0."""
    return reduce_mean(x, axes=axes, keepdims=keepdims, least_count=1)


@op
def reduce_sum_square(x: Value, *, axes: Sequence[int], keepdims: bool = True) -> Value:
    """The sum of squares over `axes`."""
    wide = widened(x)
    return as_dtype(reduce_sum(mul(wide, wide), axes=axes, keepdims=keepdims), dtype_of(x))


@op
def reduce_l1(x: Value, *, axes: Sequence[int], keepdims: bool = True) -> Value:
    """The sum of absolute values over `axes`."""
    return as_dtype(reduce_sum(abs_(widened(x)), axes=axes, keepdims=keepdims), dtype_of(x))


@op
def reduce_l2(x: Value, *, axes: Sequence[int], keepdims: bool = True) -> Value:
    """The square root of the sum of squares over `axes`; of integers truncated."""
    wide = widened(x) if dtype_of(x).is_float else cast(x, dtype=dt.f64)
    return as_dtype(sqrt(reduce_sum(mul(wide, wide), axes=axes, keepdims=keepdims)), dtype_of(x))


@op
def reduce_log_sum(x: Value, *, axes: Sequence[int], keepdims: bool = True) -> Value:
    """The logarithm of the sum over `axes`; of integers truncated."""
    wide = widened(x) if dtype_of(x).is_float else cast(x, dtype=dt.f64)
    return as_dtype(log(reduce_sum(wide, axes=axes, keepdims=keepdims)), dtype_of(x))


@op
def reduce_logsumexp(x: Value, *, axes: Sequence[int], keepdims: bool = True) -> Value:
    """log(sum(exp(x))) over `axes`, without overflow: the greatest element is taken out first."""
    wide = widened(x) if dtype_of(x).is_float else cast(x, dtype=dt.f64)
    greatest = reduce_max(wide, axes=axes, keepdims=True)
    finite = select(is_inf(greatest), full(value=0.0, dtype=dtype_of(wide), shape=()), greatest)
    result = add(log(reduce_sum(exp(sub(wide, finite)), axes=axes, keepdims=True)), finite)
    return as_dtype(result if keepdims else squeeze(result, axes=axes), dtype_of(x))


def position_of(reduction: Operator) -> Callable[..., Value]:
    """The position of the first (or last) element that equals what `reduction` gives; NaN is extreme. Of no elements
    it is one that does not exist."""

    def position(x: Value, *, axis: int, keepdims: bool = True, last: bool = False) -> Value:
        shape = shape_of(x)
        a = checked_axis(axis, len(shape))
        found = eq(x, reduction(x, axes=(a,), keepdims=True))
        if dtype_of(x).is_float:
            found = or_(found, is_nan(x))
        along = tuple(d if k == a else sym(1) for k, d in enumerate(shape))
        positions = iota(shape=along, axis=a)
        nowhere = full(value=-1 if last else (1 << 63) - 1, dtype=dt.i64, shape=())
        candidates = select(found, positions, nowhere)
        return (reduce_max if last else reduce_min)(candidates, axes=(a,), keepdims=keepdims)

    return position


@op(keep=True)
def argmax(x: Value, *, axis: int, keepdims: bool = True, last: bool = False) -> Value:
    """The position (i64) of the first greatest element along `axis`, with `last` of the last one."""
    _require_elements(x, axis)
    return position_of(reduce_max)(x, axis=axis, keepdims=keepdims, last=last)


@op(keep=True)
def argmin(x: Value, *, axis: int, keepdims: bool = True, last: bool = False) -> Value:
    """The position (i64) of the first least element along `axis`, with `last` of the last one."""
    _require_elements(x, axis)
    return position_of(reduce_min)(x, axis=axis, keepdims=keepdims, last=last)


def _require_elements(x: Value, axis: int) -> None:
    holds = _has_elements(shape_of(x), axis)
    if holds.is_const and not holds.value:
        raise ValueError("there is no greatest or least of no elements")


@argmax.requires
@argmin.requires
def _some_elements(x: TensorType, *, axis: int, keepdims: bool, last: bool) -> tuple[Sym, str]:
    holds = _has_elements(x.shape, axis)
    return holds, f"there is no greatest or least of no elements: it must be that {holds}"


def _has_elements(shape: Sequence[Sym], axis: int) -> Sym:
    """Whether there are elements along an axis for each result, of which there may be none."""
    a = checked_axis(axis, len(shape))
    others = product(d for k, d in enumerate(shape) if k != a)
    return s.logical_or(le(1, shape[a]), s.eq(others, 0))
