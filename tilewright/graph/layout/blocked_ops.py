"""How each operator computes on blocked channels; those that are not listed read plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.cost.layouts import fills_blocks, keep_gaps
from tilewright.graph.algorithms.winograd import MOST_GROWTH
from tilewright.graph.layout.conv_window import Window
from tilewright.graph.layout.layout_map import Forms
from tilewright.graph.layout.spatial_blocking import compute_by_positions, is_thin
from tilewright.graph.layout.subpixel_deconv import phases_of
from tilewright.graph.match import ELEMENTWISE, dtype_of, shape_of, type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.passes import PassContext
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops.blocked import conv_blocked, depthwise_blocked, unblock_channels
from tilewright.ops.contract import matmul
from tilewright.ops.cook_toom import tile_lengths
from tilewright.ops.define import OPERATORS
from tilewright.ops.pool import max_pool_blocked, sum_pool_blocked
from tilewright.ops.view import concat, expand, pad, reshape, slice_, transpose

STAGE = "block-channels"

FINITE_AT_FILL = ELEMENTWISE - {
    "div", "rem", "mod", "pow", "log", "rsqrt", "atan2", "tan", "acosh", "atanh",
}  # fmt: skip
"""Elementwise operators that keep the fill of half-empty blocks finite."""


def blocked_form(op: Op, forms: Forms, ctx: PassContext) -> bool:
    """Emit the blocked form of `op` and register it; False when it stays plain."""
    if op.name in ELEMENTWISE:
        return _elementwise(op, forms, ctx)
    make = _FORMS.get(op.name)
    return make is not None and make(op, forms, ctx)


# Convolutions


def is_blockable_conv(op: Op, block: int) -> bool:
    """Whether a convolution can have a blocked result."""
    if op.name != "conv" or op.operands[1].op is None or op.operands[1].op.name != "constant":
        return False
    if dtype_of(op.result) != dt.f32:
        return False
    o, i = (d.value for d in shape_of(op.operands[1])[:2])
    groups = op.attrs["groups"]
    if groups == 1:
        return fills_blocks(o)
    return _is_depthwise(op) or (i % block == 0 and o // groups % block == 0)


def _is_narrow(op: Op) -> bool:
    """A 1x1 convolution with few filters: reading blocked data with empty lanes beats changing its layout."""
    w = op.operands[1]
    if w.op is None or w.op.name != "constant" or dtype_of(w) != dt.f32 or op.attrs["groups"] != 1:
        return False
    return all(d == 1 for d in shape_of(w)[2:])


def _is_depthwise(op: Op) -> bool:
    o, i = (d.value for d in shape_of(op.operands[1])[:2])
    return i == 1 and op.attrs["groups"] == o and fills_blocks(o)


def _conv(op: Op, forms: Forms, ctx: PassContext) -> bool:
    if is_thin(op, forms.block):
        compute_by_positions(op, forms)
        ctx.remark(STAGE, f"conv {op.loc}", "positions take the place of its one channel", applied=True)
        return True
    narrow = op.name == "conv" and _is_narrow(op) and forms.has_blocked(op.operands[0])
    if not is_blockable_conv(op, forms.block) and not narrow:
        ctx.remark(
            STAGE, f"conv {op.loc}", "its weights, groups or dtype do not allow whole blocks of channels"
        )
        return False
    window = Window(op)
    if _is_depthwise(op):
        _depthwise(op, window, forms)
    elif _stays_plain(op, window, forms):
        ctx.remark(STAGE, f"conv {op.loc}", "plain values come in and the result leaves: lanes are positions")
        if not window.is_single:
            return False
        _product(op, window, forms)
    else:
        _dense(op, window, forms)
    return True


def _reads_blocks(op: Op, forms: Forms) -> bool:
    """Whether a convolution reads blocked data: all but those of few channels, as images have."""
    return forms.has_blocked(op.operands[0]) or shape_of(op.operands[1])[1].value >= forms.block


def _stays_plain(op: Op, window: Window, forms: Forms) -> bool:
    """Whether changing the layout of the result would cost more than blocks save: it only leaves, and the data are
    plain, with single positions, or few channels to be summed and lines of known length that lanes read unspread."""
    if op.attrs["groups"] != 1 or forms.has_blocked(op.operands[0]) or not _leaves(op):
        return False
    in_lanes = window.strides[-1] == 1 and shape_of(op.result)[-1].is_const
    return window.is_single or (in_lanes and not _reads_blocks(op, forms))


def _leaves(op: Op) -> bool:
    """Whether only elementwise work follows before the function returns."""
    users = [u for v in op.results for u in v.users]
    return all(u.name == "return" or (u.name in ELEMENTWISE and _leaves(u)) for u in users)


def _filled_weights(op: Op, forms: Forms, fill_inputs: bool, spatial: int) -> Value:
    """The filters with zeros up to whole blocks, with `fill_inputs` up to the input channels that are summed, and
    with `spatial` kernel axes."""
    value = op.operands[1]
    array = forms.array(value)
    assert array is not None
    positions = forms.positions(op.operands[0])
    if positions is not None:
        spread = np.zeros((len(array), positions[-1] + 1, *array.shape[2:]), array.dtype)
        spread[:, list(positions)] = array
        array = spread
    o, i, *kernel = array.shape
    grow_o = forms.filled(o) - o
    grow_i = _summed_channels(op, i, forms.block) - i if fill_inputs else 0
    if not grow_o and not grow_i and len(kernel) == spatial and positions is None:
        return forms.plain(value)
    shape = (o, i, *kernel) if len(kernel) == spatial else (o, i, 1)
    grown = np.pad(array.reshape(shape), ((0, grow_o), (0, grow_i), *((0, 0) for _ in shape[2:])))
    return forms.weights(np.ascontiguousarray(grown), value)


def _summed_channels(op: Op, count: int, block: int) -> int:
    """Input channels with those beyond the last that are summed with them: as few as leave runs of a fair length, but
    whole blocks where Winograd's algorithm, which transforms whole ones, may take over."""
    window = Window(op)
    unit = all(n == 1 for n in (*window.strides, *window.dilations))
    may_transform = unit and bool(tile_lengths(tuple(n.value for n in window.kernel), MOST_GROWTH))
    runs = (block,) if may_transform else (block, block // 2, block // 4)
    return min(-(-count // run) * run for run in runs)


def _dense(op: Op, window: Window, forms: Forms) -> None:
    """A convolution of few channels reads them plain: images have three."""
    x, groups = op.operands[0], op.attrs["groups"]
    is_blocked = _reads_blocks(op, forms)
    flat = window.is_pointwise and len(window.kernel) > 1
    w = _filled_weights(op, forms, is_blocked and groups == 1, 1 if flat else len(window.kernel))
    if flat:
        data = forms.flat(x) if is_blocked else _merged(forms.plain(x))
        forms.set_flat(op.result, conv_blocked(data, w, groups=groups, block=forms.block))
        return
    data = window.padded(forms.blocked(x) if is_blocked else forms.plain(x), int(is_blocked))
    made = conv_blocked(data, w, groups=groups, block=forms.block, **window.attrs)
    forms.set_blocked(op.result, made)


def _product(op: Op, window: Window, forms: Forms) -> None:
    """A convolution of single positions between plain tensors is a product of matrices: no layout changes."""
    x, w = forms.plain(op.operands[0]), forms.plain(op.operands[1])
    if not window.is_pointwise:
        sizes = (*shape_of(x)[:2], *shape_of(op.result)[2:])
        x = slice_(x, starts=(0,) * len(sizes), sizes=sizes, steps=(1, 1, *window.strides))
    y = matmul(reshape(w, shape=shape_of(w)[:2]), _merged(x))
    forms.set_plain(op.result, reshape(y, shape=shape_of(op.result)))


def _merged(x: Value) -> Value:
    """Plain x with its spatial axes as one."""
    n, c, *space = shape_of(x)
    return reshape(x, shape=(n, c, product(space)))


def _depthwise(op: Op, window: Window, forms: Forms) -> None:
    """Conditions cost little here: each load serves one product, and padding apart would be another pass."""
    w = _filled_weights(op, forms, False, len(window.kernel))
    pads = {"pads_begin": window.before, "pads_end": window.after}
    forms.set_blocked(op.result, depthwise_blocked(forms.blocked(op.operands[0]), w, **pads, **window.attrs))


def _conv_transpose(op: Op, forms: Forms, ctx: PassContext) -> bool:
    """All phases as one convolution; few filters give a plain result, so that lanes hold phases too."""
    weights = forms.array(op.operands[1])
    phases = phases_of(op)
    if weights is None or not weights.size or phases is None or dtype_of(op.result) != dt.f32:
        return False
    c, o = weights.shape[:2]
    keeps_blocks = fills_blocks(o)
    filters = phases.filters(weights)
    grow = [(0, 0), (0, forms.filled(o) - o if keeps_blocks else 0), (0, forms.filled(c) - c)]
    filters = np.pad(filters, [*grow, *[(0, 0)] * len(phases.taps)]).reshape(
        -1, forms.filled(c), *phases.taps
    )
    number = len(filters)
    filters = np.pad(filters, [(0, forms.filled(number) - number), *[(0, 0)] * (filters.ndim - 1)])
    w = forms.weights(np.ascontiguousarray(filters), op.operands[1])
    y = conv_blocked(phases.padded(forms.blocked(op.operands[0]), 1), w, block=forms.block)
    if keeps_blocks:
        forms.set_blocked(op.result, phases.interleaved(y, 1))
    else:
        plain = unblock_channels(y, channels=sym(number))
        forms.set_plain(op.result, phases.interleaved(plain, 0))
    return True


# Operators that treat channels alike


def _elementwise(op: Op, forms: Forms, ctx: PassContext) -> bool:
    shape = shape_of(op.result)
    if len(shape) < 3 or not shape[1].is_const or not fills_blocks(shape[1].value):
        return False
    whole = [v for v in op.operands if forms.has_blocked(v) and forms.channels(v) == shape[1]]
    if not any(len(shape_of(v)) == len(shape) for v in whole):
        return False
    by_number = op.name == "div" and type_of(op.operands[1]).size == 1
    if shape[1] % forms.block != 0 and op.name not in FINITE_AT_FILL and not by_number:
        ctx.remark(
            STAGE, f"{op.name} {op.loc}", "the fill of its last block of channels might not stay finite"
        )
        return False
    flat = any(forms.is_flat(v) for v in whole) and all(_merges_space(v, shape) for v in op.operands)
    operands = [_operand(v, shape, forms, flat) for v in op.operands]
    made = OPERATORS[op.name](*operands, **op.attrs)
    (forms.set_flat if flat else forms.set_blocked)(op.result, made)
    return True


def _aligned(value: Value, rank: int) -> tuple[Sym, ...]:
    """The shape of an operand with the axes that broadcasting puts before it."""
    shape = shape_of(value)
    return (sym(1),) * (rank - len(shape)) + shape


def _merges_space(value: Value, shape: tuple[Sym, ...]) -> bool:
    """Whether an operand has all spatial axes of the result or none."""
    space = _aligned(value, len(shape))[2:]
    return space == shape[2:] or all(d == 1 for d in space)


def _operand(value: Value, shape: tuple[Sym, ...], forms: Forms, flat: bool) -> Value:
    """An operand of a blocked elementwise operator."""
    own = _aligned(value, len(shape))
    if not shape_of(value):
        return forms.plain(value)
    if own[1] == 1:
        space = (product(own[2:]),) if flat else own[2:]
        return reshape(forms.plain(value), shape=(*own[:2], *space, 1))
    if len(shape_of(value)) == len(shape):
        return forms.flat(value) if flat else forms.blocked(value)
    wide = reshape(forms.plain(value), shape=own)
    return forms.flat(wide) if flat else forms.blocked(wide)


def _pool(op: Op, forms: Forms, ctx: PassContext) -> bool:
    (x,) = op.operands
    if not forms.has_blocked(x):
        return False
    operator = max_pool_blocked if op.name == "max_pool" else sum_pool_blocked
    forms.set_blocked(op.result, operator(forms.blocked(x), **op.attrs))
    return True


def _reduction(op: Op, forms: Forms, ctx: PassContext) -> bool:
    """Reductions over spatial axes."""
    (x,) = op.operands
    axes = [a % type_of(x).rank for a in op.attrs["axes"]]
    if not forms.has_blocked(x) or any(a < 2 for a in axes):
        return False
    made = OPERATORS[op.name](forms.blocked(x), axes=tuple(axes), keepdims=True)
    if op.attrs["keepdims"]:
        forms.set_blocked(op.result, made)
        return True
    kept = tuple(sym(1) if k in axes else d for k, d in enumerate(shape_of(x)))
    forms.set_plain(op.result, reshape(forms.unblocked(made, kept), shape=shape_of(op.result)))
    return True


def _concat(op: Op, forms: Forms, ctx: PassContext) -> bool:
    axis = op.attrs["axis"] % type_of(op.result).rank
    if axis == 0 or not any(map(forms.has_blocked, op.operands)):
        return False
    parts = op.operands[:-1] if axis == 1 else ()
    positions = None
    if any(forms.channels(v) % forms.block != 0 for v in parts):
        positions = _positions(op, forms)
        if positions is None:
            ctx.remark(STAGE, f"concat {op.loc}", "an operand ends within a block of channels")
            return False
        ctx.remark(STAGE, f"concat {op.loc}", "each operand has blocks of its own", applied=True)
    forms.set_blocked(op.result, concat(*map(forms.blocked, op.operands), axis=axis), positions)
    return True


def _positions(op: Op, forms: Forms) -> tuple[int, ...] | None:
    """Where channels lie if each operand of a concat starts a block, so that no element has to move: in gaps readers
    have weights of zero. None where another than a convolution reads them, or where gaps would cost too much."""
    counts = [forms.channels(v) for v in op.operands]
    readers = op.result.users
    if not all(n.is_const for n in counts) or not all(_reads_gaps(u, op.result, forms) for u in readers):
        return None
    filled = [forms.filled(n.value) for n in counts]
    if not keep_gaps(filled, forms.filled(sum(n.value for n in counts))):
        return None
    starts = [sum(filled[:k]) for k in range(len(filled))]
    return tuple(start + k for start, n in zip(starts, counts, strict=True) for k in range(n.value))


def _reads_gaps(user: Op, value: Value, forms: Forms) -> bool:
    """Whether an op is a convolution that sums over all channels of `value`, in its blocked form."""
    if user.name != "conv" or user.operands[0] is not value or user.attrs["groups"] != 1:
        return False
    return is_blockable_conv(user, forms.block) or _is_narrow(user)


# Views of space


def _keeps_channels(old: Sequence[Sym], new: Sequence[Sym]) -> bool:
    return len(new) > 2 and tuple(old[:2]) == tuple(new[:2])


def _spatial_view(
    make: Callable[[Op, Value, Forms], Value | None],
) -> Callable[[Op, Forms, PassContext], bool]:
    """A view that leaves batch and channels alone; `make` gives its blocked form, or None."""

    def form(op: Op, forms: Forms, ctx: PassContext) -> bool:
        x = op.operands[0]
        if not forms.has_blocked(x) or not _keeps_channels(shape_of(x), shape_of(op.result)):
            return False
        made = make(op, forms.blocked(x), forms)
        if made is not None:
            forms.set_blocked(op.result, made)
        return made is not None

    return form


def _wide_shape(op: Op, x: Value) -> tuple[Sym, ...]:
    n, cb, *_, b = shape_of(x)
    return (n, cb, *shape_of(op.result)[2:], b)


def _transposed(op: Op, x: Value, forms: Forms) -> Value | None:
    perm = tuple(op.attrs["perm"])
    return transpose(x, perm=(*perm, len(perm))) if perm[:2] == (0, 1) else None


def _expanded(op: Op, x: Value, forms: Forms) -> Value | None:
    if len(shape_of(op.result)) != len(shape_of(op.operands[0])):
        return None
    return expand(x, shape=_wide_shape(op, x))


def _sliced(op: Op, x: Value, forms: Forms) -> Value | None:
    starts = (0, 0, *op.attrs["starts"][2:], 0)
    steps = tuple(op.attrs["steps"]) or (1,) * type_of(op.result).rank
    if any(s != 1 for s in steps[:2]):
        return None
    return slice_(x, starts=starts, sizes=_wide_shape(op, x), steps=(*steps, 1))


def _padded(op: Op, x: Value, forms: Forms) -> Value | None:
    before, after = tuple(op.attrs["before"]), tuple(op.attrs["after"])
    if any(sym(p) != 0 for p in (*before[:2], *after[:2])):
        return None
    mode, value = op.attrs["mode"], op.attrs["value"]
    return pad(x, before=(*before, 0), after=(*after, 0), mode=mode, value=value)


def _gathered(op: Op, x: Value, forms: Forms) -> Value | None:
    rank = type_of(op.operands[0]).rank
    indices = forms.plain(op.operands[1])
    if op.attrs["axis"] % rank < 2 or type_of(indices).rank != 1:
        return None
    return OPERATORS["gather"](x, indices, axis=op.attrs["axis"] % rank)


_FORMS: Mapping[str, Callable[[Op, Forms, PassContext], bool]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "max_pool": _pool,
    "sum_pool": _pool,
    "reduce_sum": _reduction,
    "reduce_max": _reduction,
    "reduce_min": _reduction,
    "concat": _concat,
    "reshape": _spatial_view(lambda op, x, forms: reshape(x, shape=_wide_shape(op, x))),
    "transpose": _spatial_view(_transposed),
    "expand": _spatial_view(_expanded),
    "slice": _spatial_view(_sliced),
    "pad": _spatial_view(_padded),
    "gather": _spatial_view(_gathered),
}
