"""Contractions: matrix products and convolutions, accumulated in the accumulation dtype of their operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, eq, sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import Compute, compute, primitive
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import (
    Dim,
    broadcast,
    require,
    require_equal_dim,
    require_length,
    require_rank,
    require_same_dtype,
    require_space,
)
from tilewright.ops.window import Window


def widened_product(a: Scalar, b: Scalar) -> Scalar:
    """a * b in the accumulation dtype."""
    acc = a.dtype.accumulator
    return a.cast(acc) * b.cast(acc)


@primitive
def matmul(a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Compute:
    """Matrix products over the last two axes, NumPy broadcasting over the others.

    a is [..., m, k] ([..., k, m] with `transpose_a`), b is [..., k, n] ([..., n, k] with `transpose_b`).
    """
    require_same_dtype(a, b)
    return _matrix_product(a, b, transpose_a, transpose_b, widened_product, a.dtype)


@primitive
def matmul_widening(a: Array, b: Array, *, sums: DType, transpose_b: bool = False) -> Compute:
    """Matrix products of narrow numbers, each operand of its own dtype, in a wider dtype `sums`: i32 (modulo 2^32) for
    integers of up to 16 bits, f32 for floats of up to 16 bits.

    a is [..., m, k], b is [..., k, n] ([..., n, k] with `transpose_b`), with NumPy broadcasting over the leading axes.
    """
    multiply, dtype = products(a, b, sums)
    return _matrix_product(a, b, False, transpose_b, multiply, dtype)


def _batches_alike(a: TensorType, b: TensorType, **_: object) -> list[tuple[Sym, ...]]:
    """The axes of batches are read as those of the result are."""
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    return [(*batch, *a.shape[-2:]), (*batch, *b.shape[-2:])]


matmul.broadcasts(_batches_alike)
matmul_widening.broadcasts(_batches_alike)


def products(x: Array, w: Array, sums: DType | None) -> tuple[Callable[[Scalar, Scalar], Scalar], DType]:
    """How elements of the operands of a sum are multiplied, and the sum's dtype: that of both operands or, where it is
    given, `sums` for narrow numbers of its kind, each operand of its own dtype."""
    if sums is None:
        require_same_dtype(x, w)
        return widened_product, x.dtype
    kind = _WIDENED.get(sums)
    if kind is None:
        raise ValueError(f"sums can be i32 or f32, not {sums}")
    for operand, what in ((x, "the left operand"), (w, "the right operand")):
        if operand.dtype.is_float != sums.is_float or operand.dtype.kind == "bool" or operand.dtype.bits > 16:
            raise ValueError(f"{what} must be {kind} of up to 16 bits, not {operand.dtype}")
    return lambda a, b: a.cast(sums) * b.cast(sums), sums


_WIDENED: Mapping[DType, str] = MappingProxyType({dt.i32: "an integer", dt.f32: "a float"})
"""Dtypes of sums of narrower numbers, and what these are."""


def _matrix_product(
    a: Array,
    b: Array,
    transpose_a: bool,
    transpose_b: bool,
    multiply: Callable[[Scalar, Scalar], Scalar],
    dtype: DType,
) -> Compute:
    for x, what in ((a, "the left operand"), (b, "the right operand")):
        if x.rank < 2:
            raise ValueError(f"{what} must have 2 axes or more, not {x.rank}")
    m, ka = a.shape[-2:][::-1] if transpose_a else a.shape[-2:]
    kb, n = b.shape[-2:][::-1] if transpose_b else b.shape[-2:]
    require_equal_dim(ka, kb, "the inner dims")
    batch = broadcast(a.shape[:-2], b.shape[:-2])

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        *outer, row, column = i
        (k,) = r
        left = a.at((*outer, k, row) if transpose_a else (*outer, row, k))
        right = b.at((*outer, column, k) if transpose_b else (*outer, k, column))
        return multiply(left, right)

    inner = ka if ka.is_const else kb
    return compute([a, b], [*batch, m, n], body, reduce=[inner], combine="add", dtype=dtype)


def checked_groups(channels: Sym, per_group: Sym, filters: Sym, groups: int) -> Sym:
    """The number of filters of a group."""
    if groups < 1:
        raise ValueError(f"groups must be positive, not {groups}")
    require_equal_dim(
        channels, per_group * groups, "the channels of the data and of the filters (times groups)"
    )
    require(eq(filters % groups, 0), f"{filters} filters cannot be shared among {groups} groups")
    return filters // groups


@primitive
def conv(
    x: Array,
    w: Array,
    *,
    strides: Sequence[int] = (),
    pads_begin: Sequence[Dim] = (),
    pads_end: Sequence[Dim] = (),
    dilations: Sequence[int] = (),
    groups: int = 1,
    sums: DType | None = None,
) -> Compute:
    """Cross-correlation of x [n, c, *space] with filters w [o, c / groups, *kernel], padded with zeros.

    With `sums` of narrow numbers, each operand of its own dtype, in that wider dtype: i32 (modulo 2^32) or f32.
    """
    multiply, dtype = products(x, w, sums)
    require_rank(w, x.rank, "the filters")
    window = Window(require_space(x), w.shape[2:], strides, pads_begin, pads_end, dilations)
    per_group = checked_groups(x.shape[1], w.shape[1], w.shape[0], groups)

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        (n, o, *space), (c, *k) = i, r
        at = window.positions(space, k)
        data = x.load((n, group_of(o, per_group, groups) * w.shape[1] + c, *at), window.guard(at))
        return multiply(data, w[(o, c, *k)])

    shape = [x.shape[0], w.shape[0], *window.counts]
    return compute([x, w], shape, body, reduce=w.shape[1:], combine="add", dtype=dtype)


@primitive
def conv_grouped(
    x: Array,
    w: Array,
    *,
    strides: Sequence[int] = (),
    pads_begin: Sequence[Dim] = (),
    pads_end: Sequence[Dim] = (),
    dilations: Sequence[int] = (),
) -> Compute:
    """`conv` with an axis for groups: x [n, g, c, *space], filters w [g, o, c, *kernel] -> [n, g, o, *space]."""
    _require_groups(x, w)
    require_rank(w, x.rank, "the filters")
    window = Window(x.shape[3:], w.shape[3:], strides, pads_begin, pads_end, dilations)

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        (n, g, o, *space), (c, *k) = i, r
        at = window.positions(space, k)
        return widened_product(x.load((n, g, c, *at), window.guard(at)), w[(g, o, c, *k)])

    shape = [x.shape[0], *w.shape[:2], *window.counts]
    return compute([x, w], shape, body, reduce=w.shape[2:], combine="add", dtype=x.dtype)


@primitive
def conv_flat(x: Array, w: Array, *, pitches: Sequence[Dim], count: Dim) -> Compute:
    """A grouped convolution along the merged axes of space: x [n, g, c, s], w [g, o, c, *kernel] -> [n, g, o, count].

    A step along kernel axis k moves on by `pitches[k]` positions; position 0 of the result starts at position 0.
    """
    _require_groups(x, w)
    require_rank(x, 4, "the data")
    require_length(pitches, w.rank - 3, "pitches")
    reach = sym(count)
    for extent, pitch in zip(w.shape[3:], pitches, strict=True):
        reach = reach + (extent - 1) * pitch
    if (hi := (x.shape[3] - reach).bounds[1]) is not None and hi < 0:
        raise ValueError(f"{count} positions read {reach} elements, the data have {x.shape[3]}")

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        (n, g, o, at), (c, *k) = i, r
        for kk, pitch in zip(k, pitches, strict=True):
            at = at + kk * pitch
        return widened_product(x[(n, g, c, at)], w[(g, o, c, *k)])

    shape = [x.shape[0], *w.shape[:2], sym(count)]
    return compute([x, w], shape, body, reduce=w.shape[2:], combine="add", dtype=x.dtype)


def _require_groups(x: Array, w: Array) -> None:
    """Data [n, g, c, ...] and filters [g, o, c, ...] that belong together."""
    require_same_dtype(x, w)
    if min(x.rank, w.rank) < 4:
        raise ValueError(
            f"data and filters must have axes of groups, of channels and of space, not {x.rank} and {w.rank} axes"
        )
    require_equal_dim(x.shape[1], w.shape[0], "the groups of the data and of the filters")
    require_equal_dim(x.shape[2], w.shape[2], "the channels of the data and of the filters")


def group_of(channel: Sym, per_group: Sym, groups: int) -> Sym:
    """The group that a channel belongs to; groups of no channels have none."""
    return sym(0) if groups == 1 or per_group == 0 else channel // per_group


@primitive
def conv_transpose(
    x: Array,
    w: Array,
    *,
    strides: Sequence[int] = (),
    pads_begin: Sequence[Dim] = (),
    pads_end: Sequence[Dim] = (),
    output_padding: Sequence[Dim] = (),
    dilations: Sequence[int] = (),
    groups: int = 1,
) -> Compute:
    """The gradient of `conv` for its data: x [n, c, *space], w [c, o / groups, *kernel] -> [n, o, *space'].

    A spatial dim d becomes (d - 1) * stride + dilation * (kernel - 1) + 1 + output_padding - pads.
    """
    require_same_dtype(x, w)
    require_rank(w, x.rank, "the filters")
    space, rank = require_space(x), x.rank - 2
    window = Window(space, w.shape[2:], strides, pads_begin, pads_end, dilations)
    extra = tuple(output_padding) or (0,) * rank
    require_length(extra, rank, "output_padding")
    per_group = w.shape[1]
    in_group = checked_groups(x.shape[1], x.shape[1] // groups, x.shape[1], groups)
    require_equal_dim(w.shape[0], x.shape[1], "the channels of the data and of the filters")
    sizes = []
    for d, k, stride, b, a, dilation, more in zip(
        space,
        window.kernel,
        window.strides,
        window.before,
        window.after,
        window.dilations,
        extra,
        strict=True,
    ):
        sizes.append((d - 1) * stride + dilation * (k - 1) + 1 + more - b - a)

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        (n, o, *out), (c, *k) = i, r
        group = group_of(o, per_group, groups)
        at, guard = [], []
        for p, kk, stride, b, dilation, d in zip(
            out, k, window.strides, window.before, window.dilations, space, strict=True
        ):
            shifted = p + b - kk * dilation
            at.append(shifted // stride)
            guard += [s.eq(shifted % stride, 0)] if stride > 1 else []
            guard += [s.ge0(at[-1]), s.lt(at[-1], d)]
        channel = group * in_group + c
        data = x.load((n, channel, *at), guard)
        return widened_product(data, w[(channel, o - group * per_group, *k)])

    shape = [x.shape[0], per_group * groups, *sizes]
    return compute([x, w], shape, body, reduce=[in_group, *w.shape[2:]], combine="add", dtype=x.dtype)


@primitive
def overlapped(
    x: Array, *, strides: Sequence[int], pads_begin: Sequence[Dim], sizes: Sequence[Dim]
) -> Compute:
    """Blocks of x [n, *cells, c, *block], whose corners lie `strides` apart in the order of their cells, added up where
    they overlap: [n, c, *sizes] from position `pads_begin` on."""
    count = len(strides)
    require_rank(x, 2 * count + 2, "x")
    require_length(pads_begin, count, "pads_begin")
    require_length(sizes, count, "sizes")
    cells, block = x.shape[1 : 1 + count], x.shape[2 + count :]

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        rows = zip(i[2:], pads_begin, strides, r, strict=True)
        at = [position + before - stride * cell for position, before, stride, cell in rows]
        guard = [c for p, d in zip(at, block, strict=True) for c in (s.ge0(p), s.lt(p, d))]
        return x.load((i[0], *r, i[1], *at), guard)

    return compute([x], [x.shape[0], x.shape[1 + count], *map(sym, sizes)], body, reduce=cells, combine="add")
