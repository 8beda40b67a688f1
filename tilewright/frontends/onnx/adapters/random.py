"""Random numbers: the same in each call where a seed is given, new ones in each call where none is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.shapes import checked_shape
from tilewright.ops.define import Operator, constant
from tilewright.ops.norm import softmax
from tilewright.ops.random import fresh_key, random_normal, random_uniform
from tilewright.ops.reduce import as_dtype, dtype_of, reduce_sum, widened
from tilewright.ops.scan import cumsum
from tilewright.ops.source import full, iota, sym_tensor
from tilewright.ops.view import reshape


@adapter("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike")
def random(node: Node) -> Value:
    uniform = node.op.startswith("RandomUniform")
    low, high = node.attr("low" if uniform else "mean"), node.attr("high" if uniform else "scale")
    if node.op.endswith("Like"):
        shape, dtype = node.shape(0), node.dtype_attr("dtype", node.dtype(0))
    else:
        shape, dtype = (
            checked_shape(tuple(map(sym, node.attr("shape"))), node.op),
            node.dtype_attr("dtype", dt.f32),
        )
    if not dtype.is_float:
        raise ModelError(f"{node.op} gives floats, not {dtype}")
    if not all(map(math.isfinite, (low, high))):
        raise ModelError(f"{node.op} from {low} and {high} is not possible")
    drawn = _drawn(node, random_uniform if uniform else random_normal, shape, dtype)
    return ew.cast(ew.add(ew.mul(drawn, high - low if uniform else high), low), dtype=dtype)


def _drawn(node: Node, operator: Operator, shape: Sequence[Sym], dtype: DType) -> Value:
    """Numbers from 0 to 1, or of variance 1, in f32 or f64. Nodes without a seed share a key, but no numbers."""
    seed, stream = node.attr("seed", None), 0
    if seed is None:
        key, stream = fresh_key(), len(node.translation.builder.block.ops)
    else:
        key = constant(np.array(np.float32(seed)).view(np.uint32).astype(np.uint64), "seed")
    return operator(key, shape=tuple(shape), stream=stream, dtype=dt.f64 if dtype == dt.f64 else dt.f32)


@adapter("Bernoulli")
def bernoulli(node: Node) -> Value:
    """1 with the probability that the element says, else 0; the function body of the standard has it the other way
    round."""
    x = node.input(0)
    drawn = _drawn(node, random_uniform, node.shape(0), node.dtype(0))
    return ew.cast(ew.lt(drawn, widened(x)), dtype=node.dtype_attr("dtype", node.dtype(0)))


@adapter("Dropout")
def dropout(node: Node) -> tuple[Value | None, ...]:
    """x; in training with the probability `ratio` 0, elsewhere divided by the probability of that. Before opset 12 it
    is taken to be used for inference, which `is_test` said until opset 6."""
    x, training, ratio = node.input(0), node.constant_or_none(2), node.constant_or_none(1)
    is_absent = node.optional(2) is None or (training is not None and not training.any())
    if is_absent or (node.optional(1) is not None and ratio is not None and not ratio.any()):
        keeps = ew.or_(ew.eq(x, x), ew.is_nan(x)) if node.wants(1) else None
        mask = keeps if keeps is None or node.version >= 10 else ew.cast(keeps, dtype=node.dtype(0))
        return (x, mask)
    wide = widened(x)
    dtype = dtype_of(wide)
    share = full(value=0.5, dtype=dtype, shape=()) if node.optional(1) is None else as_dtype(node.input(1), dtype)
    trains, share = reshape(node.input(2), shape=()), reshape(share, shape=())
    mask = ew.ge(_drawn(node, random_uniform, node.shape(0), node.dtype(0)), ew.select(trains, share, 0.0))
    kept = ew.select(mask, ew.div(wide, ew.sub(1.0, share)), 0.0)
    return (ew.select(trains, as_dtype(kept, node.dtype(0)), x), mask)


@adapter("Multinomial")
def multinomial(node: Node) -> Value:
    """Classes [batch, samples] drawn with logarithms of probabilities, not normalised, [batch, classes]."""
    count: int = node.attr("sample_size")
    if node.rank(0) != 2 or count < 1:
        raise ModelError(f"Multinomial: {count} samples of {node.type(0)}")
    batch, classes = node.shape(0)
    rising = cumsum(softmax(widened(node.input(0)), axis=1), axis=1)
    drawn = _drawn(node, random_uniform, (batch, sym(count)), node.dtype(0))
    passed = ew.ge(reshape(drawn, shape=(batch, count, 1)), reshape(rising, shape=(batch, 1, classes)))
    dtype = node.dtype_attr("dtype")
    # The last class takes what is beyond sums that are rounded to less than 1
    is_last = ew.eq(iota(shape=(classes,), axis=0), sym_tensor(values=(classes - 1,), scalar=True))
    return reduce_sum(ew.cast(ew.and_(passed, ew.not_(is_last)), dtype=dtype), axes=(2,), keepdims=False)
