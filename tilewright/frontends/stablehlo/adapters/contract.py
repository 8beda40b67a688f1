"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir.dialects import stablehlo

from tilewright.frontends.stablehlo.adapters.elementwise import converted
from tilewright.frontends.stablehlo.adapters.view import padded
from tilewright.frontends.stablehlo.node import ProgramOp, adapter
from tilewright.frontends.stablehlo.values import ComplexPair, Held
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops import contract
from tilewright.ops import elementwise as ew
from tilewright.ops.source import number_like
from tilewright.ops.view import reshape, reverse, shape_of, transpose


def _ordered(x: Value, order: Sequence[int]) -> Value:
    return x if tuple(order) == tuple(range(len(order))) else transpose(x, perm=tuple(order))


def _shaped(x: Value, shape: Sequence[Sym]) -> Value:
    return x if shape_of(x) == tuple(shape) else reshape(x, shape=tuple(shape))


@adapter("dot_general")
def _dot_general(node: ProgramOp) -> Held:
    numbers = stablehlo.DotDimensionNumbers(node.attribute("dot_dimension_numbers"))
    batch = tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions)
    inner = tuple(numbers.lhs_contracting_dimensions), tuple(numbers.rhs_contracting_dimensions)
    dtype = node.result_type.dtype
    a, b = node.held(0), node.held(1)
    if isinstance(a, ComplexPair) and isinstance(b, ComplexPair):
        real = ew.sub(_dot(a.real, b.real, batch, inner, dtype), _dot(a.imaginary, b.imaginary, batch, inner, dtype))
        imaginary = _dot(a.real, b.imaginary, batch, inner, dtype), _dot(a.imaginary, b.real, batch, inner, dtype)
        return ComplexPair(real, ew.add(*imaginary))
    return _dot(node.x(0), node.x(1), batch, inner, dtype)


Axes = tuple[tuple[int, ...], tuple[int, ...]]
"""Of the left and of the right operand, in step."""


def _dot(a: Value, b: Value, batch: Axes, inner: Axes, dtype: DType) -> Value:
    """Axes in the order batch, rows, inner ones of a, batch, inner ones, columns of b; those of a kind become one."""
    last = len(shape_of(a)) - 1, len(shape_of(b)) - 1
    if batch[0] and inner[0] != (last[0],) and inner[1] == (last[1],):
        # rows are those whose elements lie side by side, as weights of attention do
        count = len(batch[0])
        rows, columns = (len(shape_of(x)) - count - 1 for x in (b, a))
        found = _dot(b, a, batch[::-1], inner[::-1], dtype)
        order = (*range(count), *range(count + rows, count + rows + columns), *range(count, count + rows))
        return transpose(found, perm=order)
    free = [
        [k for k in range(len(shape_of(x))) if k not in (*batch[n], *inner[n])] for n, x in enumerate((a, b))
    ]
    shapes = shape_of(a), shape_of(b)
    outer = [shapes[0][k] for k in batch[0]]
    of_rows, of_columns = ([shapes[n][k] for k in free[n]] for n in (0, 1))
    merged = [product(shapes[n][k] for k in inner[n]) for n in (0, 1)]
    is_plain = not outer and len(of_rows) > 1 and len(inner[0]) == 1
    left = _ordered(a, (*batch[0], *free[0], *inner[0]))
    if not is_plain:  # the product itself has rows of several axes where the right operand is one matrix
        left = _shaped(left, (*outer, product(of_rows), merged[0]))
    # weights are often transposed already: [columns, inner] is read as it is
    if not outer and len(free[1]) == 1 and len(inner[1]) == 1 and free[1][0] < inner[1][0]:
        found = _product(left, b, dtype, turned=True)
    else:
        right = _shaped(_ordered(b, (*batch[1], *inner[1], *free[1])), (*outer, merged[1], product(of_columns)))
        found = _product(left, right, dtype)
    return _shaped(found, (*outer, *of_rows, *of_columns))


_WIDENING = {"int": dt.i32, "float": dt.f32}


def _product(a: Value, b: Value, dtype: DType, *, turned: bool = False) -> Value:
    own = type_of(a).dtype, type_of(b).dtype
    narrow = all(d.bits <= 16 and d.is_float == dtype.is_float and d.kind != "bool" for d in own)
    if narrow and dtype == _WIDENING.get(dtype.kind):
        return contract.matmul_widening(a, b, sums=dtype, transpose_b=turned)
    if dtype is dt.bool_:
        found = contract.matmul(converted(a, dt.i32), converted(b, dt.i32), transpose_b=turned)
        return ew.ne(found, number_like(0, found))
    return contract.matmul(converted(a, dtype), converted(b, dtype), transpose_b=turned)


@adapter("dot")
def _dot_simple(node: ProgramOp) -> Held:
    rank = len(shape_of(node.x(0)))
    return _dot(node.x(0), node.x(1), ((), ()), ((rank - 1,), (0,)), node.result_type.dtype)


@adapter("convolution")
def _convolution(node: ProgramOp) -> Held:
    count = len(stablehlo.ConvDimensionNumbers(node.attribute("dimension_numbers")).input_spatial_dimensions)
    pads = tuple((sym(a), sym(b)) for a, b in node.pads(count))
    return _convolved(node, pads)


@adapter("dynamic_conv")
def _dynamic_conv(node: ProgramOp) -> Held:
    found = node.symbols(2)
    return _convolved(node, tuple(zip(found[0::2], found[1::2], strict=True)))


