"""Computing an intermediate buffer where it is used, just the part that is used there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.scalar import scalar_operation
from tilewright.ir.sym import Sym, ge0, maximum, minimum
from tilewright.loops.analysis.bounds import Box, Ranges, holds
from tilewright.loops.analysis.deps import Access, accesses, written_buffers
from tilewright.loops.analysis.region import in_bounds, new_tile, redirect, refuse_in_vector, region_of
from tilewright.loops.edit import (
    ancestor_in,
    base_name,
    block_of,
    body_of,
    bound_in,
    buffer_type,
    describe,
    enclosing_loops,
    extent_of,
    fresh_bound,
    fresh_var,
    holds_parallel,
    insert_at,
    is_inside,
    is_loop,
    kind_of,
    loop_range,
    loop_var,
    names_in,
    new_if,
    put_ops,
    ranges_of,
    refuse,
    substitute_in,
    take_ops,
    vars_read,
)
from tilewright.loops.primitive import primitive

STEP = "compute_at"


@dataclass(frozen=True, eq=False)
class Fused:
    """What `compute_at` made: the small buffer, the nests that fill it, and for each loop of the producers its
    copy."""

    buffer: Value
    nests: list[Op] = field(default_factory=list)
    copies: dict[Op, Op] = field(default_factory=dict)


@primitive
def compute_at(func: Func, buffer: Value, loop: Op, space: str = "scratch", guard: str = "if") -> Fused:
    """Compute what one iteration of `loop` reads of `buffer` at the start of that iteration, in a smaller
    buffer.

        t = alloc f32[n]
        for i in 0..n { t[i] = S(i) }
        for jo in 0..n // 8 { for ji in 0..8 { y[8*jo + ji] = T(t[8*jo + ji]) } }

    becomes

        for jo in 0..n // 8 {
          t1 = alloc f32[8]
          for i in 0..8 { t1[i] = S(8*jo + i) }
          for ji in 0..8 { y[8*jo + ji] = T(t1[ji]) }
        }

    The producers are the nests before `loop` that write `buffer`, which must index it by their own loop
    variables. They are copied; the originals go when nobody else reads the buffer, so a buffer with
    several consumers is fused into one after the other. Where the region may reach beyond what the
    producers compute, guard="if" puts a condition around their bodies and guard="loads" around their
    loads only (the surplus elements are then computed from any values and never read; where they are read
    for surplus elements of another buffer, that load needs no condition any more; refused where an
    earlier producer computes them). With guard="shift" there are no conditions: a region that reaches
    beyond the buffer is moved into it, as what lies outside of it is never read. ScheduleError when the
    buffer is an argument, when a producer also writes something else or reads what is written in between,
    when the nest of `loop` writes the buffer as well, when a producer reads registers that the threads of
    a parallel loop around its new place do not have, or when the region is not known.
    """
    refuse_in_vector(STEP, buffer, [*enclosing_loops(loop), loop])
    alloc = buffer.op
    if alloc is None or alloc.name != "alloc":
        refuse(
            STEP, buffer, "it is an argument of the kernel; use cache_write to compute it in a buffer first"
        )
    if space == "reg" and holds_parallel(loop) and kind_of(loop) != "parallel":
        refuse(STEP, buffer, f"threads share a loop in {describe(loop)}, and have registers of their own")
    home = block_of(alloc)
    anchor = ancestor_in(loop, home)
    if anchor is None:
        refuse(STEP, buffer, f"it is not allocated outside of {describe(loop)}")
    stages = _producers(buffer, home.ops[: home.ops.index(anchor)])
    if any(map(holds_parallel, stages)):
        refuse(STEP, buffer, "its producer is parallel already; compute_at before that")
    _check_registers(buffer, stages, loop, anchor)
    reads = _reads(buffer, loop)
    if buffer in written_buffers(accesses(anchor)):
        refuse(STEP, buffer, f"{describe(anchor)}, which holds the loop, writes it as well")
    _check_between(buffer, stages, home.ops[home.ops.index(stages[0]) : home.ops.index(anchor) + 1])
    around = ranges_of([*enclosing_loops(loop), loop])
    region = region_of(STEP, buffer, reads, around)
    if guard == "shift":
        region = _shifted(region, buffer_type(buffer).shape, around)
    made = _Fusion(func, buffer, loop, region, space, guard).run(stages)
    for access in reads:
        redirect(access.op, made.buffer, region.start)
        if guard == "loads":
            _drop_spare_guard(access.op)
    _drop_if_unread(buffer, stages)
    return made


def _shifted(region: Box, shape: Sequence[Sym], around: Ranges) -> Box:
    """The region moved to where it lies within a buffer of this shape, and cut to its size."""
    starts: list[Sym] = []
    sizes: list[Sym] = []
    for start, size, n in zip(region.start, region.sizes, shape, strict=True):
        sizes.append(minimum(size, n))
        inside = holds(ge0(start), around) and holds(ge0(n - start - sizes[-1]), around)
        starts.append(start if inside else maximum(0, minimum(start, n - sizes[-1])))
    return Box(tuple(starts), tuple(sizes))


def _producers(buffer: Value, before: Sequence[Op]) -> list[Op]:
    stages = [op for op in before if buffer in written_buffers(accesses(op))]
    if not stages:
        refuse(STEP, buffer, "nothing before the loop writes it")
    for op in stages:
        if not is_loop(op) and op.name != "store":
            refuse(STEP, buffer, f"its producer {describe(op)} is not a loop nest")
        others = written_buffers(accesses(op)) - {buffer} - {o.result for o in op.walk() if o.name == "alloc"}
        for other in others:
            refuse(STEP, buffer, f"its producer {describe(op)} also writes {describe(other)}")
    return stages


def _reads(buffer: Value, loop: Op) -> list[Access]:
    found = [a for a in accesses(body_of(loop)) if a.buffer is buffer]
    if not found:
        refuse(STEP, buffer, f"{describe(loop)} does not read it")
    for a in found:
        if a.write:
            refuse(STEP, buffer, f"{describe(loop)} writes it as well")
    return found


def _check_between(buffer: Value, stages: Sequence[Op], between: Sequence[Op]) -> None:
    """Nothing that a producer reads may change before its new place."""
    needed = {a.buffer for op in stages for a in accesses(op)} - {buffer}
    for op in between:
        changed = set() if op in stages else written_buffers(accesses(op)) & needed
        for other in changed:
            refuse(STEP, buffer, f"{describe(op)} changes {describe(other)}, which its producer reads")


def _check_registers(buffer: Value, stages: Sequence[Op], loop: Op, anchor: Op) -> None:
    """What the producers read must be there where they go: each thread has registers of its own."""
    inside = [*enclosing_loops(loop), loop]
    if not any(kind_of(o) == "parallel" and (o is anchor or is_inside(o, anchor)) for o in inside):
        return
    for op in stages:
        own = {o.result for o in op.walk() if o.name == "alloc"} | {buffer}
        for a in accesses(op):
            if a.buffer not in own and buffer_type(a.buffer).space == "reg":
                refuse(
                    STEP,
                    buffer,
                    f"its producer uses registers, {describe(a.buffer)}, which other threads lack",
                )


def _drop_if_unread(buffer: Value, stages: Sequence[Op]) -> None:
    inside = {id(o) for op in stages for o in op.walk()}
    if all(id(user) in inside for user in buffer.users):
        for op in stages:
            op.erase()
        assert buffer.op is not None
        buffer.op.erase()


class _Fusion:
    """State of one fusion: where the copies go and what is restricted."""

    def __init__(self, func: Func, buffer: Value, loop: Op, region: Box, space: str, guard: str) -> None:
        if guard not in ("if", "loads", "shift"):
            refuse(STEP, buffer, f"guard '{guard}' is neither 'if' nor 'loads' nor 'shift'")
        self.old = buffer
        self.loop = loop
        self.region = region
        self.guard = guard
        self.names = names_in(func)
        self.around = ranges_of([*enclosing_loops(loop), loop])
        self.new = new_tile(STEP, buffer, region.sizes, space)
        # of the loops that ran over each axis in producers before; None stands for a fixed index
        self.extents: dict[int, set[Sym | None]] = {axis: set() for axis in range(len(region.sizes))}

    def run(self, stages: Sequence[Op]) -> Fused:
        made = Fused(self.new)
        try:
            for stage in stages:
                axes = self._axes(stage)
                made.nests.append(stage.clone({}))
                self._adapt(stage, made.nests[-1], axes, made.copies)
        except ScheduleError:
            for nest in made.nests:  # a copy that is not used must not stay among the users of what it reads
                nest.drop()
            raise
        assert self.new.op is not None
        insert_at(body_of(self.loop), 0, [self.new.op, *made.nests])
        return made

    def _adapt(self, stage: Op, copy: Op, axes: dict[Op, int], copies: dict[Op, Op]) -> None:
        """Make a fresh copy of a producer fill the small buffer."""
        mapping: dict[Sym, Sym] = {}
        pairs = list(zip(stage.walk(), copy.walk(), strict=True))
        conditions: dict[Sym, list[Sym]] = {}  # new variable -> what keeps it inside of the producer's domain
        for old, new in pairs:
            if is_loop(old):
                copies[old] = new
                if old in axes:
                    self._restrict(old, new, axes[old], mapping, conditions)
                else:
                    mapping[loop_var(old)] = fresh_var(self.names, base_name(loop_var(old)), extent_of(old))
            elif old.name == "bind":
                mapping[old.attrs["var"]] = fresh_bound(self.names, old.attrs["var"])
        substitute_in(copy, mapping)
        for old, new in pairs:
            if old.name in ("for", "bind") and old not in axes:
                new.attrs["var"] = mapping[old.attrs["var"]]
            elif old.name in ("load", "store") and new.operands[-1] is self.old:
                redirect(new, self.new, self.region.start)
        self._check_surplus(axes, copies, conditions)
        self._protect([copies[old] for old in axes], copy, conditions)

    def _axes(self, stage: Op) -> dict[Op, int]:
        """The loops of a producer that run over the axes of the buffer."""
        loops = {loop_var(o): o for o in stage.walk() if is_loop(o)}
        axes: dict[Op, int] = {}
        for access in accesses(stage):
            if access.buffer is not self.old:
                continue
            for axis, i in enumerate(access.idx):
                if i.is_const:
                    self._check_fixed(axis, i)
                    continue
                loop = loops.get(i)
                if loop is None or axes.setdefault(loop, axis) != axis:
                    refuse(
                        STEP, self.old,
                        f"its producer uses index {i} on axis {axis}; it must be a loop variable of its own",
                    )  # fmt: skip
        return axes

    def _check_fixed(self, axis: int, i: Sym) -> None:
        """A producer that fills one fixed index must be wanted at just this index."""
        offset = i - self.region.start[axis]
        inside = (ge0(offset), ge0(self.region.sizes[axis] - 1 - offset))
        if not all(holds(c, self.around) for c in inside):
            refuse(
                STEP,
                self.old,
                f"its producer writes index {i} of axis {axis}, which is not always in the part read",
            )

    def _restrict(
        self, old: Op, new: Op, axis: int, mapping: dict[Sym, Sym], conditions: dict[Sym, list[Sym]]
    ) -> None:
        """Let the loop of an axis run over the region only."""
        start, size = self.region.start[axis], self.region.sizes[axis]
        v = fresh_var(self.names, base_name(loop_var(old)), size)
        position = start + v
        mapping[loop_var(old)] = position
        new.attrs["var"], new.attrs["extent"] = v, size
        ranges: Ranges = {**self.around, v: loop_range(new)}
        limits = [ge0(position), ge0(extent_of(old).subs(mapping) - 1 - position)]
        conditions[v] = [c for c in limits if holds(c, ranges) is not True]

    def _check_surplus(
        self, axes: dict[Op, int], copies: dict[Op, Op], conditions: dict[Sym, list[Sym]]
    ) -> None:
        """Surplus elements of a producer may not be those that one before it, or a loop before it, computes."""
        for old, axis in axes.items():
            before = self.extents[axis] - {extent_of(old)}
            if self.guard != "if" and before and conditions[loop_var(copies[old])]:
                refuse(
                    STEP, self.old,
                    f"guard='{self.guard}' is not possible, as {describe(old)} runs over another part of axis {axis} "
                    "than a producer before it",
                )  # fmt: skip
            self.extents[axis].add(extent_of(old))
        for axis in set(self.extents) - set(axes.values()):
            self.extents[axis].add(None)

    def _protect(self, restricted: Sequence[Op], copy: Op, conditions: dict[Sym, list[Sym]]) -> None:
        """Keep positions outside of the producer's domain from being computed."""
        if not any(conditions.values()):
            return
        if self.guard == "if":
            self._put_conditions(restricted, copy, conditions)
            return
        ranges = self.around | {loop_var(op): loop_range(op) for op in copy.walk() if is_loop(op)}
        limited = {v for v, listed in conditions.items() if listed}
        moved = set[Op]()  # what is computed from positions that may be outside
        for op in copy.walk():
            if op.blocks:
                continue
            if limited.isdisjoint(vars_read([op])) and not any(v.op in moved for v in op.operands):
                continue
            moved.add(op)
            limited |= bound_in([op])
            if op.name in ("check", "bind") or (scalar_operation(op).divides and op.result.scalar.dtype.is_int):
                refuse(STEP, self.old, f"guard='loads' is not possible, as its producer has a '{op.name}'")
            if op.name == "load" and op.operands[0] is not self.new:
                used = frozenset[Sym]().union(*(i.vars for i in op.attrs["idx"]))
                own = tuple(c for v, listed in conditions.items() if v in used for c in listed)
                if own and not _stays_in_bounds(op, ranges):
                    op.attrs["guard"] = (*own, *op.attrs.get("guard", ()))

    def _put_conditions(self, restricted: Sequence[Op], copy: Op, conditions: dict[Sym, list[Sym]]) -> None:
        """Conditions in the innermost of the loops over axes, of which all that is computed is inside."""
        inside = {o: set(body_of(o).walk()) for o in restricted}
        leaves = [o for o in restricted if not inside[o].intersection(restricted)]
        for op in copy.walk():
            if op.name == "store" and not any(op in inside[leaf] for leaf in leaves):
                refuse(STEP, self.old, "its producer stores beside the innermost loop over its axes")
        for leaf in leaves:
            around = [o for o in restricted if o is leaf or leaf in inside[o]]
            needed = tuple(c for o in around for c in conditions[loop_var(o)])
            if needed:
                put_ops(body_of(leaf), [new_if(needed, take_ops(body_of(leaf)))])


def _drop_spare_guard(load: Op) -> None:
    """A load that may give any value where its condition does not hold gives what the tile holds there: it has that
    element, and all of its elements are computed."""
    if "other" not in load.attrs:
        load.attrs.pop("guard", None)


def _stays_in_bounds(load: Op, ranges: Ranges) -> bool:
    """Whether a load has conditions of its own that keep it inside of the buffer, as those of padding do."""
    guard = load.attrs.get("guard", ())
    if "other" not in load.attrs:
        return False
    return set(in_bounds(load.attrs["idx"], buffer_type(load.operands[0]).shape, ranges)) <= set(guard)
