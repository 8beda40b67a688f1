"""Scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontends.torch.node import AtenNode
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ops import activation as act
from tilewright.ops import attention as att
from tilewright.ops import contract, norm
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops.define import constant
from tilewright.ops.source import dim_value, full
from tilewright.ops.view import reshape, section, shape_of, transpose


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
    elif scale is None:  # the operator's scale is a number
        root = ew.sqrt(ew.cast(dim_value(width), dtype=type_of(query).dtype))
        query, scale = ew.div(query, root), 1.0
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


# What layers of PyTorch's own call where no gradients are recorded


@aten("_native_multi_head_attention")
def multi_head_attention(
    node: AtenNode, query: Value, key: Value, value: Value, embed_dim: int, num_head: int, qkv_weight: Value,
    qkv_bias: Value, proj_weight: Value, proj_bias: Value, mask: Value | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Value, Value | None]:  # fmt: skip
    """nn.MultiheadAttention; a mask says which keys are left out. Weights are not given."""
    if need_weights:
        raise node.refuse("weights of attention as a result", "call the layer with need_weights=False")
    return _of_heads((query, key, value), num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type), None


def _of_heads(
    given: Sequence[Value], heads: int, qkv_weight: Value, qkv_bias: Value, proj_weight: Value, proj_bias: Value,
    mask: Value | None, mask_type: int | None,
) -> Value:  # fmt: skip
    (width, _), (*outer, _, _) = shape_of(proj_weight), shape_of(given[0])
    size = width // heads
    parts = []
    for k, x in enumerate(given):
        weight = section(qkv_weight, 0, k * width, width)
        bias = section(qkv_bias, 0, k * width, width)
        apart = reshape(_linear(x, weight, bias), shape=(*outer, shape_of(x)[-2], heads, size))
        parts.append(transpose(apart, perm=(0, 2, 1, 3)))
    scale = None if not size.is_const else 1 / math.sqrt(size.value)
    operands = [*parts, *([] if mask is None else [_kept_keys(mask, mask_type)])]
    mixed = transpose(att.attention(*operands, scale=scale, causal=False), perm=(0, 2, 1, 3))
    return _linear(reshape(mixed, shape=(*outer, shape_of(given[0])[-2], width)), proj_weight, proj_bias)


def _kept_keys(mask: Value, mask_type: int | None) -> Value:
    """Which keys queries attend to, from a mask of those that they do not: for pairs of steps (0), for the steps of
    each element of the batch (1), or for everything (2)."""
    dtype = type_of(mask).dtype
    left_out = mask if dtype is dt.bool_ else ew.ne(mask, constant(np.zeros((), dtype.storage), ""))
    if mask_type == 1:
        batch, steps = shape_of(mask)
        left_out = reshape(left_out, shape=(batch, 1, 1, steps))
    return ew.not_(left_out)


def _linear(x: Value, weight: Value, bias: Value) -> Value:
    return ew.add(contract.matmul(x, weight, transpose_b=True), bias)


@aten("_transformer_encoder_layer_fwd")
def encoder_layer(
    node: AtenNode, src: Value, embed_dim: int, num_heads: int, qkv_weight: Value, qkv_bias: Value, proj_weight: Value,
    proj_bias: Value, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Value, norm_bias_1: Value,
    norm_weight_2: Value, norm_bias_2: Value, ffn_weight_1: Value, ffn_bias_1: Value, ffn_weight_2: Value,
    ffn_bias_2: Value, mask: Value | None = None, mask_type: int | None = None,
) -> Value:  # fmt: skip
    """nn.TransformerEncoderLayer, with the norms before or behind the sums."""

    def normed(x: Value, weight: Value, bias: Value) -> Value:
        return norm.layer_norm(x, weight, bias, axis=len(shape_of(x)) - 1, epsilon=float(eps))

    x = normed(src, norm_weight_1, norm_bias_1) if norm_first else src
    mixed = _of_heads((x, x, x), num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type)
    x = ew.add(mixed, src)
    if not norm_first:
        x = normed(x, norm_weight_1, norm_bias_1)
    inner = normed(x, norm_weight_2, norm_bias_2) if norm_first else x
    wide = _linear(inner, ffn_weight_1, ffn_bias_1)
    wide = act.gelu(wide, approximate="none") if use_gelu else act.relu(wide)
    x = ew.add(_linear(wide, ffn_weight_2, ffn_bias_2), x)
    return x if norm_first else normed(x, norm_weight_2, norm_bias_2)