def _convolved(node: ProgramOp, pads: Sequence[tuple[Sym, Sym]]) -> Held:
    numbers = stablehlo.ConvDimensionNumbers(node.attribute("dimension_numbers"))
    space = list(numbers.input_spatial_dimensions)
    ones = (1,) * len(space)
    strides, dilations = node.integers("window_strides", ones), node.integers("rhs_dilation", ones)
    apart = node.integers("lhs_dilation", ones)
    groups, batches = node.integer("feature_group_count", 1), node.integer("batch_group_count", 1)
    x = _ordered(node.x(0), (numbers.input_batch_dimension, numbers.input_feature_dimension, *space))
    kernel = list(numbers.kernel_spatial_dimensions)
    w = _ordered(node.x(1), (numbers.kernel_output_feature_dimension, numbers.kernel_input_feature_dimension, *kernel))
    reversed_axes = tuple(k + 2 for k, is_turned in enumerate(node.flags("window_reversal", len(space))) if is_turned)
    if reversed_axes:
        w = reverse(w, axes=reversed_axes)
    if batches > 1:
        x, groups = _batches_as_channels(x, batches), batches
    found = _with_space(node, x, w, strides, pads, dilations, apart, groups)
    places = (numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions)
    return _ordered(found, [places.index(k) for k in range(len(places))])


def _batches_as_channels(x: Value, count: int) -> Value:
    """Groups of the batch, each with filters of its own, as groups of channels."""
    batch, channels, *space = shape_of(x)
    apart = reshape(x, shape=(count, batch // count, channels, *space))
    moved = transpose(apart, perm=(1, 0, *range(2, len(space) + 3)))
    return reshape(moved, shape=(batch // count, channels * count, *space))


def _with_space(
    node: ProgramOp,
    x: Value,
    w: Value,
    strides: Sequence[int],
    pads: Sequence[tuple[Sym, Sym]],
    dilations: Sequence[int],
    apart: Sequence[int],
    groups: int,
) -> Value:
    dtype = node.result_type.dtype
    if not strides:  # no space: a matrix product
        x, w = reshape(x, shape=(*shape_of(x), 1)), reshape(w, shape=(*shape_of(w), 1))
        found = _with_space(node, x, w, (1,), ((sym(0), sym(0)),), (1,), (1,), groups)
        return reshape(found, shape=shape_of(found)[:-1])
    if any(n != 1 for n in apart):
        turned = _transposed(x, w, strides, pads, dilations, apart, groups, dtype)
        if turned is not None:
            return turned
        zeros = (sym(0),) * len(shape_of(x))
        x = padded(node.translation, x, number_like(0, x), zeros, zeros, (0, 0, *(n - 1 for n in apart)))
    x, pads = _cropped(node, x, pads)
    begin, end = tuple(a for a, _ in pads), tuple(b for _, b in pads)
    window = {
        "strides": tuple(strides), "pads_begin": begin, "pads_end": end, "dilations": tuple(dilations),
        "groups": groups,
    }  # fmt: skip
    own = type_of(x).dtype, type_of(w).dtype
    narrow = all(d.bits <= 16 and d.is_float == dtype.is_float and d.kind != "bool" for d in own)
    if narrow and dtype == _WIDENING.get(dtype.kind):
        return contract.conv(x, w, sums=dtype, **window)
    return contract.conv(converted(x, dtype), converted(w, dtype), **window)


def _cropped(
    node: ProgramOp, x: Value, pads: Sequence[tuple[Sym, Sym]]
) -> tuple[Value, Sequence[tuple[Sym, Sym]]]:
    """Pads below 0 take elements away."""
    if not any(p.is_const and p.value < 0 for pair in pads for p in pair):
        return x, pads
    less = [(_below_zero(a), _below_zero(b)) for a, b in pads]
    low, high = ((sym(0), sym(0), *(sym(pair[n]) for pair in less)) for n in (0, 1))
    x = padded(node.translation, x, number_like(0, x), low, high, (0,) * len(low))
    return x, [(a - c, b - d) for (a, b), (c, d) in zip(pads, less, strict=True)]


def _below_zero(p: Sym) -> int:
    return min(p.value, 0) if p.is_const else 0


def _transposed(
    x: Value,
    w: Value,
    strides: Sequence[int],
    pads: Sequence[tuple[Sym, Sym]],
    dilations: Sequence[int],
    apart: Sequence[int],
    groups: int,
    dtype: DType,
) -> Value | None:
    """Convolutions of elements that lie apart are transposed convolutions; None where pads do not fit these."""
    sizes = shape_of(w)[2:]
    if any(n != 1 for n in strides) or not all(d.is_const for d in sizes):
        return None
    reach = [(d.value - 1) * n for d, n in zip(sizes, dilations, strict=True)]
    begin, end, more = [], [], []
    for n, (low, high) in zip(reach, pads, strict=True):
        if not (low.is_const and high.is_const) or low.value > n:
            return None
        begin.append(n - low.value)
        end.append(max(n - high.value, 0))
        more.append(max(high.value - n, 0))
    outputs, channels, *kernel = shape_of(w)
    if not outputs.is_const or outputs.value % groups:
        raise ModelError(f"{outputs} filters in {groups} groups")
    of_group = outputs.value // groups
    rank = len(kernel)
    filters = reverse(w, axes=tuple(range(2, rank + 2)))
    split = reshape(filters, shape=(groups, of_group, channels, *kernel))
    turned = transpose(split, perm=(0, 2, 1, *range(3, rank + 3)))
    filters = reshape(turned, shape=(channels * groups, of_group, *kernel))
    return contract.conv_transpose(
        converted(x, dtype), converted(filters, dtype), strides=tuple(apart), pads_begin=tuple(begin),
        pads_end=tuple(end), output_padding=tuple(more), dilations=tuple(dilations), groups=groups,
    )  # fmt: skip
