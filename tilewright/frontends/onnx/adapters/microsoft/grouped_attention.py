"""Attention of groups of heads, whose keys and values lie in a cache, and rotary positions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.frontends.onnx.adapters.microsoft.domain import microsoft, require_ranks
from tilewright.frontends.onnx.node import Node
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.attention import attention
from tilewright.ops.composites.attention import from_heads, rotated, to_heads
from tilewright.ops.contract import matmul
from tilewright.ops.index import gather, gather_nd, put, scatter_elements, scatter_nd
from tilewright.ops.norm import rms_norm
from tilewright.ops.reduce import as_dtype, dtype_of, reduce_max, reduce_sum, widened
from tilewright.ops.shape import surely_different
from tilewright.ops.source import dim_value, full, iota
from tilewright.ops.view import concat, expand, pad, reshape, section, shape_of, split, transpose


@microsoft("RotaryEmbedding")
def rotary_embedding(node: Node) -> Value:
    """Positions [batch, steps], or the first of all, rotate [batch, heads, steps, size] or [batch, steps, width]."""
    require_ranks(node, input2=2, input3=2)
    if node.attr("is_packed_batching", 0) or node.attr("scale", 1.0) not in (0.0, 1.0):
        raise UnsupportedError(f"{node.op} of packed batches or with a scale is not supported")
    count, dims = node.attr("num_heads", 0), node.attr("rotary_embedding_dim", 0)
    pairs, interleaved = node.known_dim(2, 1), node.flag("interleaved", 0)
    if dims and dims != 2 * pairs:
        raise ModelError(f"{node.op}: rotary_embedding_dim {dims} contradicts {node.type(2)}")
    wide = node.rank(0) == 3
    if node.rank(0) not in (3, 4) or (dims and wide and not count):
        raise ModelError(f"{node.op}: heads cannot be found in {node.type(0)}")
    x = (
        to_heads(node.input(0), count if dims else node.known_dim(0, 2) // (2 * pairs))
        if wide
        else node.input(0)
    )
    if node.known_dim(0, -1) < 2 * pairs:
        raise ModelError(f"{node.op}: {2 * pairs} elements are to be rotated of {node.type(0)}")
    _require_same_tables(node, 2)
    positions = node.input(1)
    if node.rank(1) == 2:
        node.require_to_fit(1, (shape_of(x)[0], shape_of(x)[2]), f"{node.op}: positions {node.type(1)} for {x.type}")
    else:
        node.demand_shape(1, (1,), f"the first position is one number, not {node.type(1)}")
        positions = ew.add(reshape(positions, shape=(1, 1)), iota(shape=(1, shape_of(x)[2]), axis=1))
    result = rotated(x, node.input(2), node.input(3), positions, interleaved=interleaved)
    return from_heads(result) if wide else result


@dataclass(frozen=True)
class _Cache:
    """The steps of a call among those of a cache: `start` [batch, 1] of i64 is the position of the first, `steps` are
    new; `size` positions are there afterwards, of which `seen` are looked at. `first` is the only start, where that is
    known before the call."""

    start: Value
    batch: Sym
    steps: Sym
    size: Sym
    seen: Sym
    first: Sym | None = None

    def positions(self) -> Value:
        """[batch, steps]: that of each new step."""
        return ew.add(self.start, iota(shape=(1, self.steps), axis=1))

    def keys(self) -> Value:
        """[seen]: the positions in the cache that are looked at."""
        return iota(shape=(self.seen,), axis=0)

    def read(self, x: Value) -> Value:
        """Of keys or values of all positions those that are looked at."""
        return x if self.seen == self.size else section(x, 2, 0, self.seen)

    def read_values(self, x: Value) -> Value:
        """As `read`, of a buffer that may hold anything behind what is filled of an entry: zeros are read there, since
        no weight of 0 takes away what is no number."""
        keys = reshape(self.keys(), shape=(1, 1, self.seen, 1))
        end = reshape(ew.add(self.start, dim_value(self.steps)), shape=(self.batch, 1, 1, 1))
        x = self.read(x)
        return ew.select(ew.lt(keys, end), x, full(value=0, dtype=dtype_of(x), shape=()))

    def filled(self, new: Value, past: Value | None, *, is_shared: bool = False) -> Value:
        """[batch, heads, size, width]: what was there before the first step, the new steps, and zeros; what was there
        before, where past and present share a buffer."""
        if past is None:
            if self.size == self.steps:
                return new
            return pad(new, before=(0,) * 4, after=(sym(0), sym(0), self.size - self.steps, sym(0)))
        if is_shared and self.first is not None:
            return put(past, new, at=(0, 0, self.first, 0))
        if is_shared:
            return scatter_nd(past, self._places(new), new)
        if self.first is not None:
            return self._joined(past, new, self.first)
        offset = ew.sub(iota(shape=(1, self.size), axis=1), self.start)
        last = dim_value(self.steps)
        places = ew.min_(ew.max_(offset, 0), ew.sub(last, 1))
        by_step = transpose(new, perm=(0, 2, 1, 3))
        found = gather_nd(by_step, reshape(places, shape=(self.batch, self.size, 1)), batch_dims=1)
        moved = transpose(found, perm=(0, 2, 1, 3))
        room = self.size - shape_of(past)[2]
        before = pad(past, before=(0,) * 4, after=(sym(0), sym(0), room, sym(0))) if room != 0 else past
        behind = full(value=0, dtype=dtype_of(new), shape=())
        offset = reshape(offset, shape=(self.batch, 1, self.size, 1))
        return ew.select(ew.lt(offset, 0), before, ew.select(ew.lt(offset, last), moved, behind))

    def _joined(self, past: Value, new: Value, first: Sym) -> Value:
        """What was before the first step, the new steps, and zeros, one behind the other."""
        batch, groups, _, width = shape_of(new)
        left = self.size - first - self.steps
        parts = [past if first == shape_of(past)[2] else section(past, 2, 0, first), new]
        if left != 0:
            parts.append(full(value=0, dtype=dtype_of(new), shape=(batch, groups, left, width)))
        return concat(*parts, axis=2)

    def _places(self, new: Value) -> Value:
        """[batch, groups, steps, 3]: where each new step goes."""
        shape = (*shape_of(new)[:3], 1)
        steps = expand(reshape(self.positions(), shape=(self.batch, 1, self.steps, 1)), shape=shape)
        return concat(iota(shape=shape, axis=0), iota(shape=shape, axis=1), steps, axis=3)


@microsoft("GroupQueryAttention")
def group_query_attention(node: Node) -> tuple[Value | None, ...]:
    """Attention with a cache: seqlens_k + 1 positions of each entry are filled after the call. A past of a fixed length
    that is not the number of positions is a buffer for past and present: what is new is put into it.

    Queries see the keys up to their own position, and of these the last `local_window_size`.
    """
    require_ranks(node, input0=3, input1=3, input2=3, input3=4, input4=4, input5=1, input7=2, input8=2)
    _require_defaults(node, sliding_window_cache=0, qk_output=0, k_quant_type="NONE", v_quant_type="NONE")
    _require_defaults(node, kv_cache_bit_width=0)
    q, k, v = _heads(node)
    batch, _, steps, _ = shape_of(q)
    past_size = sym(0) if node.optional(3) is None else node.shape(3)[2]
    _require_past(node, q, k, v)
    node.demand_shape(5, (batch,), f"lengths {node.type(5)} for a batch of {batch}")
    filled = ew.add(ew.cast(node.input(5), dtype=dt.i64), 1)
    new = dim_value(steps)
    start = reshape(ew.max_(ew.sub(filled, new), 0), shape=(batch, 1))
    total = node.one_symbol(6)
    is_shared = past_size.is_const and past_size != 0 and not total.is_const
    if is_shared:
        node.demand(s.le(total, past_size), f"{total} positions do not fit into {node.type(3)}")
    size = past_size if is_shared else s.maximum(total, past_size)
    seen = s.maximum(total, steps) if is_shared else size
    cache = _Cache(start, batch, steps, size, seen, _first(node, batch, steps))
    if node.flag("do_rotary", 0):
        q, k = _rotated(node, cache, q, k, 7, node.optional(9))
    else:
        node.attr("rotary_interleaved", 0)
    keys, values = (cache.filled(x, node.optional(n), is_shared=is_shared) for x, n in ((k, 3), (v, 4)))
    visible = reshape(_visible(node, cache), shape=(batch, 1, 1, steps, cache.seen))
    sink, added = _sink(node, shape_of(q)[1], shape_of(k)[1]), _added(node, cache, shape_of(q)[1], shape_of(k)[1])
    filled_values = cache.read_values(values) if is_shared and batch != 1 else cache.read(values)
    return _grouped(node, q, cache.read(keys), filled_values, visible, sink, added), keys, values


def _first(node: Node, batch: Sym, steps: Sym) -> Sym | None:
    """The position of the first new step, where that of the only entry is known before the call."""
    found = node.translation.symbols_of(node.input(5)) if batch == 1 else None
    return None if found is None else s.maximum(found.reshape(-1)[0] + 1 - steps, 0)


@microsoft("SparseAttention")
def sparse_attention(node: Node) -> tuple[Value | None, ...]:
    """The same, where queries see of the keys up to their own position those in blocks that a layout lists.

    Operands 5 and 6 are the layouts as sparse rows (CSR), [layouts, blocks + 1] and [layouts, most]; operand 8 are the
    positions of each entry that are filled after the call.
    """
    require_ranks(node, input0=3, input1=3, input2=3, input3=4, input4=4, input5=2, input6=2, input8=1, input9=2)
    node.input(7)  # the greatest of operand 8
    q, k, v = _heads(node)
    batch, _, steps, _ = shape_of(q)
    _require_past(node, q, k, v)
    node.demand_shape(8, (batch,), f"lengths {node.type(8)} for a batch of {batch}")
    new = dim_value(steps)
    start = ew.max_(ew.sub(ew.cast(node.input(8), dtype=dt.i64), new), 0)
    size = node.shape(3)[2]
    cache = _Cache(reshape(start, shape=(batch, 1)), batch, steps, size, size)
    if node.flag("do_rotary", 0):
        q, k = _rotated(node, cache, q, k, 9, None)
    else:
        node.attr("rotary_interleaved", 0)
    keys, values = (cache.filled(x, node.input(n), is_shared=True) for x, n in ((k, 3), (v, 4)))
    return _grouped(node, q, keys, cache.read_values(values), _listed(node, cache, q, keys)), keys, values


def _listed(node: Node, cache: _Cache, q: Value, k: Value) -> Value:
    """[batch, groups, shared, steps, size] of bool: is a key in a block that the layout of the head lists, and not
    behind the query? Heads take the layouts in turn."""
    block, heads, groups = node.attr("sparse_block_size"), shape_of(q)[1], shape_of(k)[1]
    layouts, blocks = node.shape(5)[0], node.shape(5)[1] - 1
    if block < 1 or surely_different(blocks * block, cache.size):
        raise ModelError(f"{node.op}: {blocks} blocks of {block} keys for a cache {node.type(3)}")
    own = reshape(cache.positions(), shape=(cache.batch, 1, cache.steps, 1))
    keys = reshape(cache.keys(), shape=(1, 1, 1, cache.size))
    sizes = [dim_value(d) for d in (layouts, blocks)]
    layout = ew.mod(reshape(iota(shape=(heads,), axis=0), shape=(1, heads, 1, 1)), sizes[0])
    row = ew.add(ew.mul(layout, sizes[1]), ew.div(own, block))
    place = ew.add(ew.mul(row, sizes[1]), ew.div(keys, block))
    seen = ew.and_(gather(_block_mask(node, layouts, blocks), place, axis=0), ew.le(keys, own))
    return reshape(seen, shape=(cache.batch, groups, heads // groups, cache.steps, cache.size))


def _block_mask(node: Node, layouts: Sym, blocks: Sym) -> Value:
    """[layouts * blocks * blocks + 1] of bool: which blocks of keys are listed for a block of queries, and, for
    entries behind the last, one that nobody reads."""
    ends, columns = (ew.cast(node.input(n), dtype=dt.i64) for n in (5, 6))
    most = node.shape(6)[1]
    entry = reshape(iota(shape=(most,), axis=0), shape=(1, most, 1))
    begun = ew.ge(entry, reshape(ends, shape=(layouts, 1, blocks + 1)))
    row = ew.sub(reduce_sum(ew.cast(begun, dtype=dt.i64), axes=(2,), keepdims=False), 1)
    sizes = [dim_value(d) for d in (blocks, layouts * blocks * blocks)]
    first = ew.mul(reshape(iota(shape=(layouts,), axis=0), shape=(layouts, 1)), sizes[0])
    place = ew.add(ew.mul(ew.add(first, row), sizes[0]), columns)
    place = ew.select(ew.and_(ew.lt(row, sizes[0]), ew.ge(columns, 0)), place, sizes[1])
    none = full(value=False, dtype=dt.bool_, shape=(layouts * blocks * blocks + 1,))
    listed = full(value=True, dtype=dt.bool_, shape=(layouts * most,))
    return scatter_elements(none, reshape(place, shape=(layouts * most,)), listed, axis=0)


def _require_same_tables(node: Node, cos: int) -> None:
    node.demand_shape(cos + 1, node.shape(cos), f"cosines {node.type(cos)} and sines {node.type(cos + 1)} differ")


def _require_defaults(node: Node, **defaults: object) -> None:
    for name, default in defaults.items():
        if node.attr(name, default) not in (default, ""):
            raise UnsupportedError(f"{node.op} with {name} is not supported")


def _heads(node: Node) -> tuple[Value, Value, Value]:
    """Heads of queries, keys and values, standardised where there are weights for that."""
    count, groups = node.attr("num_heads"), node.attr("kv_num_heads")
    if count < 1 or groups < 1 or count % groups:
        raise ModelError(f"{node.op}: {count} heads cannot share {groups} heads of keys")
    q, k, v = node.optional(0), node.optional(1), node.optional(2)
    if k is None or v is None:
        size, odd = divmod(node.known_dim(0, 2), count + 2 * groups)
        if odd:
            raise ModelError(f"{node.op}: {node.type(0)} does not hold {count} and twice {groups} heads")
        q, k, v = split(node.input(0), sizes=(count * size, groups * size, groups * size), axis=2)
    assert q is not None
    heads = [to_heads(q, count), to_heads(k, groups), to_heads(v, groups)]
    epsilon = node.attr("qk_norm_epsilon", 1e-6)
    for n, name in enumerate(("q_norm_epsilon", "k_norm_epsilon")):
        own = node.attr(name, epsilon)
        if (weight := node.optional(14 + n)) is not None:
            heads[n] = rms_norm(heads[n], weight, epsilon=own)
    return heads[0], heads[1], heads[2]


def _require_past(node: Node, q: Value, k: Value, v: Value) -> None:
    """New keys and values are those of the queries' steps; what operands 3 and 4 have before them fits."""
    batch, _, steps, _ = shape_of(q)
    for new, n in ((k, 3), (v, 4)):
        own, groups, found, size = shape_of(new)
        node.demand(s.logical_and(s.eq(own, batch), s.eq(found, steps)), "keys and values are not those of the queries")
        if node.optional(n) is not None:
            wanted = (batch, groups, node.shape(3)[2], size)
            node.demand_shape(n, wanted, f"{node.type(n)} is not before keys and values {new.type}")


