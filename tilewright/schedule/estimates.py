"""What nests of a kernel do before it is scheduled: from that strategies that compete for it estimate its cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.cost.elementwise import weighted_operations
from tilewright.cost.roofline import MOST_APART, NestWork, ReadOfNest
from tilewright.cost.typical import TypicalSizes
from tilewright.ir.core import Op, Value
from tilewright.ir.scalar import COMPUTING
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.loops.edit import address_of, body_of, buffer_type, extent_of, loop_var
from tilewright.loops.kernel_info import constants_of
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.steps.access import stride_of, variables

USUAL = TypicalSizes({})


@dataclass(frozen=True, eq=False)
class Counted:
    """A kernel that is not scheduled yet, the work of its nests, and the bytes of its arguments, for usual sizes."""

    lowered: Lowered
    nests: tuple[NestWork, ...]
    arguments: float


def counted(lowered: Lowered) -> Counted:
    """Runs over the kernel once and changes nothing."""
    constants = constants_of(lowered.func)
    types = [buffer_type(v) for v in lowered.func.args]
    size = sum(_usual(product(t.shape)) * t.dtype.bytes for t in types)
    return Counted(lowered, tuple(_work(stage, constants) for stage in lowered.stages), size)


def _work(stage: Stage, constants: Sequence[Value]) -> NestWork:
    axes = [o for o in stage.axes if extent_of(o) != 1]
    summed = [o for o in stage.reduce if extent_of(o) != 1]
    is_sum = bool(stage.reduce)
    body = body_of((*stage.axes, *stage.reduce)[-1]) if stage.axes or stage.reduce else None
    ops = [] if body is None else list(body.walk())
    loads = [op for op in ops if op.name == "load" and not (is_sum and op.operands[0] is stage.buffer)]
    return NestWork(
        elements=_usual(product(extent_of(o) for o in stage.axes)) * prod(stage.tiles),
        terms=_usual(product(extent_of(o) for o in stage.reduce)) if is_sum else 0,
        operations=weighted_operations([op.name for op in ops if op.name in COMPUTING]),
        reads=tuple(_read(op, axes, summed, constants) for op in loads),
        element=buffer_type(stage.buffer).dtype.bytes,
        results=_usual(product(extent_of(o) for o in axes[-1:])),
        summed=_usual(product(extent_of(o) for o in summed[-1:])),
    )


def _read(load: Op, axes: Sequence[Op], summed: Sequence[Op], constants: Sequence[Value]) -> ReadOfNest:
    moving, address = variables(load.attrs["idx"]), address_of(load)
    loops = [o for o in (*axes, *summed) if loop_var(o) in moving]
    return ReadOfNest(
        along_results=_stride(address, axes[-1:]),
        along_sum=_stride(address, summed[-1:]),
        elements=_usual(product(extent_of(o) for o in loops)),
        shared=any(loop_var(o) not in moving for o in axes),
        known=load.operands[0] in constants,
    )


def _stride(address: Sym, loops: Sequence[Op]) -> int | None:
    """Elements between neighbours along the only loop, if there is one; None where these differ, or are too many."""
    found = stride_of(address, loop_var(loops[0])) if loops else sym(0)
    return found.value if found is not None and found.is_const and 0 <= found.value <= MOST_APART else None


def _usual(size: Sym) -> int:
    """A size, or what it is expected to be."""
    return int(size.value) if size.is_const else int(USUAL.medium([size])[0])
