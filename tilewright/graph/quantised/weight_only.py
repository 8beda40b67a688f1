"""Quantised weights that are dequantised only where a matrix product reads them.

    matmul(x, cast(q) * scale)      q: i8[k, n], scale: f32[n]

Folded, the right operand is an f32 constant: four times the bytes, all of which come from memory at each call where
the weights fit no cache. Unfolded, its elements are computed from q in the product's kernel, which reads a fourth. The
same holds for constants of f16 and bf16. Such maps stay in the graph; fusion brings each into its product.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from tilewright.cost.data_movement import are_picked, reads_weights_once, weights_stay_quantized
from tilewright.cost.typical import TypicalSizes, typical_sizes
from tilewright.graph.match import (
    dtype_of,
    filled_with,
    is_constant,
    is_known,
    keeps_each_element,
    keeps_known,
    matrix_product,
    multiplies_known,
    picks_by_data,
    picks_matrices,
    shape_of,
    type_of,
)
from tilewright.graph.quantised.half_bytes import choose_halves
from tilewright.graph.quantised.ordered_columns import order_data
from tilewright.graph.quantised.planes import split_into_planes
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op, Value, insert_before, replace_in_block
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import Replacement, RewriteContext, constant_array, defining, rewrite, rule
from tilewright.ir.sym import sym
from tilewright.ir.types import TensorType
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import OPERATORS, constant
from tilewright.ops.traits.derive import is_view, known_product
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.ops.view import reshape, transpose
from tilewright.passes import PassContext
from tilewright.target.target import Target

_WIDENING = ("cast", "level")
"""Ops that make longer elements of short ones."""

LEAST_BYTES = 64 << 10
"""Bytes of dequantised weights below which they are folded: the readers of so few find them in a cache."""


def dequantizing_casts(module: Module, ctx: PassContext) -> frozenset[Op]:
    """The casts of constants, or levels of codes, that should not be folded: those that matrix products read, at most
    after a little arithmetic, if all of these together are more than a core's L2 holds."""
    found: list[Op] = []
    for op in module.main.body.ops:
        if op.name not in _WIDENING or not _widens(op):
            continue
        reason = _why_folded(op, ctx.target)
        if reason:
            ctx.remark("weight-only", f"{op.name} {op.loc}", reason)
        else:
            found.append(op)
    wide = sum(_dequantised_bytes(op) for op in found)
    if ctx.target is None or not weights_stay_quantized(wide, ctx.target):
        for op in found:
            ctx.remark("weight-only", f"{op.name} {op.loc}", "the weights fit L2 as they are")
        return frozenset()
    kept = _elementwise_of(found)
    shares = [op for op in module.main.body.ops if op.name == "cast" and op not in found and _is_shared(op, kept)]
    return frozenset([*found, *shares])


def _elementwise_of(casts: Sequence[Op]) -> set[Value]:
    """What is computed of their results element by element."""
    found = {op.result for op in casts}
    pending = list(found)
    while pending:
        for user in pending.pop().users:
            if keeps_each_element(user) and user.result not in found:
                found.add(user.result)
                pending.append(user.result)
    return found


def _is_shared(cast: Op, weights: Set[Value]) -> bool:
    """Whether the result of a cast, such as scales of groups in 16 bits, is spread over elements of these weights and
    read by nothing else: it is as short when their product reads it."""
    (x,) = cast.operands
    if not is_constant(x) or not type_of(x).is_static or type_of(x).rank < 2:
        return False
    before, after = dtype_of(x), dtype_of(cast.result)
    if after is not dt.f32 or before.bits >= after.bits or before.kind not in ("int", "uint", "float"):
        return False
    pending, is_read = [cast.result], False
    while pending:
        for user in pending.pop().users:
            if not keeps_known(user):
                return False
            if user.result in weights:
                is_read = True
            elif not is_known(user.result):
                return False
            else:
                pending.append(user.result)
    return is_read


