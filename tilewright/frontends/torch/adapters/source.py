"""Tensors that come from nothing: fills, ranges, random numbers; and checks that give nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontends.torch.node import AtenNode, Number
from tilewright.frontends.torch.registry import aten
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.random import fresh_key, random_normal, random_uniform
from tilewright.ops.source import full, iota
from tilewright.ops.view import expand

_FILLS = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1, "empty": 0,
          "empty_like": 0, "new_empty": 0, "empty_strided": 0, "new_empty_strided": 0, "empty_permuted": 0,
          "_efficientzerotensor": 0}  # fmt: skip


@aten(*_FILLS)
def filled(node: AtenNode, **how: Any) -> Value:
    """Memory that a program may not read before it writes it is zeros."""
    return full(value=_FILLS[node.op.split(".")[1]], dtype=node.dtype, shape=node.shape)


@aten("full", "full_like", "new_full", "fill", "scalar_tensor")
def full_(node: AtenNode, **how: Any) -> Value:
    value = how.get("fill_value", how.get("value", how.get("s")))
    if isinstance(value, Value | Sym):
        return expand(node.value(value, node.dtype), shape=node.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        number = np.array(value).astype(node.dtype.storage).item()
    return full(value=number, dtype=node.dtype, shape=node.shape)


@aten("arange", "range")
def arange(
    node: AtenNode, end: Number | None = None, start: Number = 0, step: Number = 1, **how: Any
) -> Value:
    (count,) = node.shape
    dtype = node.dtype
    if dtype.is_float and all(isinstance(v, int | float) for v in (start, step)) and count.is_const:
        values = float(start) + float(step) * np.arange(count.value)
        return constant(values.astype(dtype.storage), "arange")
    places = iota(shape=(count,), axis=0, dtype=dtype if dtype.is_int else dt.i64)
    inner = dtype if dtype.is_int else dt.f64
    found = node.value(places, inner)
    found = found if step == 1 else ew.mul(found, node.value(step, inner))
    found = found if isinstance(start, int) and start == 0 else ew.add(found, node.value(start, inner))
    return node.value(found, dtype)


@aten("iota", namespace="prims")
def iota_(node: AtenNode, length: Number, start: Number, step: Number, **how: Any) -> Value:
    return arange(node, None, start, step)


@aten("linspace")
def linspace(node: AtenNode, start: Any, end: Any, steps: Number, **how: Any) -> Value:
    (count,) = node.shape
    return evenly_spaced(node, start, end, count, node.dtype)


def evenly_spaced(node: AtenNode, start: Any, end: Any, count: Sym, dtype: DType) -> Value:
    """`count` numbers from `start` to `end`, those of the second half counted from the end."""
    inner = dt.f64
    first, last = node.value(start, inner), node.value(end, inner)
    if count == 1:
        return expand(node.value(first, dtype), shape=(1,))
    place = ew.cast(iota(shape=(count,), axis=0), dtype=inner)
    step = ew.div(ew.sub(last, first), node.value(count - 1, inner))
    from_end = ew.sub(node.value(count - 1, inner), place)
    low = ew.lt(place, node.value(count // 2, inner))
    found = ew.select(low, ew.add(first, ew.mul(step, place)), ew.sub(last, ew.mul(step, from_end)))
    return node.value(found, dtype)


@aten("eye")
def eye(node: AtenNode, n: Number, m: Number | None = None, **how: Any) -> Value:
    rows, columns = node.shape
    same = ew.eq(iota(shape=(rows, 1), axis=0), iota(shape=(1, columns), axis=1))
    return ew.cast(same, dtype=node.dtype)


@aten("tril_indices", "triu_indices")
def triangle_indices(node: AtenNode, row: int, col: int, offset: int = 0, **how: Any) -> Value:
    places = np.tril_indices(row, offset, col) if "tril" in node.op else np.triu_indices(row, offset, col)
    return constant(np.stack(places).astype(node.dtype.storage), "indices")


# Random numbers: other ones in each call of the model


def _drawn(node: AtenNode, normal: bool) -> Value:
    stream = len(node.translation.builder.block.ops)
    draw = random_normal if normal else random_uniform
    wide = dt.f64 if node.dtype is dt.f64 else dt.f32
    return draw(fresh_key(), shape=node.shape, stream=stream, dtype=wide)


@aten("rand", "rand_like", "randn", "randn_like")
def random(node: AtenNode, **how: Any) -> Value:
    return node.value(_drawn(node, "randn" in node.op), node.dtype)


@aten("uniform")
def uniform(node: AtenNode, self: Value, from_: float = 0.0, to: float = 1.0, generator: Any = None) -> Value:
    drawn = node.value(_drawn(node, False), node.dtype)
    return ew.add(ew.mul(drawn, node.value(to - from_, node.dtype)), node.value(from_, node.dtype))


@aten("normal_functional", "normal")
def normal(node: AtenNode, mean: Any = 0.0, std: Any = 1.0, self: Any = None, **how: Any) -> Value:
    drawn = node.value(_drawn(node, True), node.dtype)
    return ew.add(ew.mul(drawn, node.value(std, node.dtype)), node.value(mean, node.dtype))


@aten("randint", "randint_like")
def randint(node: AtenNode, high: Number, low: Number = 0, **how: Any) -> Value:
    drawn = ew.cast(_drawn(node, False), dtype=dt.f64)
    span = ew.sub(node.value(high, dt.f64), node.value(low, dt.f64))
    return node.value(ew.add(ew.floor(ew.mul(drawn, span)), node.value(low, dt.f64)), node.dtype)


@aten("bernoulli")
def bernoulli(node: AtenNode, self: Value, p: Any = None, generator: Any = None) -> Value:
    chance = node.value(self if p is None else p, dt.f64)
    return ew.cast(ew.lt(ew.cast(_drawn(node, False), dtype=dt.f64), chance), dtype=node.dtype)


# Checks


@aten(
    "_assert_async",
    "_assert_tensor_metadata",
    "_functional_assert_async",
    "_make_dep_token",
    "_print",
)
def checked(node: AtenNode, **how: Any) -> tuple[()]:
    """What a program asserts of its data is left to the operators that rely on it."""
    return ()


@aten("_assert_scalar", "_functional_assert_scalar")
def assert_scalar(node: AtenNode, self: Any, assert_msg: str = "", **how: Any) -> tuple[()]:
    """Of sizes, a condition of each call."""
    if isinstance(self, Sym):
        _require(node, s.truth(self), assert_msg)
    return ()


@aten("sym_constrain_range", "sym_constrain_range_for_size", "_functional_sym_constrain_range",
      "_functional_sym_constrain_range_for_size")  # fmt: skip
def constrain_range(node: AtenNode, size: Any, min: int | None = None, max: int | None = None, **how: Any) -> tuple[()]:
    if isinstance(size, Sym):
        if min is not None:
            _require(node, s.ge(size, min), f"the program takes for granted that a size is at least {min}")
        if max is not None and max < 1 << 62:
            _require(node, s.le(size, max), f"the program takes for granted that a size is at most {max}")
    return ()


def _require(node: AtenNode, condition: Sym, words: str) -> None:
    if not condition.is_const:
        node.translation.require(condition, words)
