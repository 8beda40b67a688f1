"""Operators of ONNX Runtime that are, or nearly are, operators of the standard."""

from __future__ import annotations

from functools import reduce

import numpy as np

from tilewright.frontends.onnx.adapters import source, view
from tilewright.frontends.onnx.adapters.microsoft.domain import (
    microsoft,
    microsoft_binds,
    require_ranks,
    require_two_parts,
)
from tilewright.frontends.onnx.adapters.rare import regions
from tilewright.frontends.onnx.node import Node
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, floordiv, maximum
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.shapes import checked_shape
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.image import column, sampled, size_scalar
from tilewright.ops.index import gather, gather_nd, scatter_elements
from tilewright.ops.linalg import inverse
from tilewright.ops.reduce import as_dtype, dtype_of, reduce_min, reduce_sum, widened
from tilewright.ops.source import full, iota, sym_tensor
from tilewright.ops.view import concat, expand, reshape, shape_of, slice_, transpose, unsqueeze

microsoft("GridSample")(regions.grid_sample)
microsoft("Pad")(view.padded)
microsoft("Trilu")(view.trilu)


@microsoft("Range")
def range_(node: Node) -> Value:
    """The step is 1 where it is not given."""
    if node.optional(2) is None:
        node.inputs = (*node.operands, constant(np.ones((), node.dtype(0).storage), "delta"))
    return source.range_(node)


microsoft_binds({"GatherND": gather_nd, "Inverse": lambda x: as_dtype(inverse(widened(x)), dtype_of(x))})


@microsoft("Unique")
def unique(node: Node) -> tuple[Value | None, ...]:
    values, _, places, counts = node.standard("Unique", node.input(0), outputs=4, sorted=0)
    return values, places, counts


@microsoft("TorchEmbedding")
def embedding(node: Node) -> Value:
    """Rows of a table; the other operands are about gradients."""
    assert node.inputs
    return gather(node.input(0), node.input(1), axis=0)


@microsoft("UnfoldTensor")
def unfolded(node: Node) -> Value:
    """All windows of `size` elements along an axis, `step` apart, each along a new last axis."""
    axis, size, step = node.axis(node.attr("dim", -1)), node.attr("size"), node.attr("step", 1)
    if size < 1 or step < 1:
        raise ModelError(f"UnfoldTensor into {size} elements {step} apart")
    count = floordiv(node.shape(0)[axis] - size, step) + 1
    checked_shape((count,), "UnfoldTensor")
    places = ew.add(ew.mul(iota(shape=(count, 1), axis=0), step), iota(shape=(1, size), axis=1))
    found, rank = gather(node.input(0), places, axis=axis), node.rank(0) + 1
    return transpose(found, perm=(*[k for k in range(rank) if k != axis + 1], axis + 1))


@microsoft("ComplexMul", "ComplexMulConj")
def complex_product(node: Node) -> Value:
    """Of complex numbers, whose parts are along the last axis; of the conjugates of the second ones."""
    parts = []
    for k in range(2):
        require_two_parts(node, k)
        shape = node.shape(k)[:-1]
        x = widened(node.input(k))
        parts.append([gather(x, constant(np.array([n]), "part"), axis=len(shape)) for n in range(2)])
    (a, b), (c, d) = parts
    d = ew.neg(d) if node.op == "ComplexMulConj" else d
    real, imaginary = ew.sub(ew.mul(a, c), ew.mul(b, d)), ew.add(ew.mul(a, d), ew.mul(b, c))
    return as_dtype(concat(real, imaginary, axis=len(shape_of(real)) - 1), node.dtype(0))


@microsoft("NGramRepeatBlock")
def blocked_repetitions(node: Node) -> Value:
    """-inf as the score of each token that would repeat one of the sequences of `ngram_size` tokens before it."""
    require_ranks(node, input0=2, input1=2)
    size, (batch, steps), tokens = node.attr("ngram_size"), node.shape(0), node.input(0)
    if size < 1:
        raise ModelError(f"NGramRepeatBlock of sequences of {size} tokens")
    count = maximum(steps - size + 1, 0)

    def window(start: Sym | int, length: Sym | int) -> Value:
        return slice_(tokens, starts=(0, start), sizes=(batch, length), steps=(1, 1))

    repeats: Value = expand(constant(np.array(True), "all"), shape=(batch, count))
    for k in range(size - 1):
        place = sym_tensor(values=(maximum(steps - (size - 1) + k, 0),))
        last = gather(tokens, place, axis=1)
        repeats = ew.and_(repeats, ew.eq(window(k, count), last))
    blocks = ew.select(repeats, -np.inf, full(value=np.inf, dtype=node.dtype(1), shape=()))
    return scatter_elements(node.input(1), window(steps - count, count), blocks, axis=1, reduction="min")


