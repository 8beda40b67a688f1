"""How fast a scheduled kernel computes beside the machine: in vectors, or one element after the other.

Each loop that is no vector issues what its iterations hold, and waits for the sums that go on from one iteration to the
next. The same operations in whole vectors, of which none waits, are what the machine could do at best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from tilewright.cost.core import issue_cycles
from tilewright.cost.elementwise import weighted_operations
from tilewright.cost.roofline import SCALAR, SLOW, is_below, is_worth_vectors
from tilewright.cost.typical import TypicalSizes
from tilewright.ir.core import Block, Func, Op
from tilewright.ir.diag import Remark
from tilewright.ir.scalar import COMPUTING
from tilewright.ir.sym import Sym
from tilewright.ir.types import BufferType, ScalarType
from tilewright.loops.counts import executions
from tilewright.loops.edit import body_of, enclosing_loops, extent_of, is_loop, kind_of, loop_var
from tilewright.schedule.steps.access import known, stride_in
from tilewright.target.target import Target

STAGE = "roofline"
"""Of the remarks on kernels that do little of what the machine could."""

OWN_LOOPS = ("the operator has loops of its own", "another operator, or fewer elements")
"""Why a kernel is slow that no schedule is for, and what would change it."""

_IN_AN_ITERATION = ("vector", "dot", "unroll")


@dataclass(frozen=True, eq=False)
class Pace:
    """Cycles of a scheduled kernel on one core, if all data are near, those that its operations would take in whole
    vectors, and the loop that loses most (None: what is in no loop)."""

    cycles: float
    best: float
    worst: Op | None

    def is_below(self, share: float) -> bool:
        """Whether the kernel does less than a share of what the machine could, and loses enough to tell of."""
        return is_below(self.cycles, self.best, share)

    @property
    def loop(self) -> str:
        """Which loop is worst, in words."""
        if self.worst is None:
            return "what is in no loop"
        return f"loop '{loop_var(self.worst).name}' of {extent_of(self.worst)} iterations"


@dataclass(eq=False)
class _Issue:
    """What the iterations of one loop (None: outside of all) issue together: as they are, and in whole vectors."""

    loop: Op | None
    operations: list[float] = field(default_factory=lambda: [0.0, 0.0])
    loads: list[float] = field(default_factory=lambda: [0.0, 0.0])
    stores: list[float] = field(default_factory=lambda: [0.0, 0.0])
    waits: float = 0.0

    def cycles(self, target: Target, best: bool) -> float:
        waits = 0.0 if best else self.waits
        return issue_cycles(self.operations[best], self.loads[best], self.stores[best], waits, target)


def pace_of(func: Func, target: Target, sizes: TypicalSizes) -> Pace:
    """The cycles of a kernel for usual sizes, those of its operations in whole vectors, and its worst loop."""
    return _Walk(func, target, sizes).pace()


class _Walk:
    def __init__(self, func: Func, target: Target, sizes: TypicalSizes) -> None:
        names = [d.name for d in func.dims]
        self.target = target
        self.dims: Mapping[str, int] = dict(zip(names, sizes.medium(func.dims), strict=True))
        self.times = executions(func)
        self.found: list[_Issue] = []
        self._block(func.body, [], _Issue(None))

    def pace(self) -> Pace:
        loops = [(i, i.cycles(self.target, False), i.cycles(self.target, True)) for i in self.found]
        worst = max(loops, key=lambda found: found[1] - found[2], default=None)
        return Pace(sum(c for _, c, _ in loops), sum(b for _, _, b in loops), None if worst is None else worst[0].loop)

    def _block(self, block: Block, around: list[Op], issue: _Issue) -> None:
        """Count the ops of a block, which are in the loops `around`, all inside of the loop of `issue`."""
        if issue not in self.found:
            self.found.append(issue)
        for op in block.ops:
            if is_loop(op):
                within = kind_of(op) in _IN_AN_ITERATION
                inner = issue if within else _Issue(op)
                self._block(body_of(op), [*around, op] if within else [op], inner)
            elif op.name in ("if", "run"):
                if self._may_run(op):
                    self._block(body_of(op), around, issue)
            else:
                self._count(op, around, issue)

    def _may_run(self, op: Op) -> bool:
        """Whether a condition on sizes alone holds for usual ones."""
        known = [c for c in op.attrs.get("guard", ()) if all(v.name in self.dims for v in c.vars)]
        return all(_holds(c, self.dims) for c in known)

    def _count(self, op: Op, around: list[Op], issue: _Issue) -> None:
        is_access = op.name in ("load", "store")
        if not is_access and op.name not in COMPUTING:
            return
        times = _evaluated(self.times[op], self.dims)
        group = prod(extent_of(o).value for o in around if kind_of(o) == "dot")
        lanes = prod(_lanes(op, o, group) for o in around if kind_of(o) == "vector")
        bits = self.target.vector_bits
        size = max((8 * t.dtype.bytes for v in (*op.results, *op.operands) if (t := _element(v.type))), default=32)
        full = max(1, bits // size)
        weight = 1 if is_access else weighted_operations([op.name])
        counted = issue.operations if not is_access else issue.loads if op.name == "load" else issue.stores
        counted[False] += weight * times / (min(lanes, full) * group)
        counted[True] += weight * times / (full * group)
        if op.name == "store" and (iterations := self._waits(op, issue.loop, times, around)):
            issue.waits = max(issue.waits, iterations)

    def _waits(self, store: Op, loop: Op | None, times: float, around: list[Op]) -> float:
        """Iterations of the loop that add to what the one before has stored."""
        if loop is None or stride_in(store, loop_var(loop)) != 0 or not _adds(store):
            return 0.0
        for inner in around[1:]:
            times /= extent_of(inner).value
        return times


def _lanes(op: Op, loop: Op, group: int) -> int:
    """Elements that an instruction of a vector loop treats: one at a time where they, or groups of them, lie apart in
    memory."""
    apart = op.name in ("load", "store") and stride_in(op, loop_var(loop)) not in (0, 1, group)
    return 1 if apart else int(extent_of(loop).value)


def _adds(store: Op) -> bool:
    """Whether it stores something that is computed of what lies there."""
    made, idx = store.operands[0].op, store.attrs["idx"]
    loads = (v.op for v in made.operands) if made is not None else ()
    return any(
        o is not None and o.name == "load" and o.operands[0] is store.operands[1] and o.attrs["idx"] == idx
        for o in loads
    )


def _element(type: object) -> ScalarType | BufferType | None:
    return type if isinstance(type, ScalarType) else None


def _evaluated(size: Sym, dims: Mapping[str, int]) -> float:
    try:
        return float(max(0, size.evaluate(dims)))
    except (KeyError, ZeroDivisionError):  # of what only data say
        return 1.0


def _holds(condition: Sym, dims: Mapping[str, int]) -> bool:
    try:
        return bool(condition.evaluate(dims))
    except ZeroDivisionError:
        return True


# What users hear


def slow_kernel(func: Func, target: Target, sizes: TypicalSizes, *, is_ours: bool) -> Remark | None:
    """What is to be said of a kernel that does less than a tenth of what the machine could: why, what it loses, and
    what would change it. A kernel that computes single elements though its operands allow vectors is a warning, where
    its loops are ours: not an operator's own, nor what the steps of a user made."""
    if not has_scalar_loops(func):
        return None
    pace = pace_of(func, target, sizes)
    if not pace.is_below(SCALAR):
        return None
    allowed = is_ours and pace.worst is not None and allows_vectors(pace.worst)
    if not allowed and not pace.is_below(SLOW):
        return None
    why, change = _why_slow(pace, allowed) if is_ours else OWN_LOOPS
    message = (
        f"about {100 * pace.best / pace.cycles:.1f} % of what the machine could do: {pace.loop} computes one element "
        f"at a time, as {why}; {pace.cycles - pace.best:,.0f} of {pace.cycles:,.0f} cycles are lost; "
        f"what would change it: {change}"
    )
    return Remark(STAGE, func.name, message, "warning" if allowed else "missed")


