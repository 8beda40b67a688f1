"""Rows of positions that decoders keep: what they are stored in, and attention that reads them.

    int8:   scale = max|row| / 127;   codes = round(row / scale)      one scale for each position of a head

Scales multiply scores, and weights of values, so that codes are all that is widened for each element.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.frontends.decoders.building import Lane
from tilewright.frontends.inputs import Declared
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym
from tilewright.ops import elementwise as ew
from tilewright.ops.attention import attention
from tilewright.ops.contract import matmul
from tilewright.ops.index import put
from tilewright.ops.norm import softmax
from tilewright.ops.reduce import reduce_max
from tilewright.ops.source import dim_value, full, iota, number_like
from tilewright.ops.view import reshape, section, shape_of

STORED = {"float32": dt.f32, "float16": dt.f16, "bfloat16": dt.bf16, "int8": dt.i8}
"""What elements are stored in."""
_SCALES = "scales"
"""What names of states end in that have the scales of codes."""
_MOST = 127
_LEAST = 1e-30
"""Rows of which no element is larger are zeros."""


@dataclass(frozen=True)
class CachedRows:
    """A state of f32[1, groups, rows, size], of which calls write rows behind those that are filled, as it is
    declared."""

    groups: int
    rows: int
    size: int

    def states(self, name: str, stored: str) -> dict[str, Declared]:
        """The states that it is, by name."""
        shape, dtype = (1, self.groups, self.rows), STORED[stored]
        scales = {f"{name}.{_SCALES}": Declared(dt.f32, (*shape, 1))} if dtype.is_int else {}
        return {name: Declared(dtype, (*shape, self.size)), **scales}


@dataclass(frozen=True)
class KeptRows:
    """What is read of a cache: rows f32[..., rows, size], and what each is to be multiplied by, f32[..., rows, 1], None
    for nothing."""

    rows: Value
    scales: Value | None = None

    def of_groups(self) -> KeptRows:
        """The same with an axis more behind that of groups, for heads that share one."""
        return KeptRows(_with_heads(self.rows), None if self.scales is None else _with_heads(self.scales))


def kept(lane: Lane, name: str, new: Value, first: Sym) -> KeptRows:
    """[1, groups, past + steps - first, size]: a cache from the position `first` up to the new rows [1, groups, steps,
    size], which are written behind those that were there."""
    return kept_behind(lane, name, new, lane.before, first)


def kept_behind(lane: Lane, name: str, new: Value, before: Sym, first: Sym) -> KeptRows:
    """[1, groups, before + rows - first, size]: a cache from the position `first` up to the new rows [1, groups, rows,
    size], which are written behind `before` that were there."""
    size = before + shape_of(new)[2] - first

    def written(name: str, part: Value) -> Value:
        lane.updated[name] = filled = put(lane.states[name], part, at=(0, 0, before, 0))
        return section(filled, 2, first, size)

    stored = lane.states[name].tensor.dtype
    if stored is dt.f32:
        return KeptRows(written(name, new))
    if stored.is_float:
        return KeptRows(ew.cast(written(name, ew.cast(new, dtype=stored)), dtype=dt.f32))
    codes, scales = _quantised(new)
    return KeptRows(ew.cast(written(name, codes), dtype=dt.f32), written(f"{name}.{_SCALES}", scales))


def _quantised(rows: Value) -> tuple[Value, Value]:
    """Codes i8[..., rows, size], and the scales f32[..., rows, 1] that rows share."""
    largest = reduce_max(ew.abs_(rows), axes=(-1,), keepdims=True)
    scale = ew.mul(largest, number_like(1 / _MOST, largest))
    factor = ew.div(number_like(_MOST, largest), ew.max_(largest, number_like(_LEAST, largest)))
    return ew.cast(ew.round_(ew.mul(rows, factor)), dtype=dt.i8), scale


def attended(
    q: Value,
    keys: KeptRows,
    values: KeptRows,
    *,
    scale: float,
    mask: Value | None = None,
    softcap: float | None = None,
    causal_offset: Sym | None = None,
) -> Value:
    """[..., steps, size]: attention of queries [..., steps, size] over rows of caches. A query i sees keys up to i +
    `causal_offset`, all where that is None. A bool `mask` says what may be seen, too, a float one is added. With a
    `softcap` scores are softcap * tanh(score / softcap)."""
    if softcap is None and keys.scales is None and values.scales is None:
        causal = {} if causal_offset is None else {"causal": True, "causal_offset": causal_offset}
        return attention(q, keys.rows, values.rows, *(() if mask is None else (mask,)), scale=scale, **causal)
    scores = matmul(q, keys.rows, transpose_b=True)
    scores = ew.mul(scores if keys.scales is None else ew.mul(scores, _along(keys.scales)), scale)
    if softcap is not None:
        scores = ew.mul(ew.tanh(ew.div(scores, softcap)), softcap)
    if mask is not None and mask.tensor.dtype is not dt.bool_:
        scores, mask = ew.add(scores, mask), None
    seen = None if causal_offset is None else _up_to(causal_offset, *shape_of(scores)[-2:])
    for condition in (seen, mask):
        if condition is not None:
            scores = ew.select(condition, scores, full(value=-math.inf, dtype=dt.f32, shape=()))
    weights = softmax(scores, axis=-1)
    return matmul(weights if values.scales is None else ew.mul(weights, _along(values.scales)), values.rows)


def _up_to(offset: Sym, queries: Sym, keys: Sym) -> Value:
    """[queries, keys] of bool: is a key no later than a query?"""
    last = ew.add(reshape(iota(shape=(queries,), axis=0), shape=(queries, 1)), dim_value(offset))
    return ew.le(iota(shape=(keys,), axis=0), last)


def _along(scales: Value) -> Value:
    """[..., rows, 1] as [..., 1, rows], which has them in the same order."""
    *outer, rows, one = shape_of(scales)
    return reshape(scales, shape=(*outer, one, rows))


def _with_heads(x: Value) -> Value:
    one, groups, rows, size = shape_of(x)
    return reshape(x, shape=(one, groups, 1, rows, size))
