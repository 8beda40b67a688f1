"""Unrolling a loop and interleaving its iterations, statement by statement."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Func, Op, insert_before
from tilewright.ir.sym import sym
from tilewright.loops.edit import (
    body_of,
    extent_of,
    holds_parallel,
    is_loop,
    iteration_of,
    kind_of,
    loop_var,
    names_in,
    put_ops,
    refuse,
    substitute_in,
    take_ops,
)
from tilewright.loops.order.parallel import check_independent
from tilewright.loops.primitive import primitive


@primitive
def unroll_and_jam(func: Func, loop: Op) -> None:
    """Write the iterations of a loop out, statement beside statement, so that one goes on while another waits.

        for i in 0..2 { S(i); for j in 0..m { T(i, j) } }

    becomes

        S(0); S(1); for j in 0..m { T(0, j); T(1, j) }

    Serial loops in it become one where all iterations have the same, and so do those inside of them. ScheduleError when
    the loop is not serial or its extent no constant, when it holds a parallel one, or when two iterations may touch the
    same element of a buffer that one of them writes.
    """
    n = extent_of(loop)
    if kind_of(loop) != "serial":
        refuse("unroll_and_jam", loop, f"it is a {kind_of(loop)} loop")
    if not n.is_const:
        refuse("unroll_and_jam", loop, "its extent is not a constant; split it first")
    if holds_parallel(loop):
        refuse("unroll_and_jam", loop, "threads share a loop in it")
    check_independent("unroll_and_jam", loop)
    names = names_in(func)
    insert_before(loop, _interleaved([iteration_of(loop, sym(k), names) for k in range(n.value)]))
    loop.erase()


def _interleaved(iterations: Sequence[list[Op]]) -> list[Op]:
    """Copies of the same ops, statement by statement: the first of each, then the second of each, and so on, with one
    loop for equal ones. Each copy keeps the order of its ops."""
    ops: list[Op] = []
    statement: list[tuple[Op, ...]] = []
    for same in zip(*iterations, strict=True):
        is_one_loop = _are_one_loop(same)
        if not is_one_loop:
            statement.append(same)
        if is_one_loop or not same[0].results:  # a value belongs to the statement that uses it
            ops += [op for copy in zip(*statement, strict=True) for op in copy]
            statement = []
        if is_one_loop:
            ops.append(_one_loop(same))
    return ops + [op for copy in zip(*statement, strict=True) for op in copy]


def _are_one_loop(ops: Sequence[Op]) -> bool:
    first = ops[0]
    return all(is_loop(o) and kind_of(o) == "serial" and extent_of(o) is extent_of(first) for o in ops)


def _one_loop(loops: Sequence[Op]) -> Op:
    first = loops[0]
    for other in loops[1:]:
        substitute_in(body_of(other), {loop_var(other): loop_var(first)})
    put_ops(body_of(first), _interleaved([take_ops(body_of(o)) for o in loops]))
    return first