@microsoft("ExpandDims")
def expand_dims(node: Node) -> Value:
    (axis,) = node.ints(1)
    return unsqueeze(node.input(0), axes=(node.axis(axis, node.rank(0) + 1),))


@microsoft("IsAllFinite")
def is_all_finite(node: Node) -> Value:
    """Whether no operand has an element that is not finite: neither NaN nor, unless told otherwise, infinite."""
    only_nan, only_inf = node.flag("isnan_only", 0), node.flag("isinf_only", 0)
    found = []
    for x in node.operands:
        bad = ew.is_nan(x) if only_nan else ew.is_inf(x) if only_inf else ew.or_(ew.is_nan(x), ew.is_inf(x))
        axes = tuple(range(len(shape_of(x))))
        found.append(reduce_min(ew.cast(ew.not_(bad), dtype=dt.i32), axes=axes, keepdims=False))
    return ew.cast(reduce(ew.min_, found), dtype=dt.bool_)


@microsoft("CDist")
def distances(node: Node) -> Value:
    """Distances of the rows of A and B: |a|^2 - 2 a b + |b|^2, or the root of that."""
    require_ranks(node, input0=2, input1=2)
    a, b = node.operands
    squares = [reduce_sum(ew.mul(x, x), axes=(1,), keepdims=True) for x in (a, b)]
    cross = ew.mul(matmul(a, b, transpose_b=True), -2.0)
    found = ew.max_(ew.add(ew.add(cross, squares[0]), transpose(squares[1], perm=(1, 0))), 0.0)
    metric = node.one_of("metric", "sqeuclidean", "euclidean", default="sqeuclidean")
    return found if metric == "sqeuclidean" else ew.sqrt(found)


@microsoft("CropAndResize")
def crop_and_resize(node: Node) -> Value:
    """Boxes (y1, x1, y2, x2 in 0..1, from the centre of the first pixel to that of the last) of images, each resized to
    one size; `extrapolation_value` stands for what is outside."""
    require_ranks(node, input0=4, input1=2, input2=1, input3=1)
    size = node.symbols(3)
    if len(size) != 2:
        raise ModelError(f"CropAndResize to {len(size)} sizes")
    nearest = node.one_of("mode", "bilinear", "nearest", default="bilinear") == "nearest"
    images, count = gather(widened(node.input(0)), node.input(2), axis=0), node.shape(1)[0]
    checked_shape((count, node.shape(0)[1], *size), "CropAndResize")
    places, inside = [], []
    for axis in range(2):
        place, last = _places(node, axis, size[axis]), size_scalar(node.shape(0)[2 + axis] - 1, dt.f32)
        inside.append(ew.and_(ew.ge(place, 0.0), ew.le(place, last)))
        place = ew.floor(ew.add(place, 0.5)) if nearest else place
        shape = (count, size[0], 1) if axis == 0 else (count, 1, size[1])
        wide = expand(reshape(place, shape=shape), shape=(count, *size))
        places.append(reshape(wide, shape=(count, *size, 1)))
    found = sampled(
        images, concat(*places[::-1], axis=3), mode="linear", padding="border", pixels=True
    )
    rows, columns = (
        reshape(inside[0], shape=(count, 1, size[0], 1)),
        reshape(inside[1], shape=(count, 1, 1, size[1])),
    )
    return as_dtype(ew.select(ew.and_(rows, columns), found, node.attr("extrapolation_value", 0.0)), node.dtype(0))


def _places(node: Node, axis: int, size: Sym) -> Value:
    """Positions [boxes, size] in pixels along the height (axis 0) or the width; the middle of the box for one."""
    boxes, last = widened(node.input(1)), size_scalar(node.shape(0)[2 + axis] - 1, dt.f32)
    start, end = (ew.mul(column(boxes, k), last) for k in (axis, axis + 2))
    start, end = (reshape(x, shape=(shape_of(boxes)[0], 1)) for x in (start, end))
    if size == 1:
        return ew.mul(ew.add(start, end), 0.5)
    share = ew.div(iota(shape=(1, size), axis=1, dtype=dt.f32), size_scalar(size - 1, dt.f32))
    return ew.add(ew.mul(start, ew.sub(1.0, share)), ew.mul(end, share))  # exact at both ends, which may be borders
