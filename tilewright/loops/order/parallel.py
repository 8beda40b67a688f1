"""Running the iterations of a loop on several threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir.core import Func, Op
from tilewright.loops.analysis.deps import Access, accesses, conflicts, private_buffers, separated
from tilewright.loops.edit import body_of, describe, is_loop, kind_of, refuse, set_kind
from tilewright.loops.primitive import primitive
from tilewright.loops.spec import why_not_shared


@primitive
def parallel(func: Func, loop: Op, level: str = "") -> Op:
    """Let threads share the iterations of a loop: those of a level of the machine, or the tasks of a CPU's pool ("").

        for i in 0..n { S(i) }    ->    for i in 0..n parallel { S(i) }

    Loops of a level may stand in loops of other levels and beside others; what meets is ordered by `barrier`. Without
    a level an outermost loop that is the only op of the kernel makes that a task of the thread pool. Others, outermost
    ones beside loops and scratch memory alone and those inside of serial loops, are shared each time they are reached,
    and what follows waits for all of them.

    ScheduleError when the loop is not serial, when it is an outermost one beside anything else, when it or the loops
    around it are of another kind or it needs more of what is outside than other threads see (`why_not_shared`), or when
    two iterations may touch the same element of a buffer that one of them writes.
    """
    if kind_of(loop) == "parallel" and loop.attrs.get("level", "") == level:
        return loop
    if kind_of(loop) != "serial":
        refuse("parallel", loop, f"it is a {kind_of(loop)} loop already")
    if any(o is not loop and is_loop(o) and _is_shared_by(o, level) for o in loop.walk()):
        refuse("parallel", loop, "threads share a loop in it already")
    if any(o.name == "barrier" and o.attrs["level"] == level for o in loop.walk()):
        refuse("parallel", loop, f"it holds a barrier of level '{level}', which stands beside such loops")
    reason = _beside(func, loop) if loop.parent is func.body and not level else why_not_shared(loop, level)
    if reason is not None:
        refuse("parallel", loop, reason)
    check_independent("parallel", loop)
    set_kind(loop, "parallel", level)
    return loop


def _is_shared_by(loop: Op, level: str) -> bool:
    """Whether a loop is parallel, and not of another level than `level`."""
    return kind_of(loop) == "parallel" and loop.attrs.get("level", "") in ("", level or loop.attrs.get("level"))


@primitive
def serial(func: Func, loop: Op) -> Op:
    """Let one thread run all iterations of a loop that threads share.

        for i in 0..n parallel { S(i) }    ->    for i in 0..n { S(i) }

    ScheduleError when the loop is neither parallel nor serial.
    """
    if kind_of(loop) not in ("parallel", "serial"):
        refuse("serial", loop, f"it is a {kind_of(loop)} loop")
    set_kind(loop, "serial")
    return loop


def _beside(func: Func, loop: Op) -> str | None:
    """What an outermost loop is not alone with."""
    for op in func.body.ops:
        is_scratch = op.name == "alloc" and op.result.buffer.space == "scratch"
        if op is not loop and op.name not in ("return", "for") and not is_scratch:
            return (
                f"{describe(op)} stands beside it; beside an outermost parallel loop are loops and scratch memory alone"
            )
    return None


def check_independent(step: str, loop: Op) -> None:
    """ScheduleError when two iterations may touch the same element of a buffer that one of them writes."""
    for a, b in _meetings(loop):
        places = f"{describe(a.buffer)}: {a.place} and {b.place}"
        refuse(step, loop, f"an iteration may touch what another writes, in {places}")


def is_independent(loop: Op) -> bool:
    """Whether no two iterations touch the same element of a buffer that one of them writes."""
    return not any(_meetings(loop))


def independent_axes(nest: Sequence[Op]) -> list[Op]:
    """The loops of a perfect nest (outermost first) of which no two iterations touch the same element of a buffer that
    one of them writes, in whatever iterations of the other loops."""
    private = private_buffers(nest[0])
    shared = [a for a in accesses(nest[0]) if a.buffer not in private]
    axes = set(nest)
    for k, a in enumerate(shared):
        for _, b in conflicts([a], shared[k:]):
            axes &= separated(a, b, nest, {})
        if not axes:
            break
    return [loop for loop in nest if loop in axes]


def _meetings(loop: Op) -> Iterator[tuple[Access, Access]]:
    """Accesses of shared buffers by which two iterations may meet. Not those of a loop that is marked as `overlap`
    which write one element twice, or read what their own iteration wrote: it is the same value, computed twice."""
    private = private_buffers(body_of(loop))
    shared = [a for a in accesses(body_of(loop)) if a.buffer not in private]
    for k, a in enumerate(shared):
        for _, b in conflicts([a], shared[k:]):
            same = loop.attrs.get("overlap") and (a.op is b.op or _reads_own(a, b))
            if not same and loop not in separated(a, b, [loop], {}):
                yield a, b


def _reads_own(store: Access, load: Access) -> bool:
    """Whether `load`, the later of the two, reads the element that `store` wrote just before in the same block."""
    return (
        store.write
        and not load.write
        and store.op.parent is load.op.parent
        and store.idx == load.idx
        and not store.unknown
        and "guard" not in store.op.attrs
    )
