"""The pass that makes a program fit into some memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.graph.cascades.choose import ChosenCascade, FusedProgram
from tilewright.graph.cascades.emit import emitted
from tilewright.graph.cascades.links import FUSED
from tilewright.graph.cascades.steps import Cascade
from tilewright.ir.core import Func, Module, Op, replace_in_block
from tilewright.passes import PassContext


@dataclass(frozen=True)
class Cascades:
    """Compute chains of the kernels of a fused program by rows, as `fitted` has chosen them."""

    name: ClassVar[str] = "cascades"
    chosen: tuple[ChosenCascade, ...]

    def run(self, module: Module, ctx: PassContext) -> None:
        main = module.main
        program = FusedProgram(main)
        ops: list[Op] = [op for op in main.body.ops if op.name == "constant"]
        end = 0
        for first, last, pieces in self.chosen:
            cascade = program.cascade(first, last)
            assert cascade is not None, "the plan is that of another program"
            steps = cascade.steps(pieces)
            _remark(ctx, cascade, len(steps))
            ops += [*program.ops[end:first], *emitted(cascade, steps)]
            end = last + 1
        final = main.body.ops[-1]
        replace_in_block(main.body, [*ops, *program.ops[end:], final])


def is_static(func: Func) -> bool:
    """Whether all sizes of a function are known."""
    return all(v.tensor.is_static for op in func.body.ops for v in (*op.operands, *op.results))


def _remark(ctx: PassContext, cascade: Cascade, steps: int) -> None:
    kernels = [op for op in cascade.ops if op.name == FUSED]
    told = f"{len(kernels)} kernels are computed by rows, in {steps} steps, to take less memory"
    ctx.remark("cascades", f"{kernels[0].loc} to {kernels[-1].loc}", told, applied=True)