def _why_slow(pace: Pace, allowed: bool) -> tuple[str, str]:
    """The reason, and what would change it."""
    if not allowed:
        why = "its elements lie apart in memory, or one follows from the one before"
        return why, "another layout of the tensors, or another operator"
    if pace.worst is not None and not extent_of(pace.worst).is_const:
        return "no schedule makes vectors of it for all sizes", "sizes that are known (`frequent=`)"
    return "no schedule makes vectors of it, though its operands allow them", "a report of the model to us"


def allows_vectors(loop: Op) -> bool:
    """Whether some loop around what a loop computes could be a vector: all accesses are contiguous in it, or stay where
    they are, and no iteration needs another one but for a sum."""
    accesses = [op for op in body_of(loop).walk() if op.name in ("load", "store")]
    if any(op.name in ("bind", "check", "run") for op in body_of(loop).walk()):
        return False
    stores = [op for op in accesses if op.name == "store"]
    for store in stores:
        others = (o for o in accesses if o.name == "load" and o.operands[0] is store.operands[1])
        if any(o.attrs["idx"] != store.attrs["idx"] for o in others):
            return False
    return any(_is_contiguous_in(o, accesses) for o in (loop, *enclosing_loops(loop)))


def _is_contiguous_in(loop: Op, accesses: list[Op]) -> bool:
    if not is_worth_vectors(known(extent_of(loop))):
        return False
    strides = [stride_in(op, loop_var(loop)) for op in accesses]
    if not all(s is not None and s in (0, 1) for s in strides):
        return False
    return all(s == 1 or _adds(op) for s, op in zip(strides, accesses, strict=True) if op.name == "store")


def has_scalar_loops(func: Func) -> bool:
    """Whether some loop computes one element at a time, or stores lanes apart."""
    return _holds_scalars(func.body, [])


def _holds_scalars(block: Block, vectors: list[Op]) -> bool:
    """Whether a block in the `vectors` has a store in some loop that no vector makes contiguous."""
    for op in block.ops:
        if op.blocks:
            is_vector = is_loop(op) and kind_of(op) in ("vector", "dot")
            if _holds_scalars(op.blocks[0], [*vectors, op] if is_vector else vectors):
                return True
        elif op.name == "store" and enclosing_loops(op) and not any(_is_contiguous(op, o) for o in vectors):
            return True
    return False


def _is_contiguous(store: Op, loop: Op) -> bool:
    return kind_of(loop) == "dot" or stride_in(store, loop_var(loop)) == 1
