"""Horizontal fusion: matrix products of one tensor with several constant matrices become one product.

Queries, keys and values of attention are the usual case: one kernel reads the tensor once, and what follows
reads its part of the result through a slice. Only products that a view follows are taken: the epilogue of any
other (an activation, the product of two of them) is better kept in its kernel.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.match import dtype_of, shape_of, sole_user, type_of
from tilewright.graph.quantised.weight_only import concatenated, form_of, may_be_concatenated
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir.core import Block, Builder, Module, Op, Value, insert_before
from tilewright.ir.rewrite import constant_array
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.traits.derive import is_view
from tilewright.ops.view import slice_
from tilewright.passes import PassContext


@dataclass(frozen=True)
class _Member:
    """A product with a matrix that follows from constants, its number of columns, the vector that is added to it (or
    None), and what gives the sum."""

    product: Op
    width: int
    bias: np.ndarray | None
    result: Value


@dataclass(frozen=True)
class HorizontalFusion:
    """Merge products that share their left operand."""

    name: ClassVar[str] = "horizontal-fusion"

    def run(self, module: Module, ctx: PassContext) -> None:
        groups: dict[Any, list[_Member]] = defaultdict(list)
        for op in module.main.body.ops:
            member = _member(op, module)
            if member is not None:
                groups[op.operands[0], form_of(op.operands[1])].append(member)
        for members in groups.values():
            if len(members) > 1:
                _merge(members, module)
                subject = f"{len(members)} products {members[0].product.loc}"
                ctx.remark(self.name, subject, "one product", applied=True)
        drop_dead(module)


def _member(op: Op, module: Module) -> _Member | None:
    """What `op` is as a part of a wider product; None when it should stay alone."""
    if op.name != "matmul" or op.attrs["transpose_a"] or type_of(op.operands[0]).rank < 2:
        return None
    w = op.operands[1]
    transposed = op.attrs["transpose_b"]
    joins = w.op is not None and w.op.name == "constant" if transposed else may_be_concatenated(w)
    if not joins or type_of(w).rank != 2:
        return None
    width = shape_of(w)[0 if transposed else 1].value
    user = sole_user(op.result)
    if user is not None and user.name == "add" and user.operands[0] is op.result:
        bias = constant_array(user.operands[1], module)
        if bias is None or user.result.type != op.result.type or bias.size not in (1, width):
            return None
        follows = sole_user(user.result)
        vector = np.broadcast_to(bias.reshape(-1), (width,))
        return (
            _Member(op, width, vector, user.result) if follows is not None and is_view(follows) else None
        )
    return _Member(op, width, None, op.result) if user is not None and is_view(user) else None


def _merge(members: list[_Member], module: Module) -> None:
    """Put the wide product before the first member, and let readers of the members read slices of it."""
    first = members[0].product
    emitted = Block()
    widths = [m.width for m in members]
    with Builder(emitted, module, first.loc.joined(*(m.product.loc for m in members[1:]))):
        wide = matmul(
            first.operands[0], concatenated([_matrix(m.product, module) for m in members], widths, module)
        )
        if any(m.bias is not None for m in members):
            dtype = dtype_of(wide).storage
            parts = [np.zeros(m.width, dtype) if m.bias is None else m.bias for m in members]
            wide = ew.add(wide, constant(np.concatenate(parts), "bias.wide"))
        begin = 0
        for m in members:
            m.result.replace_by(_columns(wide, begin, m.width))
            begin += m.width
    insert_before(first, emitted.ops)


def _matrix(product: Op, module: Module) -> Value:
    """The right operand of a product, [k, n]."""
    w = product.operands[1]
    array = constant_array(w, module) if product.attrs["transpose_b"] else None
    return w if array is None else constant(array.T, "w")


def _columns(x: Value, begin: int, width: int) -> Value:
    shape = shape_of(x)
    starts: tuple[Sym, ...] = (*[sym(0)] * (len(shape) - 1), sym(begin))
    return slice_(x, starts=starts, sizes=(*shape[:-1], sym(width)))
