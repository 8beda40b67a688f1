"""Three stages of a loop at the same time: copies for the next iteration, this one's work, the drain of the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.core import Block, Func, Op, Value, insert_before
from tilewright.ir.sym import ONE, Sym, mod, sym
from tilewright.loops.analysis.deps import accesses, conflicts
from tilewright.loops.edit import (
    body_of,
    describe,
    extent_of,
    insert_after,
    is_in_run,
    kind_of,
    loop_var,
    names_in,
    put_ops,
    refuse,
    rename_vars,
    substitute_in,
    take_ops,
)
from tilewright.loops.machine.pipeline import DEPTH, doubled, movable_copies, redirect_to_slot
from tilewright.loops.primitive import primitive

STEP = "overlap"


@dataclass(frozen=True, eq=False)
class Overlapped:
    """The loop, the buffers of which it has two, the copies for the first iteration, and its work."""

    loop: Op
    buffers: list[Value]
    first: list[Op]
    work: list[Op]


@primitive
def overlap(func: Func, loop: Op, drain: Op) -> Overlapped:
    """Copy what the next iteration reads, and let `drain` and what follows it finish the last one, while the others of
    the loop's body work on this one.

        for k in 0..n { run copy on dma as t { a = C(k) }; wait t; p = S(a, k); run copy on out as u { T(p) }; wait u }

    becomes, with two of each of the buffers a and p,

        run copy as t { a0 = C(0) }; wait t
        run copy as t { a1 = C(1) }; p0 = S(a0, 0); wait t
        for k in 0..n - 2 { run T(p, k) as u; run copy as t { a = C(k + 2) }; p = S(a, k + 1); wait u, t }
        run T(p, n - 2) as u; p = S(a, n - 1); wait u
        run T(p, n - 1) as u; wait u

    Buffers of the body are allocated before the loop. ScheduleError when the loop is not serial or runs fewer than two
    times, when its stages meet in another buffer, or when nothing is copied for later.
    """
    body = body_of(loop)
    if kind_of(loop) != "serial" or "boustrophedon" in loop.attrs or is_in_run(loop):
        refuse(STEP, loop, "its iterations follow each other in no fixed order, or it is in a run")
    if not extent_of(loop).is_const or extent_of(loop).value < DEPTH:
        refuse(STEP, loop, f"it runs {extent_of(loop)} times, and not a known number of at least {DEPTH}")
    if drain.parent is not body:
        refuse(STEP, loop, f"{describe(drain)} does not stand in its body")
    stages = _Stages.of(loop, drain)
    stages.check()
    return _Rebuilding(func, loop, stages).run()


@dataclass(frozen=True, eq=False)
class _Stages:
    """The ops of a body by stage, its allocs, and the buffers of which two are needed."""

    loop: Op
    copies: dict[Op, Value]
    work: list[Op]
    drain: list[Op]
    allocs: list[Op]

    @classmethod
    def of(cls, loop: Op, drain: Op) -> _Stages:
        ops = body_of(loop).ops
        allocs = [op for op in ops if op.name == "alloc"]
        copies = movable_copies(STEP, loop)
        at = ops.index(drain)
        # what only the drain reads is copied with it
        early = {op: v for op, v in copies.items() if any(a.buffer is v for o in ops[:at] if o is not op
                                                          for a in accesses([o]))}  # fmt: skip
        if not early:
            refuse(STEP, loop, "nothing that is copied in it is read before the drain")
        late = [op for op in copies if op not in early and ops.index(op) < at]
        rest = [op for op in ops if op not in early and op not in allocs]
        work = [op for op in rest if ops.index(op) < at and op not in late]
        return cls(loop, early, work, [*late, *(op for op in rest if ops.index(op) >= at)], allocs)

    @property
    def crossing(self) -> list[Value]:
        """Buffers of the body that work writes and the drain uses."""
        before = {a.buffer for a in accesses(self.work)}
        after = {a.buffer for a in accesses(self.drain)}
        return [o.result for o in self.allocs if o.result in before & after]

    def check(self) -> None:
        copies, work, drain = accesses(list(self.copies)), accesses(self.work), accesses(self.drain)
        own, copied = {o.result for o in self.allocs}, set(self.copies.values())
        # what the work of an iteration computes is not there yet when copies for it start
        for first, second, between in ((copies, work, copied), (copies, drain, copied), (work, drain, own)):
            for a, _ in conflicts(first, second):
                if a.buffer not in between:
                    refuse(STEP, self.loop, f"{describe(a.buffer)} is used by two stages, and changed by one")
        tokens = {v for op in (*self.work, *self.copies) for v in op.results}
        for op in self.drain:
            if tokens & {v for o in op.walk() for v in o.operands}:
                refuse(STEP, self.loop, f"{describe(op)} waits for a run of another stage")


@dataclass
class _Rebuilding:
    """The new program."""

    func: Func
    loop: Op
    stages: _Stages

    def run(self) -> Overlapped:
        loop, stages = self.loop, self.stages
        self.names = names_in(self.func)
        self.k, n = loop_var(loop), extent_of(loop).value
        self.two = {old: doubled(old) for old in (*stages.copies.values(), *stages.crossing)}
        k = self.k
        take_ops(body_of(loop))
        _forget({run.result for run in stages.copies}, stages.work)
        stages.work[:] = [op for op in stages.work if op.name != "wait" or op.operands]
        first, worked = self.iteration(copied=sym(0)), self.iteration(copied=ONE, worked=sym(0))
        steady = self.iteration(drained=k, copied=k + 2, worked=k + 1)
        after = [
            *self.iteration(drained=sym(n - 2), worked=sym(n - 1)),
            *self.iteration(drained=sym(n - 1)),
        ]
        kept = [o for o in stages.allocs if o.result not in self.two]
        for op in (*stages.drain, *stages.work, *stages.copies):
            op.drop()
        for old in self.two:
            assert old.op is not None
            old.op.drop()
        new = [v.op for v in self.two.values() if v.op is not None]
        insert_before(loop, [*kept, *new, *first, *worked])
        insert_after(loop, after)
        if n == DEPTH:
            for op in steady:
                op.drop()
            loop.erase()
        else:
            put_ops(body_of(loop), steady)
            loop.attrs["extent"] = sym(n - DEPTH)
        return Overlapped(loop, list(self.two.values()), first, worked)

    def iteration(self, drained: Sym | None = None, copied: Sym | None = None, worked: Sym | None = None) -> list[Op]:
        """One of the new iterations: which old ones are drained, copied for and worked on in it."""
        values: dict[Value, Value] = {}
        stages = self.stages
        made: list[Op] = []
        held: list[Op] = []
        if drained is not None:
            last = len(stages.drain)
            while last and stages.drain[last - 1].name == "wait":
                last -= 1
            made += self.cloned(stages.drain[:last], drained, values)
            held = self.cloned(stages.drain[last:], drained, values)
        copies = [] if copied is None else self.cloned(list(stages.copies), copied, values)
        made += copies
        if worked is not None:
            made += self.cloned(stages.work, worked, values)
        made += held
        if copies:
            made.append(Op("wait", [op.result for op in copies]))
        return made

    def cloned(self, ops: Sequence[Op], at: Sym, values: dict[Value, Value]) -> list[Op]:
        block = Block()
        for op in ops:
            block.append(op.clone(values))
        made = take_ops(block)
        rename_vars(made, self.names)
        slot = _slot(at, self.k)
        for op in made:
            substitute_in(op, {self.k: at})
            for old in self.two:
                redirect_to_slot(op, old, self.two, slot)
        return made


def _slot(at: Sym, k: Sym) -> Sym:
    """Which of two buffers iteration `at` uses, in words of which the analysis knows that they differ."""
    if at.is_const:
        return sym(at.value % DEPTH)
    return mod(k, DEPTH) if (at - k).value % DEPTH == 0 else 1 - mod(k, DEPTH)


def _forget(tokens: set[Value], ops: Sequence[Op]) -> None:
    for op in [o for r in ops for o in r.walk() if tokens & set(o.operands)]:
        op.set_operands([v for v in op.operands if v not in tokens])
