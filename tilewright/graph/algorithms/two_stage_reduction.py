"""Reductions in two steps: of each line, and of what these give.

Sums over an image. Squeeze-and-excitation and pooling over all positions read what a depthwise convolution has just
written. Where that is more than L2 holds, the sums of lines are taken in the kernel that writes them
(`graph/fusion/fuse.py`), while a line is in L1; what is left to read is one sum for each line. A line's sum belongs to
the line, so that neither bands nor threads change a bit of it.

The greatest and the least of all elements, which dynamic quantisation asks for. Rows are what threads share, and all
that is asked of a row is computed while it is in L1. Where a group of threads has a row (GPUs), sums of all elements
are sums of rows as well: otherwise one thread would make each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.cost.core import is_kept
from tilewright.cost.recompute import one_thread_suffices
from tilewright.cost.rows import LEAST_OF_ROW, row_of_all
from tilewright.cost.typical import TypicalSizes, typical_sizes
from tilewright.graph.fusion.classify import OpClass, classify
from tilewright.graph.match import shape_of, type_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir.core import Block, Builder, Module, Op, Value, insert_before
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops.define import OPERATORS
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.view import reshape
from tilewright.passes import PassContext
from tilewright.target.target import Target


@dataclass(frozen=True)
class TwoStageReduction:
    """Split sums over several axes of large results of windows into sums of lines and sums of these, and the greatest
    or least of all elements into those of rows and of these; with `by_groups` sums of all elements, too."""

    name: ClassVar[str] = "two-stage-reduction"

    by_groups: bool = False

    def run(self, module: Module, ctx: PassContext) -> None:
        changed = False
        of_all = ("reduce_max", "reduce_min", *(("reduce_sum",) if self.by_groups else ()))
        typical = typical_sizes(type_of(v) for v in module.main.args)
        for op in list(module.main.body.ops):
            if op.name in of_all and _is_of_many(op) and _split_by_rows(op, module, ctx.target, typical):
                changed = True
                continue
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


def _is_of_many(op: Op) -> bool:
    """Whether it reduces all elements of a tensor, and one thread should not go over these alone."""
    size = type_of(op.operands[0]).size
    return type_of(op.result).size == 1 and not (size.is_const and one_thread_suffices(size.value))


def _rows(x: Value, target: Target | None, typical: TypicalSizes) -> tuple[tuple[Sym, ...], int]:
    """The shape in which a tensor consists of rows, and how many leading axes count these; no axes where it is one row.
    Sizes that are not known leave the axes as they are, of which rows have the last one, if it is known to be long, or
    the last two at least: a short one would leave nothing to do at once."""
    shape, size = shape_of(x), type_of(x).size
    length = row_of_all(size.value, type_of(x).dtype.bytes, target) if size.is_const else 0
    if length:
        return (size // length, sym(length)), 1
    kept = max(0, len(shape) - (1 if (shape[-1].bounds[0] or 0) >= LEAST_OF_ROW or size.is_const else 2))
    while kept > 0 and typical.medium([product(shape[kept:])])[0] < LEAST_OF_ROW:
        kept -= 1
    return shape, kept if product(shape[:kept]) != 1 else 0


def _split_by_rows(op: Op, module: Module, target: Target | None, typical: TypicalSizes) -> bool:
    """Reduce rows, and what these give; False where there is one row."""
    (x,) = op.operands
    shape, kept = _rows(x, target, typical)
    if not kept:
        return False
    reduce = OPERATORS[op.name]
    emitted = Block()
    with Builder(emitted, module, op.loc):
        source = x if shape == shape_of(x) else reshape(x, shape=shape)
        rows = reduce(source, axes=tuple(range(kept, len(shape))), keepdims=False)
        total = reduce(rows, axes=tuple(range(kept)), keepdims=False)
        total = reshape(total, shape=shape_of(op.result)) if shape_of(op.result) else total
    total.name = op.result.name
    op.result.replace_by(total)
    insert_before(op, emitted.ops)
    return True


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
        return "what it sums is not written line by line, as by a depthwise convolution or pooling"
    stored = type_of(x).size * type_of(x).dtype.bytes
    if is_kept(stored.bounds[0] or 0, target):
        return "what it sums may well be in the L2 cache still"
    return ""


def writes_lines(x: Value) -> bool:
    """Whether `x` is elementwise work on a sum of windows, such as a depthwise convolution."""
    op, shape = x.op, shape_of(x)
    while op is not None and op.operands and classify(op).is_pointwise:
        op = next((v.op for v in op.operands if shape_of(v) == shape), None)
    if op is None or op is x.op or not op.operands:
        return False
    info = classify(op)
    return info.kind is OpClass.CONTRACTION and info.is_sliding_window


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
