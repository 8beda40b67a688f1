"""One loop, and one axis, where several run over contiguous memory: no short inner loops, no index taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym
from tilewright.loops.edit import address_of, body_of, buffer_type, extent_of, is_loop, loop_var
from tilewright.loops.stages import Stage
from tilewright.schedule.steps.access import loads_in, stores_in, stride_of
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def flatten(s: Schedule, loops: list[Op]) -> list[Op]:
    """Make one loop of neighbouring loops where memory is contiguous across them; the loops that are left."""
    k = len(loops) - 1
    while k > 0:
        if _contiguous(loops[k - 1], loops[k], loops[-1]):
            with suppress(ScheduleError):
                loops = [*loops[: k - 1], s.collapse(loops[k - 1], loops[k]), *loops[k + 1 :]]
        k -= 1
    return loops


def flatten_short_lines(s: Schedule, stages: Sequence[Stage], target: Target) -> None:
    """Where the last axis of the result may leave lanes of a vector idle, make one axis of neighbouring axes that all
    stages have, and across which memory is contiguous in each."""
    shapes = [[extent_of(o) for o in st.axes] for st in stages]
    if not shapes or any(shape != shapes[0] for shape in shapes):
        return
    shape = shapes[0]
    if not shape or shape[-1] % target.lanes(buffer_type(stages[-1].buffer).dtype) == 0:
        return
    for k in range(len(shape) - 1, 0, -1):
        pairs = [(st.axes[k - 1], st.axes[k]) for st in stages]
        if shape[k - 1] != 1 and shape[k] != 1 and all(_contiguous(outer, inner, inner) for outer, inner in pairs):
            for stage, pair in zip(stages, pairs, strict=True):
                stage.axes[k - 1 : k + 1] = [s.collapse(*pair)]
    merge_flat_axes(s)


def is_contiguous(nest: list[Op]) -> bool:
    """Whether a perfect nest could become one loop."""
    inner = any(is_loop(op) for op in body_of(nest[-1]).ops)
    return not inner and all(_contiguous(a, b, nest[-1]) for a, b in pairwise(nest))


def merge_flat_axes(s: Schedule) -> None:
    """See axes as one where flat loops run over them, so that no index is taken apart and put together again."""
    local = [op.result for op in s.func.body.walk() if op.name == "alloc"]
    for buffer in (*s.func.args, *local):
        axis = buffer_type(buffer).rank - 2
        while axis >= 0:
            inner = [op.attrs["idx"][axis + 1] for op in buffer.users if op.name in ("load", "store")]
            if inner and all(i.kind == "mod" for i in inner):
                with suppress(ScheduleError):
                    s.merge_axes(buffer, axis)
            axis -= 1


def _contiguous(outer: Op, inner: Op, innermost: Op) -> bool:
    """Whether every access moves by the same step from the end of one inner loop to the start of the next."""
    a, b = loop_var(outer), loop_var(inner)
    for access in (*loads_in(innermost), *stores_in(innermost)):
        address = address_of(access)
        over, within = stride_of(address, a), stride_of(address, b)
        if over is None or within is None or over != within * extent_of(inner):
            return False
    # What is not an address is computed from the variables themselves, for which divisions would be needed.
    others = [op for op in inner.walk() if op.name in ("index", "if", "bind") or op.attrs.get("guard")]
    return not any(v in (a, b) for op in others for attr in op.attrs.values() for v in _vars(attr))


def _vars(attr: object) -> frozenset[Sym]:
    if isinstance(attr, tuple):
        return frozenset().union(*map(_vars, attr)) if attr else frozenset()
    return attr.vars if isinstance(attr, Sym) else frozenset()
