"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

from tilewright.frontends.torch.node import AtenNode
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ops import attention as att
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops.source import full
from tilewright.ops.view import reshape, shape_of


@aten("scaled_dot_product_attention")
def attention(
    node: AtenNode, query: Value, key: Value, value: Value, attn_mask: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    """Queries that may attend to nothing give zeros. With grouped heads each of key and value serves several."""
    if dropout_p:
        raise node.refuse("dropout of attention weights", "call .eval() on the module first")
    groups = _groups(query, key) if enable_gqa else 1
    if groups > 1:
        found = _attended(*_grouped(query, key, value, attn_mask, groups), is_causal, scale)
        return reshape(found, shape=(*shape_of(query)[:-1], shape_of(value)[-1]))
    return _attended(query, key, value, attn_mask, is_causal, scale)


@aten(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_efficient_attention",
)
def lowered_attention(
    node: AtenNode, query: Value, key: Value, value: Value, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: Value | None = None, scale: float | None = None, **how: Any,
) -> tuple[Value | None, ...]:  # fmt: skip
    """The first result of what PyTorch makes of attention."""
    mask = attn_mask if attn_mask is not None else how.get("attn_bias")
    found = attention(node, query, key, value, mask, dropout_p, is_causal, scale, bool(how.get("enable_gqa")))
    return (found, *[None] * (len(node.result) - 1))


def _groups(query: Value, key: Value) -> int:
    heads, kept = shape_of(query)[-3], shape_of(key)[-3]
    return int(heads.value // kept.value) if heads.is_const and kept.is_const else 1


def _grouped(
    query: Value, key: Value, value: Value, mask: Value | None, groups: int
) -> tuple[Value, Value, Value, Value | None]:
    """Heads [.., kept * groups, steps, size] as [.., kept, groups, steps, size]."""
    *outer, heads, steps, size = shape_of(query)
    kept = heads.value // groups
    q = reshape(query, shape=(*outer, kept, groups, steps, size))
    k, v = (reshape(x, shape=(*shape_of(x)[:-2], 1, *shape_of(x)[-2:])) for x in (key, value))
    if mask is not None and len(shape_of(mask)) > 2:
        *before, count, rows, columns = shape_of(mask)
        apart = (1, 1) if count == 1 else (kept, groups)
        mask = reshape(mask, shape=(*before, *apart, rows, columns))
    return q, k, v, mask


def _attended(
    query: Value, key: Value, value: Value, mask: Value | None, causal: bool, scale: float | None
) -> Value:
    width = shape_of(query)[-1]
    if scale is None and width.is_const:
        scale = 1 / math.sqrt(width.value) if width.value else 1.0
    operands = [query, key, value, *([] if mask is None else [mask])]
    found = att.attention(*operands, scale=None if scale is None else float(scale), causal=causal)
    if mask is None:
        return found
    return ew.select(_attends_to_nothing(mask), full(value=0.0, dtype=type_of(found).dtype, shape=()), found)


def _attends_to_nothing(mask: Value) -> Value:
    """Which queries a mask leaves no key, [..., queries, 1]."""
    if type_of(mask).dtype is dt.bool_:
        return ew.not_(rd.reduce_or(mask, axes=(len(shape_of(mask)) - 1,)))
    most = rd.reduce_max(mask, axes=(len(shape_of(mask)) - 1,))
    return ew.eq(most, -math.inf)