def _rotated(
    node: Node, cache: _Cache, q: Value, k: Value, tables: int, positions: Value | None
) -> tuple[Value, Value]:
    """q and k, turned by what the operands `tables` and that behind it have at the positions."""
    if positions is not None:
        wanted = (cache.batch, cache.steps)
        wrong = f"positions {positions.type} are not those of {cache.steps} steps of {cache.batch} entries"
        node.demand(s.logical_and(*map(s.eq, shape_of(positions), wanted)), wrong)
    positions = cache.positions() if positions is None else positions
    interleaved = node.flag("rotary_interleaved", 0)
    node.known_dim(tables, 1)
    cos, sin = node.input(tables), node.input(tables + 1)
    _require_same_tables(node, tables)
    q, k = (rotated(x, cos, sin, positions, interleaved=interleaved) for x in (q, k))
    return q, k


def _grouped(
    node: Node, q: Value, k: Value, v: Value, mask: Value, sink: Value | None = None, added: Value | None = None
) -> Value:
    """Attention where several heads of queries share one of keys: these are an axis of one element beside them. `mask`
    of bool and what is `added` broadcast against scores [batch, groups, shared, steps, size]."""
    batch, heads, steps, size = shape_of(q)
    _, groups, total, _ = shape_of(k)
    shared = heads // groups
    wide = reshape(q, shape=(batch, groups, shared, steps, size))
    k, v = (reshape(x, shape=(batch, groups, 1, total, shape_of(x)[3])) for x in (k, v))
    scale = node.attr("scale", 0.0) or 1 / math.sqrt(size.value)
    softcap = node.attr("softcap", 0.0)
    if not softcap and sink is None and added is None:
        result = attention(wide, k, v, mask, scale=scale)
    else:
        scores = ew.mul(matmul(widened(wide), widened(k), transpose_b=True), scale)
        if softcap:
            scores = ew.mul(ew.tanh(ew.div(scores, softcap)), softcap)
        scores = scores if added is None else ew.add(scores, added)
        scores = ew.select(mask, scores, full(value=-math.inf, dtype=dtype_of(scores), shape=()))
        result = as_dtype(matmul(_weights(scores, sink), widened(v)), dtype_of(q))
    return from_heads(reshape(result, shape=(batch, heads, steps, shape_of(v)[4])))


