"""Quantised weights of 1, 2, 3, 5 or 6 bits take as many in memory: each is split into planes, whose bits are powers of
two.

    cast(q)      q: i8 of elements from -32 to 31      becomes      cast(i8(high) * 4 + i8(low))      high: i4, low: u2

A plane of one bit is one of flags. Which elements share a word is for the schedule of the product to say; other
readers, as a lookup of tokens, take them from there as well. All steps are exact, so that no result changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.cost.narrow_weights import lie_in_planes
from tilewright.graph.match import dtype_of, shape_of, type_of
from tilewright.graph.quantised.half_bytes import products_of, weights_of_products
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op, Value, insert_before
from tilewright.ir.dtype import DType
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.traits.derive import known_product
from tilewright.passes import PassContext
from tilewright.target.target import Target

_PLANES = {1: (1,), 2: (2,), 3: (2, 1), 5: (4, 1), 6: (4, 2)}
"""Bits of the planes of elements of so many bits, the upper ones first."""


def split_into_planes(module: Module, ctx: PassContext, stage: str) -> None:
    """Store each constant that only products dequantise in planes, where its elements have fewer bits than their dtype
    and reading fewer bytes is faster."""
    if not isinstance(ctx.target, Target):
        return
    weights = weights_of_products(module)
    size = sum(type_of(ops[0].result).size.value for ops in weights.values())
    for name, ops in weights.items():
        dtype = dtype_of(ops[0].result)
        numbers = _numbers(module.constants[name], dtype)
        bits, signed = _bits(numbers)
        if bits not in _PLANES or bits >= dtype.bits:
            continue
        reason = _why_not(ops, bits, size, ctx.target)
        message = reason or f"they take {bits} bits each"
        ctx.remark(stage, f"{dtype} {ops[0].loc}", message, applied=not reason)
        if not reason:
            _split(module, ops, _planes(numbers, bits, signed=signed))


def _bits(numbers: np.ndarray) -> tuple[int, bool]:
    """How many bits hold all elements, and whether some are negative: then two at least."""
    low, high = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
    if low >= 0:
        return max(high.bit_length(), 1), False
    return max((-low - 1).bit_length(), high.bit_length(), 1) + 1, True


def _numbers(array: np.ndarray, dtype: DType) -> np.ndarray:
    """The elements as whole bytes."""
    found = array.view(np.int8 if dtype.kind == "int" else np.uint8)
    if dtype is dt.i4:  # whose bytes have no sign in their upper bits
        found = found << np.int8(4)
        found >>= np.int8(4)
    return found


def _why_not(constants: Sequence[Op], bits: int, all_weights: int, target: Target) -> str:
    """Why weights are not split; "" where they should be."""
    size = type_of(constants[0].result).size.value
    multiple = dt.u32.bits // min(_PLANES[bits])
    for op in products_of(constants):
        product = known_product(op)
        *_, rows, depth = shape_of(op.operands[product.data])
        if product.turns_data:
            rows, depth = depth, rows
        if not depth.is_const or depth.value % multiple:
            return f"{depth} weights of a column are no multiple of the {multiple} of a word"
        known = rows.value if rows.is_const else 1
        if not lie_in_planes(known, size, all_weights, bits, dtype_of(constants[0].result), target):
            return "joining planes takes longer than reading more bytes"
    return ""


def _planes(numbers: np.ndarray, bits: int, *, signed: bool) -> list[tuple[np.ndarray, int]]:
    """The planes of numbers, the upper one first, each with the number of bits below it."""
    found: list[tuple[np.ndarray, int]] = []
    below = bits
    for each in _PLANES[bits]:
        below -= each
        plane = (numbers >> below).view(np.uint8)
        plane &= np.uint8((1 << each) - 1)
        found.append((plane.view(_storage(each, signed and not found).storage), below))
    return found


def _storage(bits: int, signed: bool) -> DType:
    return dt.bool_ if bits == 1 and not signed else dt.BY_NAME[f"{'i' if signed else 'u'}{bits}"]


def _split(module: Module, ops: Sequence[Op], planes: Sequence[tuple[np.ndarray, int]]) -> None:
    for op in ops:
        block = Block([])
        with Builder(block, module):
            plane = [(constant(array, op.result.name or "w"), below) for array, below in planes]
            for cast in list(op.result.users):
                cast.result.replace_by(_joined(plane))
        insert_before(op, block.ops)


def _joined(planes: Sequence[tuple[Value, int]]) -> Value:
    """f32: the sum of the planes, which are joined as bytes."""
    (upper, below), *lower = planes
    if not lower:
        return ew.cast(upper, dtype=dt.f32)
    found = ew.mul(ew.cast(upper, dtype=dt.i8), 1 << below)
    for plane, _ in lower:
        found = ew.add(found, ew.cast(plane, dtype=dt.i8))
    return ew.cast(found, dtype=dt.f32)
