"""What the definition of an operator tells of the products that it adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.sym import Sym, sym
from tilewright.ops.define.operator import Compute
from tilewright.ops.traits.facts import Product
from tilewright.ops.traits.pairing import is_elementwise


def product_of_compute(compute: Compute) -> Product | None:
    """How a primitive sums products of an element of each of two operands; None where it does not, or where it has no
    one axis of channels."""
    loads = _factors(compute)
    if loads is None:
        return None
    read = list(compute.body.args)
    data, weights = sorted(loads, key=lambda load: read.index(load.operands[0]))
    found = _of_matrices(compute, data, weights) or _of_channels(compute, data, weights)
    if found is None:
        return None
    return replace(found, data=read.index(data.operands[0]), weights=read.index(weights.operands[0]))


def product_of_parts(block: Block, results: Sequence[Value], product: Product | None, part: Op) -> Product | None:
    """Of a composite that multiplies two of its operands, or functions of their elements."""
    if product is None or len(results) != 1 or results[0] is not part.results[0] or part.blocks:
        return None
    args = [_argument(part.operands[k]) for k in (product.data, product.weights)]
    if args[0] is None or args[1] is None or args[0] is args[1]:
        return None
    is_plain = product.is_plain and args == [part.operands[product.data], part.operands[product.weights]]
    data, weights = map(block.args.index, args)
    return replace(product, data=data, weights=weights, is_plain=is_plain)


def _argument(value: Value) -> Value | None:
    """The argument of a composite of whose elements those of a value are functions."""
    while (op := value.op) is not None:
        same = [v for v in op.operands if v.tensor.shape == value.tensor.shape]
        if not same or not is_elementwise(op):
            return None
        value = same[0]
    return value


def _factors(compute: Compute) -> tuple[Op, Op] | None:
    """The two loads whose product is summed."""
    if compute.combine != "add" or compute.tiles or len(compute.body.ops[-1].operands) != 1:
        return None
    product = compute.body.ops[-1].operands[0].op
    if product is None or product.name != "mul":
        return None
    left, right = map(_source, product.operands)
    if left is None or right is None or left.name != "load" or right.name != "load":
        return None
    return None if left.operands[0] is right.operands[0] or right.attrs.get("guard") else (left, right)


def _source(value: Value) -> Op | None:
    """What a scalar is, or the same number in a type that has fewer."""
    op = value.op
    while op is not None and op.name == "cast" and _keeps_numbers(op):
        op = op.operands[0].op
    return op


def _keeps_numbers(cast: Op) -> bool:
    before, after = cast.operands[0].scalar.dtype, cast.result.scalar.dtype
    return after.holds(before) or (before.is_float and after.is_float and before.bits <= 16 < after.bits)


def _of_matrices(compute: Compute, data: Op, weights: Op) -> Product | None:
    if len(compute.reduce) != 1 or len(compute.axes) < 2 or data.attrs.get("guard"):
        return None
    ((k, _),) = compute.reduce
    *batch, row, column = (v for v, _ in compute.axes)
    left = _sides(data, batch, (row, k))
    right = _sides(weights, batch, (k, column))
    if left is None or right is None:
        return None
    ranks = [load.operands[0].tensor.rank for load in (data, weights)]
    kept = ranks[1] - (2 if right else 1)
    summed = 2 * ranks[1] - 3 - kept
    depth = ranks[0] - (2 if left else 1)
    return Product(0, 1, len(compute.axes) - 1, kept, (summed,), depth, transposed=(left, right))


def _sides(load: Op, batch: Sequence[Sym], last: tuple[Sym, Sym]) -> bool | None:
    """Whether a matrix at these two variables is read transposed; None where it is read otherwise."""
    shape, found = load.operands[0].tensor.shape, tuple(load.attrs["idx"])
    if not 2 <= len(shape) <= len(batch) + 2:
        return None
    outer = batch[len(batch) + 2 - len(shape) :]
    for transposed in (False, True):
        places = (*outer, *(last[::-1] if transposed else last))
        pairs = zip(found, shape, places, strict=True)
        if all(i == place or (d == 1 and i == sym(0)) for i, d, place in pairs):
            return transposed
    return None


def _of_channels(compute: Compute, data: Op, weights: Op) -> Product | None:
    rows, sums = ({v for v, _ in axes} for axes in (compute.axes, compute.reduce))
    read = [[(e.vars & rows, e.vars & sums) for e in load.attrs["idx"]] for load in (data, weights)]
    apart = frozenset[Sym]().union(*(r for r, s in read[0] if not s))
    kept = [(k, r - apart) for k, (r, s) in enumerate(read[1]) if not s and r - apart]
    if len(kept) != 1 or len(kept[0][1]) != 1:
        return None
    ((axis, own),) = kept
    depth = [k for k, (r, s) in enumerate(read[0]) if s and r <= own]
    space = tuple(k for k, (r, s) in enumerate(read[0]) if s and not r <= own)
    channels = frozenset[Sym]().union(*(read[0][k][1] for k in depth))
    summed = [k for k, (_, s) in enumerate(read[1]) if s]
    summed.sort(key=lambda k: not read[1][k][1] & channels)
    alike = frozenset[Sym]().union(*(s for _, s in read[0])) == frozenset[Sym]().union(*(s for _, s in read[1])) == sums
    if len(depth) != 1 or not alike:
        return None
    channel = next(k for k, (v, _) in enumerate(compute.axes) if v in own)
    return Product(0, 1, channel, axis, tuple(summed), depth[0], space)
