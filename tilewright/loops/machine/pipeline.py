"""Double buffers: while an iteration computes, what the next one reads is copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.core import Block, Func, Op, Value, insert_before
from tilewright.ir.sym import Sym, mod, sym
from tilewright.ir.types import buffer as dense
from tilewright.loops.analysis.deps import accesses, conflicts
from tilewright.loops.edit import (
    TakenNames,
    block_of,
    body_of,
    buffer_type,
    describe,
    extent_of,
    insert_after,
    is_in_run,
    kind_of,
    loop_var,
    names_in,
    places_of,
    put_ops,
    refuse,
    rename_vars,
    substitute_in,
    take_ops,
)
from tilewright.loops.machine.copies import copy_in
from tilewright.loops.primitive import primitive

STEP = "pipeline"
DEPTH = 2
"""Buffers of a pipelined copy. A token is seen in the iteration that starts the run and no further, so that a copy ends
with the iteration before the one that reads it: a third buffer would hide nothing more. Longer transfers hide as well:
split the loop, and pipeline the outer one."""


@dataclass(frozen=True, eq=False)
class Pipelined:
    """The loop, the buffers with an axis of two in front, and what stands after the loop."""

    loop: Op
    buffers: list[Value]
    epilogue: list[Op]


@primitive
def pipeline(func: Func, loop: Op, depth: int = DEPTH) -> Pipelined:
    """Copy what the next iteration reads while this one computes.

        for k in 0..n { alloc a[m]; run copy on dma as t { a = S(k) }; wait t; T(a, k) }

    becomes

        alloc a[2, m]
        run copy on dma as t { a[0] = S(0) }; wait t
        for k in 0..n - 1 { run copy on dma as t { a[1 - k % 2] = S(k + 1) }; T(a[k % 2], k); wait t }
        T(a[(n - 1) % 2], n - 1)

    All copies on queues into buffers of the loop's body that nothing else writes are taken. ScheduleError when there
    are none, when the loop is not serial or may run no time, when something in it writes what they read, when they wait
    for other runs, or for another depth than 2.
    """
    if depth != DEPTH:
        refuse(STEP, loop, f"depth={depth}: a copy has two buffers, one that is read and one that is filled")
    if kind_of(loop) != "serial" or "boustrophedon" in loop.attrs:
        refuse(STEP, loop, f"its iterations follow each other in no fixed order: it is a {kind_of(loop)} loop")
    if is_in_run(loop):
        refuse(STEP, loop, "it is in a run")
    least = extent_of(loop).bounds[0]
    if least is None or least < 1:
        refuse(STEP, loop, "it may run no time at all")
    copies = movable_copies(STEP, loop)
    allocs = {v.op for v in copies.values()}
    rest = [o for o in body_of(loop).ops if o not in copies and o not in allocs]
    _check(loop, copies, rest)
    return _rebuild(func, loop, copies, rest)


def movable_copies(step: str, loop: Op) -> dict[Op, Value]:
    """The runs that copy on queues into buffers of the loop's body, and these buffers; where some of them copy what is
    computed in the same iteration, the others."""
    body = body_of(loop)
    found: dict[Op, Value] = {}
    for op in body.ops:
        copy = copy_in(body_of(op).ops) if op.name == "run" and op.results else "no run"
        if isinstance(copy, str) or copy.target.op is None or copy.target.op.parent is not body:
            continue
        if [o for o in copy.target.users if o.name != "load"] == [copy.store]:
            found[op] = copy.target
    if not found:
        refuse(step, loop, "no run in it copies into a buffer of its own, which is allocated in the loop")
    early = {run: v for run, v in found.items() if not run.operands and not _reads_own(run, body)}
    return early or found


def _reads_own(run: Op, body: Block) -> bool:
    return any(a.buffer.op is not None and a.buffer.op.parent is body for a in accesses(run) if not a.write)


def _check(loop: Op, copies: dict[Op, Value], rest: Sequence[Op]) -> None:
    for run in copies:
        if run.operands:
            refuse(STEP, loop, "a copy in it waits for other runs")
        reads = [a for a in accesses(run) if not a.write]
        for a in reads:
            if a.buffer.op is not None and block_of(a.buffer.op) is body_of(loop):
                refuse(STEP, loop, f"{describe(a.buffer)}, which is copied, is computed in the same iteration")
        for a, _ in conflicts(reads, accesses(list(rest))):
            refuse(STEP, loop, f"{describe(a.buffer)}, which is copied, is written in the loop")


def _rebuild(func: Func, loop: Op, copies: dict[Op, Value], rest: list[Op]) -> Pipelined:
    k, n = loop_var(loop), extent_of(loop)
    buffers = {old: doubled(old) for old in copies.values()}
    tokens = {run.result for run in copies}
    names = names_in(func)
    take_ops(body_of(loop))
    for op in [o for r in rest for o in r.walk() if tokens & set(o.operands)]:
        op.set_operands([v for v in op.operands if v not in tokens])
    rest = [op for op in rest if op.name != "wait" or op.operands]
    prologue, started = _clone(list(copies), {k: sym(0)}, names)
    for clone, run in zip(started, copies, strict=True):
        redirect_to_slot(clone, copies[run], buffers, sym(0))
    for run in copies:
        substitute_in(run, {k: k + 1})
        redirect_to_slot(run, copies[run], buffers, 1 - mod(k, DEPTH))
    for op in rest:
        for old in copies.values():
            redirect_to_slot(op, old, buffers, mod(k, DEPTH))
    epilogue, _ = _clone(rest, {k: n - 1}, names)
    prologue.append(Op("wait", [run.result for run in started]))
    allocs = [v.op for v in buffers.values() if v.op is not None]
    for old in copies.values():
        assert old.op is not None
        old.op.drop()
    put_ops(body_of(loop), [*copies, *rest, Op("wait", [run.result for run in copies])])
    loop.attrs["extent"] = n - 1
    insert_before(loop, [*allocs, *prologue])
    insert_after(loop, epilogue)
    return Pipelined(loop, list(buffers.values()), epilogue)


def doubled(old: Value) -> Value:
    """A buffer with room for two of `old`, in an axis in front."""
    type = buffer_type(old)
    alloc = Op("alloc", [], [dense(type.dtype, (DEPTH, *type.shape), type.space)])
    alloc.result.name = old.name
    return alloc.result


def _clone(ops: Sequence[Op], variables: dict[Sym, Sym], names: TakenNames) -> tuple[list[Op], list[Op]]:
    """Copies of ops with values for variables, and with loops of their own; twice, as a list to add to."""
    block = Block()
    values: dict[Value, Value] = {}
    for op in ops:
        block.append(op.clone(values))
    made = take_ops(block)
    rename_vars(made, names)
    for op in made:
        substitute_in(op, variables)
    return made, list(made)


def redirect_to_slot(root: Op, old: Value, buffers: dict[Value, Value], slot: Sym) -> None:
    """Use one of the two buffers in the place of `old` in `root`."""
    inside = set(root.walk())
    for op in [o for o in places_of(old) if o in inside]:
        op.set_operands([*op.operands[:-1], buffers[old]])
        op.attrs["idx"] = (slot, *op.attrs["idx"])
