"""The default schedule of elementwise kernels, and the last resort for all others: vectors inside, threads outside."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.types import ScalarType
from tilewright.loops.lower import Lowered
from tilewright.loops.nest import body_of, extent_of, is_loop, kind_of, loop_var
from tilewright.schedule.access import loads_in, perfect_nest, stores_in, stride_in
from tilewright.schedule.parallelize import parallelize_outer
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target

VECTOR_BYTES = 64
CHUNK = 4096
"""Elements that a thread takes at a time of a loop that has no loop around it."""


def schedule_maps(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Fuse stages of equal shape, flatten what is contiguous, then vectors inside and threads outside."""
    _fuse_stages(s, lowered)
    s.simplify()
    for nest in [op for op in s.func.body.ops if is_loop(op)]:
        _flatten(s, perfect_nest(nest))
    parallelize_outer(s, target, keep_innermost=True)  # before vectors: indices are still simple to reason about
    _chunk_single_loop(s)
    for loop in [op for op in s.func.body.walk() if is_loop(op)]:
        if loop.parent is not None and not any(is_loop(op) for op in body_of(loop).walk()):
            _vectorize(s, loop, target)
    s.simplify()


def _fuse_stages(s: Schedule, lowered: Lowered) -> None:
    """One nest for neighbouring stages of the same axes."""
    nests = [st.axes for st in lowered.stages if st.kind == "map" and st.axes]
    current = nests[0] if nests else ()
    for nest in nests[1:]:
        depth = _fuse_nests(s, current, nest)
        current = (*current[:depth], *nest[depth:])  # the loops that are around the later stage now


def _fuse_nests(s: Schedule, first: Sequence[Op], second: Sequence[Op]) -> int:
    """Fuse two nests of equal extents from the outside in; how many loops became one."""
    if [extent_of(o) for o in first] != [extent_of(o) for o in second]:
        return 0
    for depth, (a, b) in enumerate(zip(first, second, strict=True)):
        try:
            s.fuse_siblings(a, b)
        except ScheduleError:
            return depth
    return len(first)


def _flatten(s: Schedule, loops: list[Op]) -> None:
    """Make one loop of the innermost loops as long as memory is contiguous across them."""
    while len(loops) > 1 and _contiguous(loops[-2], loops[-1]):
        try:
            flat = s.fuse_loops(loops[-2], loops[-1])
        except ScheduleError:
            return
        loops = [*loops[:-2], flat]


def _contiguous(outer: Op, inner: Op) -> bool:
    """Whether every access moves by the same step from the end of one inner round to the start of the next."""
    a, b = loop_var(outer), loop_var(inner)
    for access in (*loads_in(inner), *stores_in(inner)):
        over, within = stride_in(access, a), stride_in(access, b)
        if over is None or within is None or over != within * extent_of(inner):
            return False
    others = [op for op in inner.walk() if op.name in ("index", "if", "bind") or op.attrs.get("guard")]
    return not any(v in (a, b) for op in others for attr in op.attrs.values() for v in _vars(attr))


def _vars(attr: object) -> frozenset[object]:
    if isinstance(attr, tuple):
        return frozenset().union(*map(_vars, attr)) if attr else frozenset()
    return getattr(attr, "vars", frozenset())


def _chunk_single_loop(s: Schedule) -> None:
    """Give a kernel of one flat loop an outer loop for threads to share."""
    loops = [op for op in s.func.body.ops if op.name != "return"]
    if len(loops) != 1 or not is_loop(loops[0]) or any(is_loop(op) for op in body_of(loops[0]).walk()):
        return
    extent = extent_of(loops[0])
    if not extent.is_const or extent.value > 2 * CHUNK:
        s.split(loops[0], CHUNK, tail="branch")


def _vectorize(s: Schedule, loop: Op, target: Target) -> None:
    lanes = lanes_for(loop, target)
    if lanes < 2 or kind_of(loop) not in ("serial", "parallel") or not _worthwhile(loop):
        return
    tail = "branch" if loop.parent is s.func.body else "peel"
    try:
        s.vectorize(loop, lanes, tail=tail)
    except ScheduleError:
        return


def _worthwhile(loop: Op) -> bool:
    """Vectors of gathered and scattered elements gain nothing over single ones."""
    stores = stores_in(loop)
    return bool(stores) and all(stride_in(op, loop_var(loop)) in (0, 1) for op in stores)


def lanes_for(loop: Op, target: Target) -> int:
    """Lanes of a vector loop: 64 bytes of the widest element, fewer for short loops."""
    widest = max(
        (v.type.dtype.bytes for op in loop.walk() for v in op.results if isinstance(v.type, ScalarType)), default=4
    )
    lanes = VECTOR_BYTES // widest
    extent = extent_of(loop)
    while extent.is_const and lanes > 1 and lanes > extent.value:
        lanes //= 2
    return lanes
