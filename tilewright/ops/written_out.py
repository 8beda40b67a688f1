"""Composites that stayed whole for a while become the operators that they are made of."""

from __future__ import annotations

from tilewright.ir.core import Builder, Module, Op
from tilewright.ir.rewrite import Replacement, RewriteContext, Rule, rewrite
from tilewright.ops.define import OPERATORS


def write_out(module: Module) -> None:
    """Write out the composites of the main function that a front end does not keep (`staying_whole`)."""
    names = tuple(n for n, operator in OPERATORS.items() if operator.kind == "composite" and not operator.keep)
    rewrite(module.main, [Rule("write_out_composite", names, _written_out)], module)


def _written_out(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    return OPERATORS[op.name].expand(op.operands, op.attrs)
