"""Running the iterations of a loop on several threads."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.core import Func, Op
from tilewright.loops.deps import Access, accesses, conflicts, private_buffers, separated
from tilewright.loops.nest import body_of, describe, kind_of, refuse


def parallel(func: Func, loop: Op) -> Op:
    """Let threads share the iterations of the kernel's outermost loop.

        for i in 0..n { S(i) }    ->    for i in 0..n parallel { S(i) }

    ScheduleError when the loop is not the only op of the kernel, when it is not serial, or when two
    iterations may touch the same element of a buffer that one of them writes.
    """
    if kind_of(loop) == "parallel":
        return loop
    if kind_of(loop) != "serial":
        refuse("parallel", loop, f"it is a {kind_of(loop)} loop already")
    if loop.parent is not func.body:
        refuse("parallel", loop, "it is not an outermost loop")
    for op in func.body.ops:
        if op is not loop and op.name != "return":
            refuse(
                "parallel",
                loop,
                f"{describe(op)} stands beside it; the parallel loop must be alone in the kernel",
            )
    check_independent("parallel", loop)
    loop.attrs["kind"] = "parallel"
    return loop


def check_independent(step: str, loop: Op) -> None:
    """ScheduleError when two iterations may touch the same element of a buffer that one of them writes."""
    for a, b in _meetings(loop):
        refuse(step, loop, f"two iterations may meet in {describe(a.buffer)}: {a.place} and {b.place}")


def is_independent(loop: Op) -> bool:
    """Whether no two iterations touch the same element of a buffer that one of them writes."""
    return not any(_meetings(loop))


def _meetings(loop: Op) -> Iterator[tuple[Access, Access]]:
    """Accesses of shared buffers by which two iterations may meet. Not those of a loop that is marked as `overlap`
    which write one element twice: it is the same value, computed twice."""
    private = private_buffers(body_of(loop))
    shared = [a for a in accesses(body_of(loop)) if a.buffer not in private]
    for k, a in enumerate(shared):
        for _, b in conflicts([a], shared[k:]):
            if not (a.op is b.op and loop.attrs.get("overlap")) and loop not in separated(a, b, [loop], {}):
                yield a, b
