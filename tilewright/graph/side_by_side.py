"""Products side by side: matrix products of one tensor with several constant matrices become one product.

Queries, keys and values of attention are the usual case: one kernel reads the tensor once, and what follows
reads its part of the result through a slice. Only products that a view follows are taken: the epilogue of any
other (an activation, the product of two of them) is better kept in its kernel.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.dead import drop_dead
from tilewright.graph.match import shape_of, sole_user, type_of
from tilewright.ir.core import Block, Builder, Module, Op, Value, replace_in_block
from tilewright.ir.passes import PassContext
from tilewright.ir.rewrite import constant_array
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.view import slice_

VIEWS = frozenset({"reshape", "transpose", "slice"})


@dataclass(frozen=True)
class _Member:
    """A product with a constant matrix w [k, n], the vector that is added to it (or None), and what gives the
    sum."""

    product: Op
    w: np.ndarray
    bias: np.ndarray | None
    result: Value


@dataclass(frozen=True)
class MergeProducts:
    """Merge products that share their left operand."""

    name: ClassVar[str] = "merge-products"

    def run(self, module: Module, ctx: PassContext) -> None:
        groups: dict[Value, list[_Member]] = defaultdict(list)
        for op in module.main.body.ops:
            member = _member(op, module)
            if member is not None:
                groups[op.operands[0]].append(member)
        for members in groups.values():
            if len(members) > 1:
                _merge(members, module)
                subject = f"{len(members)} products {members[0].product.loc}"
                ctx.remark(self.name, subject, "one product", applied=True)
        drop_dead(module)


def _member(op: Op, module: Module) -> _Member | None:
    """What `op` is as a part of a wider product; None when it should stay alone."""
    if op.name != "matmul" or op.attrs["transpose_a"]:
        return None
    w = op.operands[1]
    if w.op is None or w.op.name != "constant" or type_of(w).rank != 2 or type_of(op.operands[0]).rank < 2:
        return None
    array = module.constants[w.op.attrs["name"]]
    matrix = array.T if op.attrs["transpose_b"] else array
    user = sole_user(op.result)
    if user is not None and user.name == "add" and user.operands[0] is op.result:
        bias = constant_array(user.operands[1], module)
        if bias is None or user.result.type != op.result.type or bias.size not in (1, matrix.shape[1]):
            return None
        follows = sole_user(user.result)
        vector = np.broadcast_to(bias.reshape(-1), matrix.shape[1:])
        return (
            _Member(op, matrix, vector, user.result)
            if follows is not None and follows.name in VIEWS
            else None
        )
    return _Member(op, matrix, None, op.result) if user is not None and user.name in VIEWS else None


def _merge(members: list[_Member], module: Module) -> None:
    """Put the wide product before the first member, and let readers of the members read slices of it."""
    first = members[0].product
    block = first.parent
    assert isinstance(block, Block)
    emitted = Block()
    with Builder(emitted, module, first.loc):
        wide = matmul(first.operands[0], constant(np.concatenate([m.w for m in members], axis=1), "w.wide"))
        if any(m.bias is not None for m in members):
            parts = [np.zeros(m.w.shape[1], m.w.dtype) if m.bias is None else m.bias for m in members]
            wide = ew.add(wide, constant(np.concatenate(parts), "bias.wide"))
        begin = 0
        for m in members:
            width = m.w.shape[1]
            m.result.replace_by(_columns(wide, begin, width))
            begin += width
    at = block.ops.index(first)
    replace_in_block(block, [*block.ops[:at], *emitted.ops, *block.ops[at:]])


def _columns(x: Value, begin: int, width: int) -> Value:
    shape = shape_of(x)
    starts: tuple[Sym, ...] = (*[sym(0)] * (len(shape) - 1), sym(begin))
    return slice_(x, starts=starts, sizes=(*shape[:-1], sym(width)))
