"""Operators that change shapes, with targets that may be computed from dims, and shapes as data."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.axes import as_scalar, require
from tilewright.frontends.tflite.node import OperatorNode
from tilewright.frontends.tflite.registry import tflite
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.shapes import checked_shape, target_shape
from tilewright.ops.define import constant
from tilewright.ops.source import full, iota, sym_tensor
from tilewright.ops.view import expand, pad, reshape, shape_of, slice_, squeeze, tile, transpose, unsqueeze


@tflite("RESHAPE", moves=True)
def reshape_(node: OperatorNode) -> Value:
    """The target is operand 1, or an option; converters of old wrote [0] for a number."""
    wanted = node.symbols(1) if node.has(1) else node.options["new_shape"]
    if wanted is None:
        raise ModelError("RESHAPE has no target")
    if tuple(wanted) == (0,) and node.type(0).size == 1:
        wanted = ()
    target = target_shape(node.shape(0), tuple(map(sym, wanted)), keep_zero=True)
    return reshape(node.input(0), shape=checked_shape(target, "RESHAPE"))


@tflite("SQUEEZE", moves=True)
def squeeze_(node: OperatorNode) -> Value:
    given = node.options["squeeze_dims"] or ()
    axes = tuple(node.axis(a, node.rank(0)) for a in given)
    if not axes:
        choose = node.translation.choose
        axes = tuple(k for k, d in enumerate(node.shape(0)) if not choose(s.ne(d, 1)))
    return squeeze(node.input(0), axes=tuple(dict.fromkeys(axes)))


@tflite("EXPAND_DIMS", moves=True)
def expand_dims(node: OperatorNode) -> Value:
    (axis,) = node.ints(1)
    return unsqueeze(node.input(0), axes=(node.axis(axis, node.rank(0) + 1),))


@tflite("TRANSPOSE", moves=True)
def transpose_(node: OperatorNode) -> Value:
    perm = tuple(node.axis(a, node.rank(0)) for a in node.ints(1))
    if sorted(perm) != list(range(node.rank(0))):
        raise ModelError(f"TRANSPOSE of {node.type(0)} by {list(perm)}")
    return transpose(node.input(0), perm=perm)


@tflite("TILE", moves=True)
def tile_(node: OperatorNode) -> Value:
    repeats = node.symbols(1)
    if len(repeats) != node.rank(0) or any(r.is_const and r.value < 0 for r in repeats):
        raise ModelError(f"TILE repeats {node.type(0)} by [{', '.join(map(str, repeats))}]")
    checked_shape(tuple(d * r for d, r in zip(node.shape(0), repeats, strict=True)), "TILE")
    return tile(node.input(0), repeats=repeats)


@tflite("BROADCAST_TO", moves=True)
def broadcast_to(node: OperatorNode) -> Value:
    shape = checked_shape(node.translation.broadcast(node.shape(0), node.symbols(1)), "BROADCAST_TO")
    return expand(node.input(0), shape=shape)


@tflite("BROADCAST_ARGS")
def broadcast_args(node: OperatorNode) -> Value:
    """The shape that two shapes broadcast to."""
    return _vector(node, node.translation.broadcast(node.symbols(0), node.symbols(1)))


@tflite("SHAPE")
def shape_as_data(node: OperatorNode) -> Value:
    return _vector(node, node.shape(0))


def _vector(node: OperatorNode, dims: tuple[Sym, ...]) -> Value:
    return ew.cast(sym_tensor(values=tuple(map(sym, dims))), dtype=node.result_dtype())


@tflite("RANK")
def rank_as_data(node: OperatorNode) -> Value:
    return constant(np.array(node.rank(0), node.result_dtype().storage), "rank")


@tflite("FILL", moves=True)
def fill(node: OperatorNode) -> Value:
    shape = checked_shape(node.symbols(0), "FILL")
    return expand(reshape(node.input(1), shape=()), shape=shape)


@tflite("ZEROS_LIKE")
def zeros_like(node: OperatorNode) -> Value:
    x = node.input(0)
    return full(value=0, dtype=x.tensor.dtype, shape=shape_of(x))


@tflite("RANGE")
def range_(node: OperatorNode) -> Value:
    """start, start + delta, ... up to limit."""
    dtype = node.type(0).dtype
    if dtype.is_float:
        low, high, step = (node.constant(k).reshape(()).item() for k in range(3))
        if not step or not np.isfinite((high - low) / step):
            raise ModelError(f"RANGE from {low} to {high} by {step}")
        count = sym(max(int(np.ceil((high - low) / step)), 0))
    else:
        first, last, by = (node.one_symbol(k) for k in range(3))
        require(node.translation, s.ne(by, 0), "RANGE has a step of 0")
        distance = s.select(s.lt(by, 0), first - last, last - first)
        count = s.maximum(s.ceildiv(distance, s.maximum(by, -by)), 0)
    checked_shape((count,), "RANGE")
    start, delta = (as_scalar(node.translation, node.raw(k), f"operand {k} of RANGE") for k in (0, 2))
    return ew.add(ew.mul(iota(shape=(count,), axis=0, dtype=dtype), delta), start)


@tflite("SPACE_TO_BATCH_ND")
def space_to_batch(node: OperatorNode) -> Value:
    """Blocks of the spatial axes, which are padded first, become entries of the batch."""
    block, pads, x = _blocks(node)
    rank, m = node.rank(0), len(block)
    before = (sym(0), *pads[:, 0], *[sym(0)] * (rank - m - 1))
    after = (sym(0), *pads[:, 1], *[sym(0)] * (rank - m - 1))
    x = pad(x, before=before, after=after, value=0)
    n, *space = shape_of(x)
    if any(d.is_const and d.value % b for d, b in zip(space[:m], block, strict=True)):
        raise ModelError(f"SPACE_TO_BATCH_ND of {node.type(0)} in blocks of {list(block)}")
    counts = [s.floordiv(d, b) for d, b in zip(space[:m], block, strict=True)]
    apart = reshape(x, shape=(n, *[d for pair in zip(counts, block, strict=True) for d in pair], *space[m:]))
    perm = (*range(2, 2 * m + 1, 2), 0, *range(1, 2 * m + 1, 2), *range(2 * m + 1, rank + m))
    total = n * int(np.prod(block))
    return reshape(transpose(apart, perm=perm), shape=(total, *counts, *space[m:]))


@tflite("BATCH_TO_SPACE_ND", moves=True)
def batch_to_space(node: OperatorNode) -> Value:
    """The opposite; the spatial axes are cropped at last."""
    block, crops, x = _blocks(node)
    m, total = len(block), int(np.prod(block))
    n, *space = shape_of(x)
    if n.is_const and n.value % total:
        raise ModelError(f"BATCH_TO_SPACE_ND of {node.type(0)} in blocks of {list(block)}")
    batch = s.floordiv(n, total)
    apart = reshape(x, shape=(*block, batch, *space))
    perm = (m, *[a for k in range(m) for a in (m + 1 + k, k)], *range(2 * m + 1, len(space) + m + 1))
    sizes = [d * b for d, b in zip(space[:m], block, strict=True)]
    y = reshape(transpose(apart, perm=perm), shape=(batch, *sizes, *space[m:]))
    starts = (sym(0), *crops[:, 0], *[sym(0)] * (len(space) - m))
    left = [d - b - a for d, (b, a) in zip(sizes, crops, strict=True)]
    checked_shape(tuple(left), node.op)
    if all(d == 0 for d in crops.reshape(-1)):
        return y
    return slice_(y, starts=starts, sizes=(batch, *left, *space[m:]), steps=(1,) * len(starts))


def _blocks(node: OperatorNode) -> tuple[tuple[int, ...], np.ndarray, Value]:
    block, amounts = node.ints(1), node.measured_operand(2)
    if not block or amounts.shape != (len(block), 2) or len(block) >= node.rank(0) or min(block) < 1:
        raise ModelError(
            f"{node.op} of {node.type(0)} in blocks of {list(block)} with amounts {node.type(2)}"
        )
    if max(block) > 2**16 or any(d.is_const and not 0 <= d.value < 2**31 for d in amounts.reshape(-1)):
        raise ModelError(f"{node.op} with a block or an amount that is not possible")
    return block, amounts, node.input(0)
