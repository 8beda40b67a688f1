"""Quantised weights that fit 4 bits lie two to a byte, where a product that dequantises them in its kernel gains.

    matmul(x, cast(q) * scale)      q: i8[k, n] of elements from -8 to 7      becomes      q: i4[k, n]

Which elements share a byte is for the schedule of the product to say. Where halves do not pay, elements of 4 bits
become whole bytes, which are read without another step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tilewright.cost.narrow_weights import lie_in_halves
from tilewright.graph.match import (
    dtype_of,
    keeps_each_element,
    multiplies_known,
    picks_by_data,
    picks_matrices,
    shape_of,
    type_of,
)
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Op
from tilewright.ir.dtype import DType
from tilewright.ir.types import TensorType
from tilewright.ops.traits.derive import known_product
from tilewright.passes import PassContext
from tilewright.target.target import Target

_HALVES = (dt.u4, dt.i4)
_WHOLE = (dt.u8, dt.i8)


def choose_halves(module: Module, ctx: PassContext, stage: str) -> None:
    """Store each constant that only products dequantise in the dtype that they read the fastest."""
    if not isinstance(ctx.target, Target):
        return
    weights = weights_of_products(module)
    size = sum(type_of(ops[0].result).size.value for ops in weights.values())
    for name, ops in weights.items():
        array, before = module.constants[name], dtype_of(ops[0].result)
        dtype = _least(array)
        reason = _why_whole(ops, dtype, size, ctx.target)
        after = dtype if dtype is not None and not reason else _whole(before)
        if dtype is not None:
            message = reason or "two weights lie in a byte"
            ctx.remark(stage, f"{before} {ops[0].loc}", message, applied=not reason)
        if after is not before:
            module.constants[name] = array.astype(after.storage)
            for op in ops:
                op.result.type = TensorType(after, shape_of(op.result))


def weights_of_products(module: Module) -> dict[str, list[Op]]:
    """The constants of 4 or 8 bits that are read by products alone, which dequantise them: those of one name have the
    same elements."""
    found: dict[str, list[Op]] = defaultdict(list)
    for op in module.main.body.ops:
        if op.name == "constant":
            found[op.attrs["name"]].append(op)
    return {name: ops for name, ops in found.items() if all(map(_is_weight, ops))}


def _is_weight(constant: Op) -> bool:
    readers = constant.result.users
    return dtype_of(constant.result) in (*_HALVES, *_WHOLE) and bool(readers) and all(map(_products, readers))


def products_of(constants: Sequence[Op]) -> list[Op]:
    """The products that dequantise constants."""
    return [product for op in constants for cast in op.result.users for product in _products(cast)]


def _products(cast: Op) -> list[Op]:
    """The products of matrices whose right operand a cast to float32 ends up in, by elementwise work, transposes
    and the picking of whole matrices; none where anything else reads it, but for what picks elements."""
    if cast.name != "cast" or dtype_of(cast.result) is not dt.f32:
        return []
    found: list[Op] = []
    pending, seen = [cast], {cast}
    while pending:
        op = pending.pop()
        for user in op.result.users:
            if multiplies_known(user, op.result):
                found.append(user)
            elif picks_matrices(user) and user.operands[0] is op.result:
                if user not in seen:
                    seen.add(user)
                    pending.append(user)
            elif picks_by_data(user) and user.operands[0] is op.result:
                continue
            elif not keeps_each_element(user):
                return []
            elif user not in seen:
                seen.add(user)
                pending.append(user)
    return found


def _least(array: np.ndarray) -> DType | None:
    """The dtype of 4 bits that holds all elements; None where there is none."""
    numbers = array if array.dtype.itemsize == 1 and array.dtype.kind in "iu" else array.astype(np.int8)
    low, high = (int(numbers.min()), int(numbers.max())) if array.size else (0, 0)
    if low >= 0 and high <= 15:
        return dt.u4
    return dt.i4 if low >= -8 and high <= 7 else None


def _whole(dtype: DType) -> DType:
    return dict(zip(_HALVES, _WHOLE, strict=True)).get(dtype, dtype)


def _why_whole(constants: Sequence[Op], dtype: DType | None, all_weights: int, target: Target) -> str:
    """Why weights lie in whole bytes; "" where they should not."""
    if dtype is None:
        return "they are longer than 4 bits"
    for op in products_of(constants):
        product = known_product(op)
        *_, rows, depth = shape_of(op.operands[product.data])
        if product.turns_data:
            rows, depth = depth, rows
        if not depth.is_const or depth.value % 2:
            return f"{depth} weights of a column are no pairs"
        size = type_of(constants[0].result).size.value
        known = rows.value if rows.is_const else 1
        if not lie_in_halves(known, size, all_weights, dtype.kind == "int", target):
            return "taking bytes apart takes longer than reading twice as many"
    return ""
