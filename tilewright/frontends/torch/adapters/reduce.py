"""Reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.frontends.torch.adapters.elementwise import as_bool
from tilewright.frontends.torch.node import AtenNode, Number
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops.view import reshape, shape_of, squeeze

Axes = Sequence[int] | int | None


def _reduced(node: AtenNode, x: Value, dim: Axes, keepdim: bool, operator: Callable[..., Value]) -> Value:
    rank = len(shape_of(x))
    axes = node.axes(dim, rank)
    return operator(x, axes=axes, keepdims=keepdim) if axes else x


@aten("sum", "nansum")
def sum_(
    node: AtenNode, self: Value, dim: Axes = None, keepdim: bool = False, dtype: DType | None = None
) -> Value:
    x = node.value(self, node.dtype)
    if node.op.startswith("aten.nansum") and node.dtype.is_float:
        x = ew.select(ew.is_nan(x), node.value(0, node.dtype), x)
    return _reduced(node, x, dim, keepdim, rd.reduce_sum)


_SIMPLE = {"prod": rd.reduce_prod, "mean": rd.reduce_mean, "logsumexp": rd.reduce_logsumexp}


@aten(*_SIMPLE)
def reduced(node: AtenNode, self: Value, dim: Axes = None, keepdim: bool = False, **how: Any) -> Value:
    return _reduced(node, node.value(self, node.dtype), dim, keepdim, _SIMPLE[node.op.split(".")[1]])


@aten("amax", "amin")
def extremum(node: AtenNode, self: Value, dim: Axes = (), keepdim: bool = False) -> Value:
    return _extremum(node, self, dim, keepdim, node.op.startswith("aten.amax"))


def _extremum(node: AtenNode, x: Value, dim: Axes, keepdim: bool, greatest: bool) -> Value:
    if type_of(x).dtype is dt.bool_:
        return _reduced(node, x, dim, keepdim, rd.reduce_or if greatest else rd.reduce_and)
    return _reduced(node, x, dim, keepdim, rd.reduce_max if greatest else rd.reduce_min)


@aten("max", "min")
def extremum_and_place(
    node: AtenNode, self: Value, dim: int | None = None, keepdim: bool = False, other: Value | None = None
) -> Value | tuple[Value, Value]:
    greatest = node.op.startswith("aten.max")
    if other is not None:
        return (ew.max_ if greatest else ew.min_)(*node.promoted(self, other))
    values = _extremum(node, self, dim, keepdim, greatest)
    return values if dim is None else (values, _place(node, self, dim, keepdim, greatest))


@aten("aminmax")
def aminmax(
    node: AtenNode, self: Value, dim: int | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return _extremum(node, self, dim, keepdim, False), _extremum(node, self, dim, keepdim, True)


def _place(node: AtenNode, x: Value, dim: int, keepdim: bool, greatest: bool) -> Value:
    rank = len(shape_of(x))
    if rank == 0:
        return ew.cast(ew.ne(x, x), dtype=dt.i64)
    wide = ew.cast(x, dtype=dt.u8) if type_of(x).dtype is dt.bool_ else x
    return (rd.argmax if greatest else rd.argmin)(wide, axis=node.axis(dim, rank), keepdims=keepdim)


@aten("argmax", "argmin")
def arg_extremum(node: AtenNode, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    greatest = node.op.startswith("aten.argmax")
    if dim is None:
        flat = reshape(self, shape=(product(shape_of(self)),))
        found = _place(node, flat, 0, False, greatest)
        return reshape(found, shape=node.shape)
    return _place(node, self, dim, keepdim, greatest)


@aten("any", "all", "_is_any_true", "_is_all_true")
def quantified(node: AtenNode, self: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    operator = rd.reduce_or if "any" in node.op else rd.reduce_and
    found = _reduced(node, as_bool(self), dim, keepdim, operator)
    return ew.cast(found, dtype=node.dtype) if node.dtype is not dt.bool_ else found


@aten("var", "std", "var_mean", "std_mean")
def spread(
    node: AtenNode,
    self: Value,
    dim: Axes = None,
    keepdim: bool = False,
    unbiased: bool | None = None,
    correction: Number | None = None,
) -> Value | tuple[Value, Value]:
    """The variance divides by the number of elements less `correction` (1 where nothing is said)."""
    less = (1 if unbiased is None or unbiased else 0) if correction is None else correction
    rank = len(shape_of(self))
    axes, wide = node.axes(dim, rank), rd.widened(self)
    dtype = type_of(wide).dtype
    mean = rd.reduce_mean(wide, axes=axes) if axes else wide
    centred = ew.sub(wide, mean)
    squares = ew.mul(centred, centred)
    total = rd.reduce_sum(squares, axes=axes) if axes else squares
    count = rd.element_count(wide, axes, dtype) if axes else node.value(1, dtype)
    divisor = ew.max_(ew.sub(count, node.value(less, dtype)), node.value(0, dtype))
    found = ew.div(total, divisor)
    op = node.op.split(".")[1]
    found = ew.sqrt(found) if op.startswith("std") else found
    if not keepdim and axes:
        found, mean = squeeze(found, axes=axes), squeeze(mean, axes=axes)
    found, mean = (rd.as_dtype(x, type_of(self).dtype) for x in (found, mean))
    return (found, mean) if op.endswith("mean") else found