def _widens(op: Op) -> bool:
    """Whether a large constant of whole bytes, or of flags, gets more of them."""
    (x,) = op.operands
    before, after = type_of(x), type_of(op.result)
    is_number = before.dtype.kind != "string" and after.dtype.kind in ("int", "uint", "float")
    if not is_constant(x) or not is_number or not before.is_static:
        return False
    bits = 1 if before.dtype is dt.bool_ else before.dtype.bits
    return bits < after.dtype.bits and _dequantised_bytes(op) > LEAST_BYTES


def _dequantised_bytes(op: Op) -> int:
    """Of what an op of `_WIDENING` makes of a constant; integers become floats in turn."""
    after = type_of(op.result)
    least = 0 if after.dtype.is_float else dt.f32.bytes
    return int(after.size.value) * max(after.dtype.bytes, least)


def _why_folded(cast: Op, target: Target | None) -> str:
    """Why the result of a cast had better be a constant; "" where matrix products alone need it."""
    pending: list[Op] = [cast]
    seen = {cast}
    is_multiplied = False
    while pending:
        op = pending.pop()
        for user in op.result.users:
            if multiplies_known(user, op.result):
                is_float = type_of(cast.operands[0]).dtype.is_float
                if target is not None and is_float and not reads_weights_once(_rows(user), target):
                    return f"{_rows(user)} rows read each of its elements, which are no shorter than half"
                is_multiplied = True
            elif picks_matrices(user) and user.operands[0] is op.result and user not in seen:
                seen.add(user)
                pending.append(user)
            elif (picks_by_data(user) and user.operands[0] is op.result) or user in seen:
                continue
            elif not keeps_each_element(user):
                return f"{user.name} reads it"
            elif not is_known(user.result):
                return f"{user.name} joins it with data"
            elif type_of(user.result).size != type_of(cast.result).size:
                return f"{user.name} repeats its elements"
            else:
                seen.add(user)
                pending.append(user)
    return "" if is_multiplied else "no matrix product reads it"


def _rows(op: Op) -> int | None:
    """Rows of a product that share one matrix; None where their number is not known."""
    product = known_product(op)
    shape = shape_of(op.operands[product.data])
    count = shape[2 * len(shape) - 3 - product.depth]
    return count.value if count.is_const else None


def _bytes(type: TensorType) -> int:
    return int(type.size.value) * type.dtype.bytes


# How they lie in memory


@dataclass(frozen=True)
class WeightOnly:
    """Lay quantised weights out for the products that read them: in the order in which they are stored, without zero
    points, where as narrow integers hold what is left, and transposed where they are read so, that columns of the
    product are contiguous; two to a byte where that is faster."""

    name: ClassVar[str] = "weight-only"

    def run(self, module: Module, ctx: PassContext) -> None:
        rewrite(module.main, [order_data], module, ctx.remarks, stage=self.name, within=ctx)
        choose_halves(module, ctx, self.name)
        turn_picked(module)
        rules = [centre_weights, untranspose_weights, pick_constants]
        rewrite(module.main, rules, module, ctx.remarks, stage=self.name, within=ctx)
        drop_dead(module)
        split_into_planes(module, ctx, self.name)
        drop_dead(module)


