"""Whether iterations that threads share touch one element that one of them writes. It is proved from the indices where
they tell; else the interpreter of loops runs the iterations, from both ends and then in any order, and each element of
what is shared has an owner. Iterations of a loop that is marked as `overlap` may write an element again that another
one has written, where that changes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.core import Block, Func, Op
from tilewright.ir.diag import ExecutionError, InternalError
from tilewright.ir.dtype import DType
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.order.parallel import is_independent
from tilewright.ops.define.bodies import evaluate_sym
from tilewright.ops.define.loop_programs import Elements, Run, View
from tilewright.validation.values import TooLong

SECONDS = 1.0
"""Of processor time, for one kernel."""

FIRST = 3
"""Iterations at each end that run before the others."""

MOST_WORK = 1 << 21
"""Operations of a kernel up to which iterations that overlap run: most kernels that have such loops take long."""

SAME = 1e-3
"""The part by which a float may differ that another iteration has computed."""

MOST_ELEMENTS = 1 << 24
"""Of all buffers of a kernel whose iterations run: each element has two owners of eight bytes."""

NOBODY, SEVERAL = -1, -2
"""Who read or wrote an element, in the place of the number of an iteration."""


class _Race(Exception):
    """Two iterations meet."""


@dataclass
class Races:
    """What is known of the parallel loops of a kernel: `wrong` says where iterations meet, or a buffer is left; ""
    where none do. Loops are `proved`, or `tried` on all iterations of a call; of the others some were `left`."""

    wrong: str = ""
    proved: int = 0
    tried: int = 0
    left: int = 0


@dataclass
class _Owners:
    """Which iteration wrote, and which read, each element of memory that was there before the loop."""

    memory: np.ndarray
    written: np.ndarray = field(init=False)
    read: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.written = np.full(self.memory.size, NOBODY, np.int64)
        self.read = np.full(self.memory.size, NOBODY, np.int64)

    def touch(self, at: np.ndarray, iteration: int, writes: bool) -> np.ndarray:
        """Where somebody else is in the way."""
        wrote, read = self.written[at], self.read[at]
        others = (wrote != NOBODY) & (wrote != iteration)
        if writes:
            others |= (read != NOBODY) & (read != iteration)
            self.written[at] = iteration
        else:
            self.read[at] = np.where((read == NOBODY) | (read == iteration), iteration, SEVERAL)
        return np.asarray(others)


@dataclass
class _Touch:
    """Elements that an iteration reads or writes. `before` is what was there, `changes` where that is not the same any
    more; None of what may not be there twice anyway."""

    memory: Elements
    at: np.ndarray
    writes: bool
    before: np.ndarray | None = None
    changes: np.ndarray | None = None


class _Watched(Run):
    """Runs the iterations of parallel loops that nothing is proved of, and notes which elements each touches."""

    def __init__(self, env: dict[str, Any], deadline: float, proved: set[Op]) -> None:
        super().__init__(env)
        self.deadline, self.proved = deadline, proved
        self.loop, self.overlaps = "", False
        self.iteration = NOBODY
        self.owners: dict[int, _Owners] = {}
        self.touches: list[_Touch] = []  # of statements that have not ended

    def op(self, op: Op) -> None:
        if time.thread_time() > self.deadline:
            raise TooLong
        if self.loop or not _is_shared(op) or op in self.proved:
            super().op(op)
            self._end(op)
        else:
            self._shared(op)

    def _end(self, op: Op) -> None:
        """Look at what a statement has touched; at what is tried as lanes when all of it has run."""
        last = self.touches[-1] if self.touches else None
        if op.name == "store" and last is not None and last.before is not None:
            last.changes = ~_same(last.before, last.memory.flat[last.at])
        if not self.speculating:
            self._look()

    def _look(self) -> None:
        touches, self.touches = self.touches, []
        for t in touches:
            others = self.owners[id(t.memory.flat)].touch(t.at, self.iteration, t.writes)
            if (others if t.changes is None else others & t.changes).any():
                raise _Race(f"two iterations of the parallel loop '{self.loop}' meet in '{t.memory.name}'")

    def _speculate(self, block: Block, extents: Mapping[str, int]) -> bool:
        done = super()._speculate(block, extents)
        if done:
            self._look()
        self.touches = []  # of what is run again, one by one
        return done

    def _shared(self, op: Op) -> None:
        extent = int(evaluate_sym(op.attrs["extent"], self.env))
        self.loop, self.overlaps = op.attrs["var"].name, bool(op.attrs.get("overlap"))
        self.owners = {id(memory.flat): _Owners(memory.flat) for memory in self.memory.values()}
        for i in _from_both_ends(extent):
            self.iteration = self.env[self.loop] = i
            self.block(op.blocks[0])
        self.loop, self.owners = "", {}

    def _views_of(
        self, block: Block, elements: Mapping[str, int], terms: Mapping[str, int]
    ) -> dict[Op, View] | None:  # fmt: skip
        found = super()._views_of(block, elements, terms)
        written = [view for op, view in (found or {}).items() if op.name == "store"]
        if self.overlaps and any(id(view.memory.flat) in self.owners for view in written):
            return None  # each store is to be seen
        for op, view in {} if found is None else found.items():
            for numbers in product(*map(range, terms.values())) if any(view.moves) else [(0,) * len(terms)]:
                self._note(view.memory, view.places(numbers).reshape(-1), op.name == "store")
        return found

    def _place(self, op: Op) -> tuple[Elements, Any, np.ndarray | None]:
        memory, at, mask = super()._place(op)
        if id(memory.flat) in self.owners and not (mask is not None and not mask.any()):
            each = np.arange(at.start, at.stop, at.step) if type(at) is slice else np.ravel(at)
            if mask is not None and mask.ndim and each.size == (self.lanes or 1):
                each = each[mask]
            self._note(memory, each, op.name == "store")
        return memory, at, mask

    def _note(self, memory: Elements, at: np.ndarray, writes: bool) -> None:
        """An iteration touches elements."""
        if id(memory.flat) in self.owners:
            before = memory.flat[at].copy() if writes and self.overlaps else None
            self.touches.append(_Touch(memory, at, writes, before))


@np.errstate(all="ignore")
def _same(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    if before.dtype.kind in "iub":
        return np.asarray(before == after)
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    return np.isclose(before.astype(wide), after.astype(wide), rtol=SAME, atol=0, equal_nan=True)


def _is_shared(op: Op) -> bool:
    return op.name == "for" and op.attrs["kind"] == "parallel"


def _from_both_ends(extent: int) -> list[int]:
    """All iterations: the ends first, the others in any order."""
    ends = [i for k in range(min(FIRST, extent)) for i in (k, extent - 1 - k)]
    rest = np.random.default_rng(0).permutation(extent).tolist()
    return [*dict.fromkeys([*ends, *rest])]


def races_of(kernel: Func, dims: Mapping[str, int], given: Sequence[np.ndarray] = ()) -> Races:
    """What is known of a kernel for these dims, in the time that there is. `given` are operands of a call; where they
    are not those of the kernel (it reads them in another layout) numbers are drawn, which say nothing of a kernel whose
    data say where it writes: positions that another kernel has counted do not meet, drawn ones do."""
    loops = [op for op in kernel.body.walk() if _is_shared(op)]
    proved = {op for op in loops if is_independent(op) and not op.attrs.get("overlap")}
    rest = [op for op in loops if op not in proved]
    found = Races(proved=len(proved))
    shapes = [[int(evaluate_sym(d, dims)) for d in a.buffer.shape] for a in kernel.args]
    is_large = sum(map(prod, shapes)) > MOST_ELEMENTS or not all(a.buffer.is_dense for a in kernel.args)
    takes_long = all(op.attrs.get("overlap") for op in rest) and _work(kernel, dims) > MOST_WORK
    inputs = list(zip(kernel.args, shapes, strict=True))[: len(kernel.args) - kernel_info(kernel).outputs]
    is_given = len(given) == len(inputs) and all(
        a.dtype == arg.buffer.dtype.storage and list(a.shape) == shape
        for a, (arg, shape) in zip(given, inputs, strict=True)
    )
    if not rest or is_large or takes_long or (_is_placed_by_data(kernel) and not is_given):
        found.left = len(rest)
        return found
    run = _Watched(dict(dims), time.thread_time() + SECONDS, proved)
    rng = np.random.default_rng(0)
    arrays = [_numbers(rng, shape, a.buffer.dtype) for a, shape in zip(kernel.args, shapes, strict=True)]
    if is_given:
        arrays[: len(given)] = [np.array(a, order="C") for a in given]  # some are views of others
    try:
        run.bind(kernel, arrays)
        with np.errstate(all="ignore"):
            run.block(kernel.body)
        found.tried = len(rest)
    except _Race as race:
        found.wrong = str(race)
    except InternalError as error:
        found.wrong = error.what
    except (TooLong, ExecutionError):
        found.left = len(rest)
    return found


def _is_placed_by_data(kernel: Func) -> bool:
    """Whether where a kernel writes depends on numbers that it has read."""
    ops = list(kernel.body.walk())
    read = {op.attrs["var"].name for op in ops if op.name == "bind"}
    places = (e for op in ops if op.name == "store" for e in (*op.attrs["idx"], *op.attrs.get("guard", ())))
    return any(v.name in read for e in places for v in e.vars)


def _work(kernel: Func, dims: Mapping[str, int]) -> float:
    """Operations of a kernel; none where nobody has counted them."""
    work = kernel_info(kernel).work
    return 0.0 if work is None else float(evaluate_sym(work, dims))


def _numbers(rng: np.random.Generator, shape: list[int], dtype: DType) -> np.ndarray:
    """Floats that differ; integers may be places, which zeros can be."""
    made = rng.standard_normal(shape) if dtype.is_float else np.zeros(shape)
    return np.asarray(made).astype(dtype.storage)
