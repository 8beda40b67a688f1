"""Stored weights as values of a graph: elementwise operators on narrow constants, which products dequantise.

    (cast(q) - zero) * scale + minimum

`q` are the codes of 2 to 8 bits in the narrowest dtype of 4 or 8 bits that holds them, less the zero of the kind where
it has one. `scale` and `minimum` are floats of 16 bits for each block, times a small integer for each group where a
block has some, spread over the elements. Levels of a codebook are whole numbers of a byte, and looked up here: whatever
bytes have at most 16 different numbers, passes make codes of 4 bits again where products look them up. This is one form
for all kinds; the operations and their order are those of `StoredTensor.decoded`.
"""

from __future__ import annotations

import numpy as np

from tilewright.frontends.weights.layout import BlockLayout, Codes, Number, PlainLayout
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.ops.quant import cut, spread
from tilewright.ops.reduce import widened
from tilewright.ops.view import shape_of


def stored_value(tensor: StoredTensor) -> Value:
    """f32[shape] of the tensor, in the graph that is being built."""
    layout = tensor.kind.layout
    found = _plain(tensor, layout) if isinstance(layout, PlainLayout) else _in_blocks(tensor, layout)
    if tensor.order is None:
        return found
    return gather(found, constant(tensor.order.astype(np.int64), f"{tensor.name}.order"), axis=len(tensor.shape) - 1)


def _plain(tensor: StoredTensor, layout: PlainLayout) -> Value:
    elements = tensor.elements()
    assert elements is not None
    value = constant(elements, tensor.name)
    return value if layout.dtype is dt.f32 else _cast(value)


def _in_blocks(tensor: StoredTensor, layout: BlockLayout) -> Value:
    codes = tensor.numbers(layout.read_multiples, tensor.kind.elements, layout.multiples.storage)
    found = _cast(constant(np.ascontiguousarray(codes[..., : tensor.columns]), tensor.name))
    if layout.zeros is not None:
        found = ew.sub(found, _spread(tensor, _cast(_codes(tensor, layout.zeros, "zero"))))
    found = ew.mul(found, _spread(tensor, _scaled(tensor, layout.scale, layout.factors, "scale")))
    if layout.minimum is None:
        return found
    minimum = _spread(tensor, _scaled(tensor, layout.minimum, layout.minimum_factors, "minimum"))
    return ew.add(found, minimum) if layout.minimum_factors is None else ew.sub(found, minimum)


def _scaled(tensor: StoredTensor, number: Number, factors: Codes | None, role: str) -> Value:
    """f32[..., groups]: a float of each block, times the factors of its groups."""
    stored = constant(tensor.numbers(number.read_stored, 1, number.stored.storage), f"{tensor.name}.{role}")
    value = widened(stored)
    if factors is None:
        return value
    small = _codes(tensor, factors, f"{role}.factor")
    axis = len(shape_of(small)) - 1
    return ew.mul(spread(value, axis, factors.count, shape_of(small)[axis]), _cast(small))


def _codes(tensor: StoredTensor, codes: Codes, role: str) -> Value:
    """[..., those of a row] in the narrowest dtype."""
    return constant(tensor.numbers(codes.read_centred, codes.count, codes.dtype.storage), f"{tensor.name}.{role}")


def _spread(tensor: StoredTensor, value: Value) -> Value:
    """f32[..., columns]: each number of a group for each of its elements."""
    axis = len(shape_of(value)) - 1
    of_row = tensor.blocks_of_a_row * tensor.kind.elements
    groups = shape_of(value)[axis].value
    if not groups:
        return cut(value, axis, sym(tensor.columns))
    return spread(value, axis, of_row // groups, sym(tensor.columns))


def _cast(value: Value) -> Value:
    return ew.cast(value, dtype=dt.f32)