@rule("sub", "add")
def centre_weights(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """cast(q) - zero -> cast(q - zero) for known bytes whose differences are bytes, too, and halves of these alike; of
    floats the sum with the negative zero point."""
    wide, zero = op.operands
    cast, dtype = defining(wide, "cast"), dtype_of(op.result)
    if cast is None or dtype not in (dt.i32, dt.f32) or len(wide.users) > 1:
        return None
    (q,) = cast.operands
    kinds = next((k for k in ((dt.i8, dt.u8), (dt.i4, dt.u4)) if dtype_of(q) in k), ())
    if not is_constant(q) or len(q.users) > 1:
        return None
    weights, zeros = constant_array(q, ctx.module), constant_array(zero, ctx.module)
    if weights is None or zeros is None or shape_of(q) != shape_of(op.result):
        return None
    moved = zeros if op.name == "sub" else -zeros
    found = _centred(weights, moved.astype(dtype.storage), kinds)
    return None if found is None else ew.cast(constant(found, q.name or "w"), dtype=dtype)


def _centred(weights: np.ndarray, moved: np.ndarray, kinds: Sequence[DType]) -> np.ndarray | None:
    """weights - moved in the first of the dtypes that holds all elements; None where none does. What one number is
    taken off is looked up by bytes: weights are many, and wide they are many bytes."""
    if moved.size == 1 and weights.size > _BYTES.size:
        at = np.ascontiguousarray(weights).view(np.uint8)
        occurs = np.zeros(_BYTES.size, np.bool_)
        occurs[at.reshape(-1)] = True
        elements = np.where(occurs, _BYTES, at.flat[0]).view(weights.dtype)
        table = _centred(elements, moved.reshape(()), kinds)
        return None if table is None else table[at]
    wide = weights.astype(moved.dtype) - moved
    for kind in kinds:
        low = -(1 << kind.bits - 1) if kind.kind == "int" else 0
        inside = (wide >= low) & (wide < low + (1 << kind.bits)) & (wide == np.trunc(wide))
        if inside.all():
            return wide.astype(kind.storage)
    return None


_BYTES = np.arange(256, dtype=np.uint8)


def turn_picked(module: Module) -> None:
    """Let what picks rows of weights, as a lookup of tokens does, pick columns of those that a product is about to read
    transposed, where rows are few: else there would be two copies of them, one for each."""
    typical = typical_sizes(type_of(v) for v in module.main.args)
    for op, following in list(pairwise(module.main.body.ops)):
        if not is_elementwise(op) or not _is_picked_and_turned(op.result, module, typical):
            continue
        block = Block([])
        with Builder(block, module):
            turned = _transposed(op.result, module)
            if turned is None:
                continue
            shown = transpose(turned, perm=(1, 0))
        op.result.replace_by(shown)
        insert_before(following, block.ops)


def _is_picked_and_turned(w: Value, module: Module, typical: TypicalSizes) -> bool:
    """Whether products read a matrix of narrow weights transposed, and all else that reads it picks few elements."""
    if not isinstance(w.type, TensorType) or w.type.rank != 2:
        return False
    picking = [user for user in w.users if picks_by_data(user) and user.operands[0] is w]
    turning = [user for user in w.users if user not in picking]
    if not picking or not turning or not is_known(w) or not all(_reads_turned(user, w) for user in turning):
        return False
    (picked,) = typical.medium([sum((type_of(user.result).size for user in picking), sym(0))])
    return are_picked(picked, _stored_bytes(w, module))


def _reads_turned(user: Op, w: Value) -> bool:
    if _swaps_last(user):
        return all(multiplies_known(reader, user.result) for reader in user.result.users)
    product = matrix_product(user)
    return product is not None and multiplies_known(user, w) and product.turns_weights


def _stored_bytes(value: Value, module: Module) -> int:
    """Of the largest constant that it is computed of, element by element."""
    if is_constant(value):
        return _bytes(type_of(value))
    inner = value.op.operands if value.op is not None and is_elementwise(value.op) else ()
    return max((_stored_bytes(v, module) for v in inner), default=0)


@rule()
def untranspose_weights(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """x @ transpose(f(q)) -> x @ f(transpose(q)) for constants q, which are transposed when compiling."""
    product = matrix_product(op)
    if product is None:
        return None
    x, w = op.operands[product.data], op.operands[product.weights]
    if is_constant(w) or not is_known(w) or is_known(x):
        return None
    if product.turns_weights:
        transposed = _transposed(w, ctx.module)
    elif w.op is not None and _swaps_last(w.op):
        transposed = _transposed(w.op.operands[0], ctx.module)
    else:
        return None
    return None if transposed is None else matmul(x, transposed, transpose_a=product.turns_data)


@rule()
def pick_constants(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """x @ pick(f(q), at) -> x @ f(pick(q, at)) for constants q, which are transposed when compiling where the product
    reads them so: elements of the matrices that are picked are dequantised in the product, and no others."""
    product = matrix_product(op)
    if product is None:
        return None
    x, w = op.operands[product.data], op.operands[product.weights]
    if w.op is None or not picks_matrices(w.op) or is_constant(w.op.operands[0]) or not is_known(w.op.operands[0]):
        return None
    stack, turns = w.op.operands[0], product.turns_weights
    if turns and (turned := _transposed(stack, ctx.module)) is not None:
        stack, turns = turned, False
    found = _picked(stack, w.op)
    if found is None:
        return None
    return matmul(x, found, transpose_a=product.turns_data, transpose_b=turns)


def _picked(value: Value, pick: Op) -> Value | None:
    """What an op that picks along the first axis makes of a value, computed from what it picks of constants; None where
    the value follows from these in ways that this does not know."""
    op, count = value.op, shape_of(pick.operands[0])[0]
    if op is None or not shape_of(value) or shape_of(value)[0] != count or count == 1:
        return None
    if is_constant(value):
        return OPERATORS[pick.name](value, *pick.operands[1:], **pick.attrs)
    if is_elementwise(op):
        rank = len(shape_of(value))
        found = [v if len(shape_of(v)) < rank or shape_of(v)[0] != count else _picked(v, pick) for v in op.operands]
        known = [v for v in found if v is not None]
        return OPERATORS[op.name](*known, **op.attrs) if len(known) == len(found) else None
    if not _keeps_axis(op, 0):
        return None
    inner = _picked(op.operands[0], pick)
    if inner is None:
        return None
    places = shape_of(pick.result)[: type_of(pick.result).rank - type_of(pick.operands[0]).rank + 1]
    attrs = {
        name: (*(places if each[0] == count else (each[0],) * len(places)), *each[1:])
        for name, each in op.attrs.items()
    }
    return OPERATORS[op.name](inner, **attrs)


def _swaps_last(op: Op) -> bool:
    rank = type_of(op.result).rank
    return op.name == "transpose" and tuple(op.attrs["perm"]) == (*range(rank - 2), rank - 1, rank - 2)


def _transposed(value: Value, module: Module) -> Value | None:
    """A value with its last two axes exchanged, computed from constants that are; None where views stand between."""
    op = value.op
    assert op is not None
    rank = type_of(value).rank
    if rank == 0 or filled_with(value) is not None:
        return value
    if rank in (2, 3) and (found := _columns_last(value, module, rank - 2)) is not None:
        return found
    if op.name == "constant":
        array = constant_array(value, module)
        if array is None:
            return None
        matrix = array if rank > 1 else array.reshape(1, -1)
        return constant(np.ascontiguousarray(matrix.swapaxes(-1, -2)), value.name or "w")
    if _swaps_last(op):
        return op.operands[0]
    if not is_elementwise(op):
        return transpose(value, perm=(*range(rank - 2), rank - 1, rank - 2)) if rank > 1 else None
    operands = [_transposed(v, module) for v in op.operands]
    known = [v for v in operands if v is not None]
    return OPERATORS[op.name](*known, **op.attrs) if len(known) == len(operands) else None


def _columns_last(value: Value, module: Module, axis: int) -> Value | None:
    """A value [.., n, ...], n its axis of this number, as [.., ..., n], so that what belongs to neighbouring rows lies
    together, computed from constants that are; None where it follows from them in ways that this does not know. Numbers
    of groups are spread over these by an expand and reshapes, which leave this axis and those before it as they are."""
    op, shape = value.op, shape_of(value)
    if op is None or len(shape) <= axis:
        return None if shape else value
    if is_constant(value):
        array = constant_array(value, module)
        if array is None:
            return None
        return constant(np.ascontiguousarray(np.moveaxis(array, axis, -1)), value.name or "w")
    if len(shape) == axis + 2 and _swaps_last(op):
        return op.operands[0]
    if is_elementwise(op):
        found = [_columns_last_of(v, len(shape), module, axis) for v in op.operands]
        known = [v for v in found if v is not None]
        return OPERATORS[op.name](*known, **op.attrs) if len(known) == len(found) else None
    if not all(_keeps_axis(op, k) for k in range(axis + 1)):
        return None
    inner = _columns_last(op.operands[0], module, axis)
    turned = {name: (*each[:axis], *each[axis + 1 :], each[axis]) for name, each in op.attrs.items()}
    return None if inner is None else OPERATORS[op.name](inner, **turned)


def _keeps_axis(op: Op, axis: int) -> bool:
    """Whether it is a view that shows what its operand has at each index of an axis, changed but in order, and says so
    by one attribute or several that have an item for each axis."""
    if not is_view(op) or "perm" in op.attrs:
        return False
    rank, types = type_of(op.result).rank, [type_of(op.operands[0])]
    if types[0].rank <= axis or not all(isinstance(each, tuple) and len(each) == rank for each in op.attrs.values()):
        return False
    compute = OPERATORS[op.name].compute(types, op.attrs)
    idx = next(o.attrs["idx"] for o in compute.body.ops if o.name == "load")
    v, others = compute.axes[axis][0], (*idx[:axis], *idx[axis + 1 :])
    return (
        idx[axis] is v
        and shape_of(op.operands[0])[axis] == shape_of(op.result)[axis]
        and not any(v in i.vars for i in others)
    )


def _columns_last_of(operand: Value, rank: int, module: Module, axis: int) -> Value | None:
    """An operand of an elementwise operator of so many axes, of which it may have fewer, as `_columns_last`."""
    shape = shape_of(operand)
    if not shape or len(shape) == rank:
        return _columns_last(operand, module, axis)
    if axis:
        return None
    array = constant_array(operand, module)
    if array is not None:
        return constant(array.reshape(*array.shape, 1), operand.name or "w")
    return reshape(operand, shape=(*shape, sym(1)))


def separate_weights(module: Module) -> None:
    """Give every reader of a map of constants a copy of its own, which fusion can bring into the reader's kernel."""
    body = module.main.body
    known: set[Value] = set()
    for op in body.ops:
        if (keeps_known(op) and known.issuperset(op.operands)) or any(map(is_constant, op.results)):
            known.update(op.results)
    copies: dict[Op, list[Op]] = {}
    for op in reversed(body.ops):
        if len(op.results) != 1 or op.result not in known or not keeps_known(op):
            continue
        for user in list(dict.fromkeys(op.result.users))[1:]:
            copy = op.clone({})
            copy.result.name = op.result.name
            user.set_operands([copy.result if v is op.result else v for v in user.operands])
            copies.setdefault(op, []).append(copy)
    if copies:
        replace_in_block(body, [o for op in body.ops for o in (op, *copies.get(op, ()))])


# Horizontal fusion


def form_of(value: Value) -> Any:
    """Equal for maps of constants that differ in their elements and numbers of columns only."""
    op = value.op
    assert op is not None
    if is_constant(value):
        return dtype_of(value).name, type_of(value).rank
    attrs = tuple(sorted((k, str(v)) for k, v in op.attrs.items()))
    return op.name, attrs, tuple(map(form_of, op.operands))


def concatenated(values: Sequence[Value], widths: Sequence[int], module: Module) -> Value:
    """Matrices of these numbers of columns, computed from constants in one form by elementwise operators, as one."""
    first = values[0].op
    assert first is not None
    if not is_constant(values[0]):
        operands = zip(*(v.op.operands for v in values if v.op is not None), strict=True)
        return OPERATORS[first.name](*(concatenated(v, widths, module) for v in operands), **first.attrs)
    found = [constant_array(v, module) for v in values]
    arrays = [a for a in found if a is not None]
    assert len(arrays) == len(values), "constants have elements"
    if all(a.ndim == 0 or a.shape[-1] == 1 for a in arrays) and all(
        np.array_equal(a, arrays[0]) for a in arrays
    ):
        return values[0]
    wide = [np.broadcast_to(a, (*a.shape[:-1], n)) for a, n in zip(arrays, widths, strict=True)]
    return constant(np.concatenate(wide, axis=-1), "w.wide")


def may_be_concatenated(value: Value) -> bool:
    """Whether `concatenated` can join it with others: a map of constants by elementwise operators alone."""
    if is_constant(value):
        return all(d.is_const for d in shape_of(value))
    op = value.op
    return op is not None and is_elementwise(op) and all(map(may_be_concatenated, op.operands))
