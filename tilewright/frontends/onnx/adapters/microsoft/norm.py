"""Normalisations of sums, and of embeddings."""

from __future__ import annotations

from tilewright.frontends.onnx.adapters.microsoft.domain import microsoft, microsoft_binds, require_ranks
from tilewright.frontends.onnx.adapters.norm import simplified_layer_normalization
from tilewright.frontends.onnx.node import Node
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym
from tilewright.ops import activation as act
from tilewright.ops import elementwise as ew
from tilewright.ops import norm
from tilewright.ops.index import gather
from tilewright.ops.quant import dequantize_linear
from tilewright.ops.reduce import as_dtype, dtype_of, reduce_sum, widened
from tilewright.ops.source import full
from tilewright.ops.view import reshape, shape_of, slice_, transpose

microsoft("SimplifiedLayerNormalization")(simplified_layer_normalization)


@microsoft("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_layer_normalization(node: Node) -> tuple[Value | None, ...]:
    """The sum of both operands and the bias, normalised; of the other results only the sum is computed."""
    simplified = node.op == "SkipSimplifiedLayerNormalization"
    x, skip, scale = (widened(node.input(k)) for k in range(3))
    shift, bias = None if simplified else node.optional(3), node.optional(3 if simplified else 4)
    _require_vectors(node, node.shape(0)[-1], *range(2, len(node.inputs)))
    total = ew.add(x, skip)
    node.demand_shape(0, shape_of(total), f"the sum of {node.type(0)} and {node.type(1)} has another shape")
    total = total if bias is None else ew.add(total, widened(bias))
    dtype, epsilon = node.dtype(0), node.attr("epsilon", 1e-12)
    if simplified:
        result = norm.rms_norm(total, scale, epsilon=epsilon)
    else:
        moved = () if shift is None else (widened(shift),)
        result = norm.layer_norm(total, scale, *moved, epsilon=epsilon)
    return as_dtype(result, dtype), None, None, as_dtype(total, dtype)


def _require_vectors(node: Node, size: Sym, *operands: int) -> None:
    for k in operands:
        if node.optional(k) is not None:
            node.demand_shape(k, (size,), f"input {k} is {node.type(k)} for {size} elements")


@microsoft("EmbedLayerNormalization")
def embed_layer_normalization(node: Node) -> tuple[Value | None, ...]:
    """Embeddings of words, positions and segments, summed and normalised; the second result counts masked words."""
    require_ranks(node, input0=2, input1=2, input2=2, input3=2, input4=2, input7=2, input8=2)
    words, positions = node.input(2), node.input(3)
    batch, steps = node.shape(0)
    places = node.optional(8)
    if places is None:
        first = slice_(positions, starts=(0, 0), sizes=(steps, node.shape(3)[1]), steps=(1, 1))
    else:
        first = gather(positions, places, axis=0)
    total = ew.add(gather(words, node.input(0), axis=0), first)
    segments = node.optional(4)
    if segments is not None and node.optional(1) is not None:
        total = ew.add(total, gather(segments, node.input(1), axis=0))
    result = norm.layer_norm(total, node.input(5), node.input(6), epsilon=node.attr("epsilon", 1e-12))
    node.attr("mask_index_type", 0)
    mask = node.optional(7)
    count = full(value=0, dtype=dt.i32, shape=(batch,))
    if mask is not None:
        count = reduce_sum(ew.cast(ew.eq(mask, 1), dtype=dt.i32), axes=(1,), keepdims=False)
    return result, count, total


@microsoft("QEmbedLayerNormalization")
def quantised_embed_layer_normalization(node: Node) -> tuple[Value | None, ...]:
    """The same of tables, scale and shift in bytes: (q - zero_point) * scale."""
    tables = [
        None
        if node.optional(k) is None
        else dequantize_linear(node.input(k), node.input(6 + k), node.input(11 + k), dtype=dt.f32)
        for k in range(2, 7)
    ]
    node.inputs = (node.input(0), node.optional(1), *tables, node.optional(7))
    return embed_layer_normalization(node)[:2]


@microsoft("GatedRMSNorm")
def gated_rms_norm(node: Node) -> Value:
    """x / sqrt(mean(x^2) + epsilon) * scale * activation(gate), where means are of as many elements as `scale` has."""
    require_ranks(node, input1=1)
    size, width = node.known_dim(1, 0), node.known_dim(0, -1)
    if size < 1 or width % size:
        raise ModelError(f"GatedRMSNorm of {node.type(0)} with a scale of {size} elements")
    apart = (*node.shape(0)[:-1], width // size, size)
    x, gate = (reshape(widened(node.input(k)), shape=apart) for k in (0, 2))
    name = node.one_of("activation", "silu", "swish", "sigmoid", default="silu")
    shares = ew.sigmoid(gate) if name == "sigmoid" else act.silu(gate)
    normal = norm.rms_norm(x, widened(node.input(1)), epsilon=node.attr("epsilon", 1e-5))
    return as_dtype(reshape(ew.mul(normal, shares), shape=node.shape(0)), node.dtype(0))


@microsoft("BranchwiseRMSNorm")
def branchwise_rms_norm(node: Node) -> Value:
    """x / sqrt(mean(x^2) + epsilon) * scale of each branch, which are an axis before the last or parts of that."""
    count, shape = node.attr("num_branches", 0), node.shape(0)
    width = node.known_dim(0, -1)
    if count and (count < 1 or width % count):
        raise ModelError(f"BranchwiseRMSNorm: {node.type(0)} has no {count} branches")
    grouped = (*shape[:-1], count, width // count) if count else shape
    x, scale = reshape(widened(node.input(0)), shape=grouped), node.optional(1)
    one = full(value=1.0, dtype=dtype_of(x), shape=(grouped[-1],))
    result = norm.rms_norm(x, one, epsilon=node.attr("epsilon", 1e-5))
    if scale is not None:
        by_branch = node.rank(1) == 1 and node.shape(1)[0] != grouped[-1]
        result = ew.mul(result, reshape(widened(scale), shape=grouped[-2:]) if by_branch else widened(scale))
    return as_dtype(reshape(result, shape=shape), node.dtype(0))


microsoft_binds({"GatedAdd": lambda x, y, gate: ew.add(x, ew.mul(y, gate))})


@microsoft("GroupNorm", "SkipGroupNorm")
def group_norm(node: Node) -> tuple[Value, ...]:
    """Groups of channels standardised, with SiLU where `activation` says so, of the sum of x, skip and bias."""
    require_ranks(node, input0=4, input1=1, input2=1, input4=1)
    last = node.flag("channels_last", 1)
    channels, groups = node.known_dim(0, 3 if last else 1), node.attr("groups")
    if groups < 1 or channels % groups:
        raise ModelError(f"{node.op}: {channels} channels do not make {groups} groups")
    x = widened(node.input(0))
    if node.op == "SkipGroupNorm":
        skip = node.input(3)
        if node.rank(3) == 2:
            n, c = node.shape(3)
            skip = reshape(skip, shape=(n, 1, 1, c) if last else (n, c, 1, 1))
        x = ew.add(x, widened(skip))
        if (bias := node.optional(4)) is not None:
            x = ew.add(x, reshape(widened(bias), shape=(channels,) if last else (channels, 1, 1)))
    total, scale, shift = x, widened(node.input(1)), widened(node.input(2))
    if last:
        x = transpose(x, perm=(0, 3, 1, 2))
    result = norm.group_norm(x, scale, shift, groups=groups, epsilon=node.attr("epsilon", 1e-5))
    result = act.silu(result) if node.attr("activation", 0) else result
    if last:
        result = transpose(result, perm=(0, 2, 3, 1))
    results = (as_dtype(result, node.dtype(0)), as_dtype(total, node.dtype(0)))
    return results if node.op == "SkipGroupNorm" else results[:1]
