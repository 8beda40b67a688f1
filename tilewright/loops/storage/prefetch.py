"""Prefetching memory before it is needed."""

from __future__ import annotations

from math import prod

from tilewright.ir.core import Func, Op, insert_before, substitute
from tilewright.ir.sym import ZERO, Sym, ge0
from tilewright.ir.symbolic.prove import affine_in
from tilewright.loops.edit import (
    address_of,
    body_of,
    bound_in,
    buffer_type,
    describe,
    enclosing_loops,
    extent_of,
    insert_at,
    is_inside,
    kind_of,
    loop_var,
    new_if,
    refuse,
)
from tilewright.loops.primitive import primitive
from tilewright.target.target import LINE_BYTES

ASSUMED_EXTENT = 2
"""Iterations of a loop of unknown extent that prefetch: few, as there may be no more."""


@primitive
def prefetch(func: Func, load: Op, loop: Op, distance: int = 1, *, nearest: bool = False) -> list[Op]:
    """In each iteration of `loop`, prefetch what `load` reads `distance` iterations later: a share in each step within.

        for jo { for io in 0..8 { for k { S(B[jo, k, j]) } } }

    becomes, where an iteration reads 32 elements for each k,

        for jo { for io in 0..8 { for k { prefetch B[jo + 1, 0, 4*(K*io + k)]; S(B[jo, k, j]) } } }

    The steps are those of the innermost loops of which each step has a cache line to prefetch, if there are such; an
    iteration without loops within is one step. What is prefetched goes to L2, as L1 is to keep what is in use, or to
    the `nearest` cache.
    Results stay the same: the op is a hint, whose address may lie behind the end of the buffer. Returns the ops.
    ScheduleError where the buffer is not dense or belongs to one iteration, iterations do not read elements a constant
    distance apart, or the number of steps is not known or 0. That of the outermost loop within may be unknown: its
    first few iterations prefetch all of it, the others nothing, as that would come too early to stay.
    """
    buffer = load.operands[0]
    type = buffer_type(buffer)
    _check_known_before("prefetch", load, loop)
    if not type.is_dense:
        refuse("prefetch", buffer, "it is not dense")
    around = enclosing_loops(load)
    within = around[around.index(loop) + 1 :]
    steps = [o for o in within if kind_of(o) == "serial"]
    if not all(extent_of(o).is_const for o in steps[1:]):
        refuse("prefetch", loop, "the number of steps within an iteration is not known")
    moved = affine_in(address_of(load), loop_var(loop))
    if moved is None or not moved[0].is_const or moved[0].value <= 0:
        refuse(
            "prefetch",
            loop,
            f"its iterations do not read elements of {describe(buffer)} a constant distance apart",
        )
    line = max(1, LINE_BYTES // type.dtype.bytes)
    counts = [extent_of(o).value if extent_of(o).is_const else ASSUMED_EXTENT for o in steps]
    while len(steps) > 1 and moved[0].value < line * prod(counts):
        # requests for parts of a line cost as much as those for lines
        steps, counts = steps[:-1], counts[:-1]
    if 0 in counts:
        refuse("prefetch", loop, "nothing runs in its iterations")
    position = ZERO
    for o in steps:
        position = position * extent_of(o) + loop_var(o)
    share = -(-moved[0].value // prod(counts))
    first = {loop_var(o): ZERO for o in within} | {loop_var(loop): loop_var(loop) + distance}
    *outer, last = substitute(load.attrs["idx"], first)
    asked = [(*outer, last + share * position + n) for n in range(0, share, line)]
    ops = [_ask(load, idx, nearest) for idx in asked]
    known = not steps or extent_of(steps[0]).is_const
    asking = ops if known else [new_if([ge0(counts[0] - 1 - loop_var(steps[0]))], ops)]
    insert_at(body_of(steps[-1] if steps else loop), 0, asking)
    return ops


@primitive
def prefetch_run(func: Func, access: Op, loop: Op) -> list[Op]:
    """Before the innermost loop, a run of neighbours that `access` reads or writes, prefetch the run of the next
    iteration of `loop`.

        for io in 0..8 { for k { for j in 0..16 { y[k, 16*io + j] = S(k, j) } } }

    becomes

        for io in 0..8 { for k { prefetch y[k, 16*io + 16]; for j in 0..16 { y[k, 16*io + j] = S(k, j) } } }

    with one request to L2 for each line. Results stay the same: the op is a hint, whose address may
    lie behind the end of the buffer. Returns the ops. ScheduleError where the innermost loop is no run of a known
    number of elements, or is `loop` itself, or where each iteration has a buffer of its own.
    """
    buffer = access.operands[-1]
    _check_known_before("prefetch_run", access, loop)
    run = enclosing_loops(access)[-1]
    step = affine_in(address_of(access), loop_var(run))
    if run is loop or step is None or step[0] != 1 or not extent_of(run).is_const:
        refuse("prefetch_run", run, f"it is no run of elements of {describe(buffer)} within a loop")
    line = max(1, LINE_BYTES // buffer_type(buffer).dtype.bytes)
    following = {loop_var(run): ZERO, loop_var(loop): loop_var(loop) + 1}
    *outer, last = substitute(access.attrs["idx"], following)
    ops = [_ask(access, (*outer, last + n)) for n in range(0, extent_of(run).value, line)]
    insert_before(run, ops)
    return ops


def _check_known_before(step: str, access: Op, loop: Op) -> None:
    """What an iteration accesses must be known before it: a position that its data decides, or a buffer of its own, is
    not."""
    buffer = access.operands[-1]
    if not is_inside(access, loop):
        refuse(step, loop, f"the {access.name} of {describe(buffer)} is not in it")
    if buffer.op is not None and is_inside(buffer.op, loop):
        refuse(step, loop, f"each iteration has a {describe(buffer)} of its own")
    if frozenset[Sym]().union(*(i.vars for i in access.attrs["idx"])) & bound_in([loop]):
        refuse(step, loop, f"its data decides the position in {describe(buffer)}")


def _ask(access: Op, idx: tuple[Sym, ...], nearest: bool = False) -> Op:
    level = {"nearest": True} if nearest else {}
    return Op("prefetch", [access.operands[-1]], [], {"idx": idx, **level}, loc=access.loc)
