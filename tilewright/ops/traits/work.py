"""What an operator has to compute: the primitives that it is made of, and how many numbers each of these adds up."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.core import Block, Builder, Module, Op
from tilewright.ir.sym import Sym
from tilewright.ops.define.operator import OPERATORS, Compute


def parts_of(op: Op) -> Iterator[Op]:
    """The primitives and the operators with loops of their own that an operator is made of; itself where it is one.
    TypeRuleError where its operands do not fit."""
    operator = OPERATORS[op.name]
    if operator.kind != "composite":
        yield op
        return
    block = Block([v.type for v in op.operands])
    with Builder(block, Module(), op.loc):
        operator.expand(block.args, op.attrs)
    for inner in block.ops:
        if inner.name in OPERATORS:
            yield from parts_of(inner)


def computation_of(op: Op) -> Compute | None:
    """The definition of a primitive on these operands; None for other operators."""
    operator = OPERATORS.get(op.name)
    if operator is None or operator.kind != "primitive":
        return None
    return operator.compute([v.tensor for v in op.operands], op.attrs)


def terms_of(op: Op) -> tuple[Sym, ...]:
    """Factors of how many numbers a primitive combines for an element of its result; none where it combines none, and
    for other operators."""
    computation = computation_of(op)
    return () if computation is None else tuple(extent for _, extent in computation.reduce)
