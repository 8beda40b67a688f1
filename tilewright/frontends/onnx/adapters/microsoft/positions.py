"""What attention knows of positions: biases of distances, rotations by several positions, gates of linear attention."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontends.onnx.adapters.microsoft.domain import microsoft, require_ranks
from tilewright.frontends.onnx.node import Node
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ops import activation as act
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.attention import from_heads, rotated, to_heads
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.ops.reduce import as_dtype, reduce_sum, widened
from tilewright.ops.source import iota
from tilewright.ops.view import reshape, shape_of, split, transpose


@microsoft("RelativePositionBias")
def relative_position_bias(node: Node) -> Value:
    """[1, heads, queries, keys]: a number for the distance of a key. Great ones share a row of the table [rows, heads]
    (Raffel et al., 2020)."""
    require_ranks(node, input0=2)
    rows, most, both = node.known_dim(0, 0), node.attr("max_distance"), node.flag("is_bidirectional", 0)
    count = rows // 2 if both else rows
    if count < 2 or most <= count // 2:
        raise ModelError(f"RelativePositionBias: {rows} rows for distances up to {most}")
    queries, keys = node.one_symbol(1), node.one_symbol(2)
    distance = ew.sub(iota(shape=(1, keys), axis=1), iota(shape=(queries, 1), axis=0))
    near = ew.min_(ew.abs_(distance) if both else ew.max_(ew.neg(distance), 0), most)
    row = gather(constant(_rows_of(count, most), "rows"), near, axis=0)
    if both:
        row = ew.add(row, ew.mul(ew.cast(ew.gt(distance, 0), dtype=dt.i64), count))
    found = transpose(gather(node.input(0), row, axis=0), perm=(2, 0, 1))
    return reshape(found, shape=(1, *shape_of(found)))


def _rows_of(count: int, most: int) -> np.ndarray:
    """The row for each distance from 0 to `most`: half of them for one distance each, the others logarithmic."""
    exact = count // 2
    distance = np.maximum(np.arange(most + 1), 1).astype(np.float32)
    share = np.log(distance / np.float32(exact)) / np.float32(math.log(most / exact)) * np.float32(count - exact)
    far = np.minimum(exact + share.astype(np.int64), count - 1)
    return np.where(np.arange(most + 1) < exact, np.arange(most + 1), far)


@microsoft("GatedRelativePositionBias")
def gated_relative_position_bias(node: Node) -> Value:
    """Biases of distances [1 or batch, heads, steps, steps] times a gate of each query (Chi et al., 2022)."""
    if node.optional(6) is not None:
        raise UnsupportedError(f"{node.op} of packed sequences is not supported")
    heads = node.attr("num_heads")
    q = to_heads(ew.add(widened(node.input(0)), widened(node.input(1))), heads)
    gates = ew.add(matmul(q, widened(node.input(3))), widened(node.input(4)))
    batch, _, steps, width = shape_of(gates)
    halves = reduce_sum(reshape(gates, shape=(batch, heads, steps, 2, width // 2)), axes=(4,), keepdims=False)
    u, r = split(ew.sigmoid(halves), sizes=(1, 1), axis=3)
    factor = ew.add(ew.mul(u, ew.sub(ew.mul(r, widened(node.input(5))), 1.0)), 2.0)
    return as_dtype(ew.mul(factor, widened(node.input(2))), node.dtype(0))


@microsoft("MRotaryEmbedding")
def rotary_embedding_of_three(node: Node) -> Value:
    """Rotations by positions [3, batch, steps] in time, height and width, each for a section of the pairs."""
    require_ranks(node, input1=3, input2=2, input3=2)
    if node.attr("is_packed_batching", 0) or node.attr("scale", 1.0) not in (0.0, 1.0):
        raise UnsupportedError(f"{node.op} of packed batches or with a scale is not supported")
    sections, pairs = node.attr("mrope_section"), node.known_dim(2, 1)
    if len(sections) != 3 or sum(sections) != pairs or node.attr("rotary_embedding_dim", 0) not in (0, 2 * pairs):
        raise ModelError(f"{node.op}: sections {list(sections)} for {pairs} pairs")
    which = np.repeat(np.arange(3), sections)
    if node.attr("mrope_layout", 0):
        which = np.zeros(pairs, np.int64)
        for k in (1, 2):
            which[k : 3 * sections[k] : 3] = k
    wide = node.rank(0) == 3
    heads = node.attr("num_heads", 0) or (node.known_dim(0, 2) // (2 * pairs) if wide else 1)
    x = to_heads(node.input(0), heads) if wide else node.input(0)
    batch, steps = shape_of(x)[0], shape_of(x)[2]
    tables: list[Value] = []
    for k in (2, 3):
        found = gather(node.input(k), node.input(1), axis=0)
        columns = [reshape(v, shape=(batch, steps, pairs)) for v in split(found, sizes=(1, 1, 1), axis=0)]
        chosen = columns[0]
        for n in (1, 2):
            chosen = ew.select(constant(which == n, "section"), columns[n], chosen)
        tables.append(reshape(chosen, shape=(batch * steps, pairs)))
    rows = reshape(iota(shape=(batch * steps,), axis=0), shape=(batch, steps))
    result = rotated(x, tables[0], tables[1], rows, interleaved=node.flag("interleaved", 0))
    return from_heads(result) if wide else result


@microsoft("GemmaRotaryEmbedding")
def gemma_rotary_embedding(node: Node) -> tuple[Value, ...]:
    """q cos + q' sin, and k cos + k' sin, of angles [batch, steps, size]."""
    require_ranks(node, input0=3)
    batch, steps, size = node.shape(0)
    angles = reshape(node.input(0), shape=(batch, 1, steps, size))
    cos, sin = (as_dtype(f(angles), node.dtype(1)) for f in (ew.cos, ew.sin))
    return tuple(ew.add(ew.mul(node.input(k), cos), ew.mul(node.input(k + 1), sin)) for k in (1, 3))


@microsoft("LinearAttentionGate")
def linear_attention_gate(node: Node) -> tuple[Value | None, ...]:
    """decay_scale * softplus(a + dt_bias), and sigmoid(b)."""
    rate = act.softplus(ew.add(widened(node.input(0)), node.input(1)))
    decay, b = ew.mul(rate, node.input(2)), node.optional(3)
    beta = None if b is None else as_dtype(ew.sigmoid(widened(b)), node.dtype(0))
    return as_dtype(decay, node.dtype(0)), beta


@microsoft("LinearAttention")
def linear_attention(node: Node) -> tuple[Value | None, ...]:
    """That of the standard."""
    _require_none(node, "state_window")
    names = ("q_num_heads", "kv_num_heads", "scale", "chunk_size", "update_rule")
    given = {name: node.attr(name) for name in names if node.has(name)}
    return node.standard("LinearAttention", *node.inputs, outputs=2, **given)


@microsoft("CausalConvWithState")
def causal_conv(node: Node) -> tuple[Value | None, ...]:
    """That of the standard."""
    others = ("state_update_capacity", "state_channels_last", "state_window", "state_length", "input_channel_offset")
    _require_none(node, *others, "channels_last", "input_channels")
    if node.attr("ndim", 1) != 1 or node.attr("dilation", 1) != 1:
        raise UnsupportedError(f"{node.op} along several axes or dilated is not supported")
    activation = node.attr("activation", "none") or "none"
    return node.standard("CausalConvWithState", *node.inputs, outputs=2, activation=activation)


def _require_none(node: Node, *names: str) -> None:
    for name in names:
        if node.attr(name, 0) not in (0, -1):
            raise UnsupportedError(f"{node.op} with {name} is not supported")
