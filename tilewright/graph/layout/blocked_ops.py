"""Operators that go on in blocks of channels where these are; those that are not listed read plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tilewright.cost.conv.layouts import fills_blocks, keep_gaps
from tilewright.graph.layout.blocked_convs import STAGE, layout_conv, sums_all_channels
from tilewright.graph.layout.layout_map import LayoutMap
from tilewright.graph.layout.subpixel_deconv import layout_conv_transpose
from tilewright.graph.match import shape_of, type_of
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym, ceildiv, sym
from tilewright.ir.types import product
from tilewright.ops.define import OPERATORS
from tilewright.ops.traits.derive import traits_of
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.ops.view import concat, reshape, slice_
from tilewright.passes import PassContext


def layout_op(op: Op, layouts: LayoutMap, ctx: PassContext) -> bool:
    """Emit `op` in blocks, or in another layout that suits it; False when it stays as it is."""
    if is_elementwise(op):
        return _elementwise(op, layouts, ctx)
    make = _MAKERS.get(op.name)
    return make is not None and make(op, layouts, ctx)


# Elementwise


def _elementwise(op: Op, layouts: LayoutMap, ctx: PassContext) -> bool:
    shape = shape_of(op.result)
    if len(shape) < 3 or not shape[1].is_const or not fills_blocks(shape[1].value):
        return False
    whole = [v for v in op.operands if layouts.has_blocked(v) and shape_of(v)[1] == shape[1]]
    if not any(len(shape_of(v)) == len(shape) for v in whole):
        return False
    by_number = 0 in traits_of(op).linear and type_of(op.operands[-1]).size == 1
    if shape[1] % layouts.block != 0 and not traits_of(op).is_finite and not by_number:
        ctx.remark(
            STAGE, f"{op.name} {op.loc}", "the fill of its last block of channels might not stay finite"
        )
        return False
    is_flat = any(layouts.is_flat(v) for v in whole) and all(_merges_space(v, shape) for v in op.operands)
    operands = [_operand(v, shape, layouts, is_flat) for v in op.operands]
    made = OPERATORS[op.name](*operands, **op.attrs)
    (layouts.set_flat if is_flat else layouts.set_blocked)(op.result, made)
    return True


def _aligned(value: Value, rank: int) -> tuple[Sym, ...]:
    """The shape of an operand with the axes that broadcasting puts before it."""
    shape = shape_of(value)
    return (sym(1),) * (rank - len(shape)) + shape


def _merges_space(value: Value, shape: tuple[Sym, ...]) -> bool:
    """Whether an operand has all spatial axes of the result or none."""
    space = _aligned(value, len(shape))[2:]
    return space == shape[2:] or all(d == 1 for d in space)


def _operand(value: Value, shape: tuple[Sym, ...], layouts: LayoutMap, is_flat: bool) -> Value:
    """An operand of a blocked elementwise operator."""
    if not shape_of(value):
        return layouts.plain(value)
    own = _aligned(value, len(shape))
    if own[1] == 1:
        space = (product(own[2:]),) if is_flat else own[2:]
        return reshape(layouts.plain(value), shape=(*own[:2], *space, 1))
    if len(shape_of(value)) < len(shape):
        value = reshape(layouts.plain(value), shape=own)
    return layouts.flat(value) if is_flat else layouts.blocked(value)


def _looked_up(op: Op, layouts: LayoutMap, ctx: PassContext) -> bool:
    """Integers of a table by bytes in blocks; the fill of these is a number as any other."""
    x, table = op.operands
    if not layouts.has_blocked(x) or not type_of(table).dtype.is_int:
        return False
    is_flat = layouts.is_flat(x)
    made = OPERATORS[op.name](layouts.flat(x) if is_flat else layouts.blocked(x), layouts.plain(table))
    (layouts.set_flat if is_flat else layouts.set_blocked)(op.result, made)
    return True


# Each channel on its own: poolings, reductions over space, views of space


_TWINS: Mapping[str, str] = MappingProxyType(
    {"max_pool": "max_pool_blocked", "sum_pool": "sum_pool_blocked"}
)
"""Operators whose form for blocked data is another one."""


def _channel_by_channel(op: Op, layouts: LayoutMap, ctx: PassContext) -> bool:
    x, *others = op.operands
    if not layouts.has_blocked(x) or not _keeps_channels(op):
        return False
    data = layouts.blocked(x)
    attrs = _with_block_axis(op, data)
    made = OPERATORS[_TWINS.get(op.name, op.name)](data, *map(layouts.plain, others), **attrs)
    if op.attrs.get("keepdims", True):
        layouts.set_blocked(op.result, made)
        return True
    kept = tuple(sym(1) if k in attrs["axes"] else d for k, d in enumerate(shape_of(x)))
    layouts.set_plain(op.result, reshape(layouts.unblocked(made, kept), shape=shape_of(op.result)))
    return True


def _keeps_channels(op: Op) -> bool:
    """Whether each element of the result is made of elements of the same image and channel of the first operand, as the
    definition of the operator says."""
    types = [type_of(v) for v in op.operands]
    computation = OPERATORS[op.name].compute(types, op.attrs)
    old, new = types[0].shape, computation.shape
    if old[:2] != new[:2] or (len(new) < 3 and op.attrs.get("keepdims", True)):
        return False
    own = [v for v, _ in computation.axes[:2]]
    data = computation.body.args[0]
    loads = [o.attrs["idx"] for o in computation.body.ops if o.name == "load" and o.operands[0] is data]
    return all(i is v or d == 1 for idx in loads for i, v, d in zip(idx[:2], own, old[:2], strict=True))


def _with_block_axis(op: Op, x: Value) -> dict[str, Any]:
    """The attributes of an operator for its data x in blocks, which have one axis more: the places in a block."""
    n, blocks, *_, block = shape_of(x)
    rank = type_of(op.operands[0]).rank
    shape = (n, blocks, *shape_of(op.result)[2:], block)
    extended: Mapping[str, Callable[[Any], Any]] = {
        "shape": lambda value: shape,
        "sizes": lambda value: shape,
        "perm": lambda value: (*value, rank),
        "starts": lambda value: (*value, 0),
        "steps": lambda value: (*(value or (1,) * rank), 1),
        "before": lambda value: (*value, 0),
        "after": lambda value: (*value, 0),
        "axis": lambda value: value % rank,
        "axes": lambda value: tuple(a % rank for a in value),
        "keepdims": lambda value: True,
    }
    return {name: extended.get(name, lambda v: v)(value) for name, value in op.attrs.items()}


def _slice(op: Op, layouts: LayoutMap, ctx: PassContext) -> bool:
    """Whole blocks of channels stay blocks: a slice of these is a part of the blocks."""
    if _channel_by_channel(op, layouts, ctx):
        return True
    x, block = op.operands[0], layouts.block
    if not layouts.has_blocked(x):
        return False
    whole, count = shape_of(x)[1], shape_of(op.result)[1]
    start, *steps = (sym(op.attrs["starts"][1]), *map(sym, op.attrs["steps"][1:2]))
    if any(step != 1 for step in steps) or start % block != 0 or (count % block != 0 and start + count != whole):
        ctx.remark(STAGE, f"slice {op.loc}", "it begins or ends within a block of channels")
        return False
    data = layouts.blocked(x)
    attrs = _with_block_axis(op, data)
    for name, blocks in (("starts", start // block), ("sizes", ceildiv(count, block))):
        attrs[name] = (op.attrs[name][0], blocks, *attrs[name][2:])
    layouts.set_blocked(op.result, slice_(data, **attrs))
    return True


# Concatenation


def _concat(op: Op, layouts: LayoutMap, ctx: PassContext) -> bool:
    axis = op.attrs["axis"] % type_of(op.result).rank
    if axis == 0 or not any(map(layouts.has_blocked, op.operands)):
        return False
    parts = op.operands[:-1] if axis == 1 else ()
    slots = None
    if any(shape_of(v)[1] % layouts.block != 0 for v in parts):
        slots = _slots(op, layouts)
        if slots is None:
            ctx.remark(STAGE, f"concat {op.loc}", "an operand ends within a block of channels")
            return False
        ctx.remark(STAGE, f"concat {op.loc}", "each operand has blocks of its own", applied=True)
    layouts.set_blocked(op.result, concat(*map(layouts.blocked, op.operands), axis=axis), slots)
    return True


def _slots(op: Op, layouts: LayoutMap) -> tuple[int, ...] | None:
    """Where channels lie if each operand of a concat starts a block, so that no element has to move: in gaps readers
    have weights of zero. None where another than a convolution reads them, or where gaps would cost too much."""
    counts = [shape_of(v)[1] for v in op.operands]
    reads_gaps = all(sums_all_channels(u, op.result, layouts.block) for u in op.result.users)
    if not all(n.is_const for n in counts) or not reads_gaps:
        return None
    filled = [layouts.filled(n.value) for n in counts]
    if not keep_gaps(filled, layouts.filled(sum(n.value for n in counts))):
        return None
    starts = [sum(filled[:k]) for k in range(len(filled))]
    return tuple(start + k for start, n in zip(starts, counts, strict=True) for k in range(n.value))


_MAKERS: Mapping[str, Callable[[Op, LayoutMap, PassContext], bool]] = MappingProxyType(
    {
        "conv": layout_conv,
        "conv_transpose": layout_conv_transpose,
        "concat": _concat,
        "table_lookup": _looked_up,
        **dict.fromkeys(
            (
                "max_pool", "sum_pool", "reduce_sum", "reduce_max", "reduce_min",
                "reshape", "transpose", "expand", "pad", "gather",
            ),
            _channel_by_channel,
        ),
        "slice": _slice,
    }
)  # fmt: skip
