"""Quantised weights that fit 4 bits lie two to a byte, where a product that dequantises them in its kernel gains.

    matmul(x, cast(q) * scale)      q: i8[k, n] of elements from -8 to 7      becomes      q: i4[k, n]

Which elements share a byte is for the schedule of the product to say. Where halves do not pay, elements of 4 bits
become whole bytes, which are read without another step.

Bytes of at most 16 different numbers are codes of 4 bits for these, as kinds with a codebook have them in files:

    q: i8[k, n] of elements -127, -104, ..., 113      becomes      level(codes) {levels=(-127, -104, ..., 113)}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.cost.narrow_weights import lie_in_halves
from tilewright.graph.match import (
    SMALL_ELEMENTS,
    dtype_of,
    keeps_each_element,
    multiplies_known,
    picks_by_data,
    picks_matrices,
    shape_of,
    type_of,
)
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op, insert_before
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import LEVELS
from tilewright.ir.types import TensorType
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.traits.derive import known_product
from tilewright.passes import PassContext
from tilewright.target.target import Target

_HALVES = (dt.u4, dt.i4)
_WHOLE = (dt.u8, dt.i8)
Levels = tuple[int, ...]
"""Of which codes of 4 bits are the positions."""


def choose_halves(module: Module, ctx: PassContext, stage: str) -> None:
    """Store each constant that only products dequantise in the dtype that they read the fastest."""
    if not isinstance(ctx.target, Target):
        return
    weights = weights_of_products(module)
    size = sum(type_of(ops[0].result).size.value for ops in weights.values())
    books: list[Levels] = []
    for name, ops in weights.items():
        array, before = module.constants[name], dtype_of(ops[0].result)
        half = _half_of(array, books)
        reason = _why_whole(ops, half, size, ctx.target)
        if half is not None:
            message = reason or "two weights lie in a byte"
            ctx.remark(stage, f"{before} {ops[0].loc}", message, applied=not reason)
        if half is not None and half.levels and not reason:
            _look_up(module, ops, half.levels)
            continue
        after = half.dtype if half is not None and not half.levels and not reason else _whole(before)
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


@dataclass(frozen=True, slots=True)
class _Half:
    """Elements of 4 bits: numbers, or codes for `levels`."""

    dtype: DType
    levels: Levels = ()

    def converting(self, target: Target) -> float:
        """Instructions that make a vector of floats of them."""
        halves = target.half_bytes
        return halves.levels if self.levels else halves.signed if self.dtype.kind == "int" else halves.unsigned


def _half_of(array: np.ndarray, books: list[Levels]) -> _Half | None:
    """The form of 4 bits that holds all elements; None where there is none. `books` are the levels of others, to which
    new ones are added: of those that are alike, products may become one."""
    numbers = array if array.dtype.itemsize == 1 and array.dtype.kind in "iu" else array.astype(np.int8)
    low, high = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
    if low >= 0 and high <= 15:
        return _Half(dt.u4)
    if low >= -8 and high <= 7:
        return _Half(dt.i4)
    if len(np.unique(numbers.reshape(-1)[:SMALL_ELEMENTS])) > LEVELS:  # as most have, which are many
        return None
    found = np.flatnonzero(np.bincount(np.ascontiguousarray(numbers).view(np.uint8).reshape(-1), minlength=256))
    if len(found) > LEVELS:
        return None
    occurring = found.astype(np.uint8).view(numbers.dtype).tolist()
    levels = next((book for book in books if set(occurring) <= set(book)), None)
    if levels is None:
        levels = tuple(sorted(occurring) + [max(occurring)] * (LEVELS - len(occurring)))
        books.append(levels)
    return _Half(dt.u4, levels)


def _look_up(module: Module, ops: Sequence[Op], levels: Levels) -> None:
    """Let constants be codes for these levels, which their elements are."""
    array = module.constants[ops[0].attrs["name"]]
    table = np.zeros(256, np.uint8)
    for code, number in reversed(list(enumerate(levels))):
        table[number] = code
    codes = table[np.ascontiguousarray(array).view(np.uint8)].astype(dt.u4.storage)
    for op in ops:
        block, before = Block([]), dtype_of(op.result)
        with Builder(block, module):
            found = ew.level(constant(codes, op.result.name or "w"), levels=levels, dtype=before)
        op.result.replace_by(found)
        insert_before(op, block.ops)


def _whole(dtype: DType) -> DType:
    return dict(zip(_HALVES, _WHOLE, strict=True)).get(dtype, dtype)


def _why_whole(constants: Sequence[Op], half: _Half | None, all_weights: int, target: Target) -> str:
    """Why weights lie in whole bytes; "" where they should not."""
    if half is None:
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
        if not lie_in_halves(known, size, all_weights, half.converting(target), target):
            return "taking bytes apart takes longer than reading twice as many"
    return ""