def _visible(node: Node, cache: _Cache) -> Value:
    """[batch, steps, size] of bool: may the query of a step see a key?"""
    keys = reshape(cache.keys(), shape=(1, 1, cache.seen))
    window = node.attr("local_window_size", -1)
    own = reshape(cache.positions(), shape=(cache.batch, cache.steps, 1))
    if not node.attr("causal", 1):
        filled = ew.add(ew.cast(node.input(5), dtype=dt.i64), 1)
        seen = ew.lt(keys, reshape(filled, shape=(cache.batch, 1, 1)))
        return expand(seen, shape=(cache.batch, cache.steps, cache.seen))
    seen = ew.le(keys, own)
    return seen if window < 1 else ew.and_(seen, ew.gt(keys, ew.sub(own, window)))


def _added(node: Node, cache: _Cache, count: Sym, groups: Sym) -> Value | None:
    """Operand 10 [batch or 1, heads or 1, steps, total], laid out as scores are."""
    added = node.optional(10)
    if added is None:
        return None
    batch, heads, steps, total = node.shape(10)
    wrong = f"{node.type(10)} cannot be added to scores of {cache.batch} entries, {count} heads and {cache.steps} steps"
    fits = (s.logical_or(s.eq(batch, 1), s.eq(batch, cache.batch)), s.logical_or(s.eq(heads, 1), s.eq(heads, count)))
    node.demand(s.logical_and(*fits, s.eq(steps, cache.steps), s.le(total, cache.size)), wrong)
    if total != cache.seen:
        if total != cache.size:
            added = pad(added, before=(0,) * 4, after=(sym(0), sym(0), sym(0), cache.size - total))
        added = added if cache.seen == cache.size else section(added, 3, 0, cache.seen)
    if not heads.is_const:
        added, heads = expand(added, shape=(batch, count, steps, cache.seen)), count
    shape = (batch, 1, 1) if heads == 1 else (batch, groups, heads // groups)
    return widened(reshape(added, shape=(*shape, steps, cache.seen)))


def _sink(node: Node, heads: Sym, groups: Sym) -> Value | None:
    """A score for each head that takes its share of the weights, and of nothing."""
    sink = node.optional(11)
    if sink is not None:
        node.demand_shape(11, (heads,), f"{node.type(11)} is not one score for each of {heads} heads")
        return widened(reshape(sink, shape=(groups, heads // groups, 1, 1)))
    return full(value=0.0, dtype=dt.f32, shape=()) if node.attr("smooth_softmax", -1) == 1 else None


def _weights(scores: Value, sink: Value | None) -> Value:
    """softmax along the last axis; the sink counts in the sum."""
    high = reduce_max(scores, axes=(-1,), keepdims=True)
    high = high if sink is None else ew.max_(high, sink)
    powers = ew.exp(ew.sub(scores, high))
    total = reduce_sum(powers, axes=(-1,), keepdims=True)
    if sink is not None:
        total = ew.add(total, ew.exp(ew.sub(sink, high)))
    return ew.div(powers, total)
