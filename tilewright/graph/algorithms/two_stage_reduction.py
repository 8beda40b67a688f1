"""Sums over an image in two steps: of each line, and of these sums.

Squeeze-and-excitation and pooling over all positions read what a depthwise convolution has just written. Where that
is more than L2 holds, the sums of lines are taken in the kernel that writes them (`graph/fusion/fuse.py`),
while a line is in L1; what is left to read is one sum for each line. A line's sum belongs to the
line, so that neither bands nor threads change a bit of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.cost.core import is_kept
from tilewright.graph.fusion.classify import OpClass, classify
from tilewright.graph.match import shape_of, type_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir.core import Block, Builder, Module, Op, Value, insert_before
from tilewright.ir.passes import PassContext
from tilewright.ops.reduce import reduce_sum
from tilewright.target.target import Target


@dataclass(frozen=True)
class TwoStageReduction:
    """Split sums over several axes of large results of windows into sums of lines and sums of these."""

    name: ClassVar[str] = "two-stage-reduction"

    def run(self, module: Module, ctx: PassContext) -> None:
        changed = False
        for op in list(module.main.body.ops):
            if op.name != "reduce_sum" or not _is_of_whole_lines(op):
                continue
            reason = _refusal(op, ctx.target)
            ctx.remark(
                self.name,
                f"sum {op.loc}",
                reason or "lines are summed as they are written",
                applied=not reason,
            )
            if not reason:
                _split(op, module)
                changed = True
        if changed:
            drop_dead(module)


def _is_of_whole_lines(op: Op) -> bool:
    """Whether it sums over the axis before the last of its operand, others before that, and not over the last."""
    rank = len(shape_of(op.operands[0]))
    axes = {a % rank for a in op.attrs["axes"]}
    return len(axes) > 1 and rank - 2 in axes and rank - 1 not in axes


def _refusal(op: Op, target: Target | None) -> str:
    """Why the sum should stay one reading of the tensor; "" when it should be split."""
    x = op.operands[0]
    if target is None:
        return "the caches are not known"
    if not writes_lines(x):
        return "what it sums is not written line by line by a kernel of windows"
    stored = type_of(x).size * type_of(x).dtype.bytes
    if is_kept(stored.bounds[0] or 0, target):
        return "what it sums may well be in L2 still"
    return ""


def writes_lines(x: Value) -> bool:
    """Whether `x` is elementwise work on a sum of windows, such as a depthwise convolution."""
    op, shape = x.op, shape_of(x)
    while op is not None and op.operands and classify(op).is_pointwise:
        op = next((v.op for v in op.operands if shape_of(v) == shape), None)
    if op is None or op is x.op or not op.operands:
        return False
    info = classify(op)
    return info.kind is OpClass.CONTRACTION and info.slides


def _split(op: Op, module: Module) -> None:
    (x,) = op.operands
    rank = len(shape_of(x))
    others = sorted({a % rank for a in op.attrs["axes"]} - {rank - 2})
    emitted = Block()
    with Builder(emitted, module, op.loc):
        lines = reduce_sum(x, axes=(rank - 2,), keepdims=True)
        if op.attrs["keepdims"]:
            total = reduce_sum(lines, axes=tuple(others), keepdims=True)
        else:
            total = reduce_sum(lines, axes=(*others, rank - 2), keepdims=False)
    total.name = op.result.name
    op.result.replace_by(total)
    insert_before(op, emitted.ops)
