"""Attention of as many heads of keys as of queries."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.frontends.axes import require
from tilewright.frontends.onnx.adapters.microsoft.domain import (
    microsoft,
    of_columns,
    require_ranks,
)
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.unroll import element, stacked
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import ONE, Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops import quant
from tilewright.ops.attention import attention
from tilewright.ops.composites.attention import from_heads, to_heads
from tilewright.ops.contract import matmul
from tilewright.ops.reduce import as_dtype, widened
from tilewright.ops.shape import surely_different
from tilewright.ops.source import full, iota, sym_tensor
from tilewright.ops.view import concat, reshape, shape_of, slice_, split


@dataclass(frozen=True)
class _Operands:
    """Heads [batch, heads, steps, size], and where the node has its mask and what is added to scores."""

    q: Value
    k: Value
    v: Value
    mask: int
    added: int | None = None


@microsoft("Attention")
def projected_attention(node: Node) -> tuple[Value | None, ...]:
    """Attention of one input, which is multiplied with the weights of queries, keys and values first."""
    require_ranks(node, input0=3, input1=2, input2=1, input4=5)
    product = matmul(node.input(0), node.input(1))
    if (bias := node.optional(2)) is not None:
        _require_bias(node, 2, node.shape(1)[1])
        product = ew.add(product, bias)
    return _self_attention(node, product, mask=3, past=4, added=5)


@microsoft("QAttention")
def quantized_attention(node: Node) -> tuple[Value | None, ...]:
    """The same of quantised operands: only the product with the weights is of integers."""
    require_ranks(node, input0=3, input1=2, input2=1, input8=5)
    scale = ew.mul(widened(of_columns(node, 3)), widened(of_columns(node, 4)))
    zeros = [
        full(value=0, dtype=node.dtype(k), shape=())
        if node.optional(6 + k) is None
        else of_columns(node, 6 + k)
        for k in range(2)
    ]
    _require_bias(node, 2, node.shape(1)[1])
    sums = quant.matmul_integer(node.input(0), node.input(1), *zeros)
    product = ew.add(ew.mul(ew.cast(sums, dtype=dt.f32), scale), widened(node.input(2)))
    return _self_attention(node, as_dtype(product, node.dtype(2)), mask=5, past=8, added=None)


def _self_attention(
    node: Node, product: Value, *, mask: int, past: int, added: int | None
) -> tuple[Value | None, ...]:
    """Attention of queries, keys and values that lie side by side; past and present are [2, batch, heads, steps,
    size]."""
    _require_zero(node, "do_rotary", "past_present_share_buffer")
    node.attr("rotary_embedding_dim", 0)  # it means nothing without rotation
    heads, width = node.attr("num_heads"), node.known_dim(1, 1)
    if width % 3 and not node.has("qkv_hidden_sizes"):
        raise ModelError(f"{node.op}: the weights {node.type(1)} are not for queries, keys and values")
    sizes = node.attr("qkv_hidden_sizes", (width // 3,) * 3)
    if len(sizes) != 3 or sum(sizes) != width:
        raise ModelError(f"{node.op}: qkv_hidden_sizes {list(sizes)} do not fit weights {node.type(1)}")
    q, k, v = (to_heads(part, heads) for part in split(product, sizes=sizes, axis=2))
    before = node.optional(past)
    if before is not None:
        node.demand(s.eq(node.shape(past)[0], 2), f"{node.type(past)} does not hold keys and values")
        k, v = (concat(element(before, 0, n), new, axis=2) for n, new in enumerate((k, v)))
    result = _attended(node, _Operands(q, k, v, mask, added))
    return result, stacked([k, v], 0) if node.wants(1) else None


@microsoft("MultiHeadAttention")
def multi_head_attention(node: Node) -> tuple[Value | None, ...]:
    """Attention of queries, keys and values that lie apart, or packed as [batch, steps, heads, 2 or 3, size]."""
    return _multi_head(node, bias=3, mask=4, added=5, past=6)


@microsoft("DecoderMaskedMultiHeadAttention")
def decoder_attention(node: Node) -> tuple[Value | None, ...]:
    """The same for one step; buffers that past and present share, and beams, are not supported."""
    _require_zero(node, "past_present_share_buffer", "output_qk")
    return _multi_head(node, bias=10, mask=3, added=4, past=5)


def _multi_head(node: Node, *, bias: int, mask: int, added: int, past: int) -> tuple[Value | None, ...]:
    q, k, v = _apart(node, node.optional(bias))
    if node.optional(past) is not None:
        k, v = (concat(node.input(past + n), new, axis=2) for n, new in enumerate((k, v)))
    return _attended(node, _Operands(q, k, v, mask, added)), k, v


def _apart(node: Node, bias: Value | None) -> tuple[Value, Value, Value]:
    """Heads of queries, keys and values, each with its part of the bias."""
    count = node.attr("num_heads")
    packed = [
        _unpacked(node, k) if node.optional(k) is not None and node.rank(k) == 5 else None for k in (0, 1)
    ]
    parts = packed[0] or [node.input(0), *(packed[1] or [node.input(1), node.input(2)])]
    if len(parts) != 3:
        raise ModelError(f"{node.op}: {node.type(0)} does not hold queries, keys and values")
    heads = [p if len(shape_of(p)) == 4 else to_heads(p, count) for p in parts]
    axes = {len(shape_of(p)) for p in parts}
    if not axes <= {3, 4} or any(surely_different(shape_of(h)[1], sym(count)) for h in heads):
        raise ModelError(f"{node.op}: operands have not {count} heads")
    for h in heads:
        node.demand(s.eq(shape_of(h)[1], count), f"operands have not {count} heads")
        node.demand(s.eq(shape_of(h)[0], shape_of(heads[0])[0]), "queries, keys and values are of different batches")
    if bias is None:
        return heads[0], heads[1], heads[2]
    sizes = [shape_of(h)[1] * shape_of(h)[3] for h in heads]
    pieces = split(bias, sizes=sizes, axis=0)
    moved = [
        h if k and node.optional(k) is not None and node.rank(k) == 4 else _with_bias(h, b)
        for k, (h, b) in enumerate(zip(heads, pieces, strict=True))
    ]
    return moved[0], moved[1], moved[2]


def _require_bias(node: Node, k: int, width: Sym) -> None:
    node.demand_shape(k, (width,), f"a bias {node.type(k)} for a width of {width}")


def _unpacked(node: Node, k: int) -> list[Value]:
    """The operands in [batch, steps, heads, count, size], as [batch, steps, heads * size]."""
    batch, steps, heads, _, size = node.shape(k)
    parts = [element(node.input(k), 3, n) for n in range(node.known_dim(k, 3))]
    return [reshape(p, shape=(batch, steps, heads * size)) for p in parts]


def _with_bias(heads: Value, bias: Value) -> Value:
    _, count, _, size = shape_of(heads)
    return ew.add(heads, reshape(bias, shape=(count, 1, size)))


def _require_zero(node: Node, *names: str) -> None:
    for name in names:
        if node.attr(name, 0):
            raise UnsupportedError(f"{node.op} with {name} is not supported")


def _attended(node: Node, operands: _Operands) -> Value:
    """The values that queries attend to, [batch, steps, heads * size]."""
    q, k, v = operands.q, operands.k, operands.v
    batch, _, steps, _ = shape_of(q)
    total = shape_of(k)[2]
    added = None if operands.added is None else node.optional(operands.added)
    if added is not None and operands.added is not None:
        scores = (batch, shape_of(q)[1], steps, total)
        listed = ", ".join(map(str, scores))
        node.require_to_fit(operands.added, scores, f"{node.op} cannot add {added.type} to scores [{listed}]")
    if node.optional(operands.mask) is not None:
        mask = key_mask(node, operands.mask, batch, steps, total)
        added = mask if added is None else ew.add(mask, widened(added))
    causal = node.flag("unidirectional", 0)
    scale = node.attr("scale", 0.0) or None
    node.attr("mask_filter_value", 0.0)
    extra = () if added is None else (added,)
    return from_heads(
        attention(q, k, v, *extra, scale=scale, causal=causal, causal_offset=total - steps if causal else 0)
    )


def _is_no_list(size: Sym, batch: Sym) -> bool:
    return all(surely_different(size, wanted) for wanted in (batch, 2 * batch, 3 * batch + 2))


def _within_ends(node: Node, mask: Value, keys: Value, batch: Sym) -> Value:
    """Whether keys are among those that a vector of lengths, and perhaps of first keys behind them, leaves."""
    (size,) = shape_of(mask)
    has_starts, is_packed = s.eq(size, 2 * batch), s.eq(size, 3 * batch + 2)
    message = f"{node.op}: a mask {mask.type} is a list of B, 2*B or 3*B + 2 numbers for a batch of B = {batch}"
    require(node.translation, s.logical_or(s.eq(size, batch), has_starts, is_packed), message)
    ends = reshape(slice_(mask, starts=(0,), sizes=(batch,), steps=(1,)), shape=(batch, 1, 1, 1))
    allowed = ew.lt(keys, ends)
    if has_starts == 0:
        return allowed
    behind = slice_(mask, starts=(s.select(has_starts, batch, sym(0)),), sizes=(batch,), steps=(1,))
    count = ew.cast(sym_tensor(values=(s.select(has_starts, ONE, sym(0)),), scalar=True), dtype=dt.i32)
    return ew.and_(allowed, ew.ge(keys, ew.mul(reshape(behind, shape=(batch, 1, 1, 1)), count)))


def key_mask(node: Node, k: int, batch: Sym, steps: Sym, total: Sym) -> Value:
    """What operand `k` adds to scores [batch, heads, steps, total]: a low number at keys that are padding.

    It is one number for each key [batch, total], or for each query, too, [batch, steps, total] and [batch, 1, most,
    most], above 0 where a key counts; or a vector of the numbers of keys, behind which stand the first keys, or two
    lists of one number more that say where the parts of a packed batch begin, which this one is not. One number for all
    keys changes nothing.
    """
    mask, shape = node.input(k), node.shape(k)
    keys = iota(shape=(total,), axis=0, dtype=dt.i32)
    if len(shape) == 1 and not _is_no_list(shape[0], batch):
        allowed = _within_ends(node, mask, keys, batch)
    elif len(shape) == 2 and shape[1] == 1 and (shape[0] == 1 or not surely_different(shape[0], batch)):
        return full(value=0.0, dtype=dt.f32, shape=())
    elif len(shape) in (2, 3) and not surely_different(shape[-1], total):
        rows = (steps,) if len(shape) == 3 else ()
        wanted = (batch, *rows, total)
        node.demand_shape(k, wanted, f"a mask {mask.type} is [{', '.join(map(str, wanted))}]")
        allowed = ew.gt(reshape(mask, shape=(batch, 1, *(rows or (1,)), total)), 0)
    elif len(shape) == 4:
        wrong = f"a mask {mask.type} is [{batch}, 1, most, most]"
        node.demand_shape(k, (batch, 1, shape[3], shape[3]), wrong)
        starts = (0, 0, total - steps, 0)
        allowed = ew.gt(slice_(mask, starts=starts, sizes=(batch, 1, steps, total), steps=(1,) * 4), 0)
    else:
        raise UnsupportedError(f"{node.op} with a mask {node.type(k)} for {total} keys is not supported")
    low = full(value=node.attr("mask_filter_value", -10000.0), dtype=dt.f32, shape=())
    return ew.select(allowed, full(value=0.0, dtype=dt.f32, shape=()), low)
