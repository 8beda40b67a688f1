"""Whether iterations that threads share touch one element that one of them writes. It is proved from the indices where
they tell; else the interpreter of loops runs the iterations, from both ends and then in any order, and each element of
what is shared has an owner."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.core import Block, Func, Op
from tilewright.ir.diag import ExecutionError, InternalError
from tilewright.loops.order.parallel import is_independent
from tilewright.ops.define.bodies import evaluate_sym
from tilewright.ops.define.loop_programs import Elements, Run, View
from tilewright.validation.values import TooLong

SECONDS = 1.0
"""Of processor time, for one kernel."""

FIRST = 3
"""Iterations at each end that run before the others."""

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

    def touch(self, at: np.ndarray, iteration: int, writes: bool) -> bool:
        """Whether nobody else is in the way."""
        wrote, read = self.written[at], self.read[at]
        others = (wrote != NOBODY) & (wrote != iteration)
        if writes:
            others |= (read != NOBODY) & (read != iteration)
            self.written[at] = iteration
        else:
            self.read[at] = np.where((read == NOBODY) | (read == iteration), iteration, SEVERAL)
        return not others.any()


class _Watched(Run):
    """Runs the iterations of parallel loops that nothing is proved of, and notes which elements each touches."""

    def __init__(self, env: dict[str, Any], deadline: float, proved: set[Op]) -> None:
        super().__init__(env)
        self.deadline, self.proved = deadline, proved
        self.loop = ""
        self.iteration = NOBODY
        self.owners: dict[int, _Owners] = {}

    def op(self, op: Op) -> None:
        if time.thread_time() > self.deadline:
            raise TooLong
        if self.loop or not _is_shared(op) or op in self.proved:
            super().op(op)
        else:
            self._shared(op)

    def _shared(self, op: Op) -> None:
        extent = int(evaluate_sym(op.attrs["extent"], self.env))
        self.loop = op.attrs["var"].name
        self.owners = {id(memory.flat): _Owners(memory.flat) for memory in self.memory.values()}
        for i in _from_both_ends(extent):
            self.iteration = self.env[self.loop] = i
            self.block(op.blocks[0])
        self.loop, self.owners = "", {}

    def _views_of(
        self, block: Block, elements: Mapping[str, int], terms: Mapping[str, int]
    ) -> dict[Op, View] | None:  # fmt: skip
        found = super()._views_of(block, elements, terms)
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
        """An iteration touches elements. _Race where another one is in the way."""
        owners = self.owners.get(id(memory.flat))
        if owners is not None and not owners.touch(at, self.iteration, writes):
            raise _Race(f"two iterations of the parallel loop '{self.loop}' meet in '{memory.name}'")


def _is_shared(op: Op) -> bool:
    return op.name == "for" and op.attrs["kind"] == "parallel" and not op.attrs.get("overlap")


def _from_both_ends(extent: int) -> list[int]:
    """All iterations: the ends first, the others in any order."""
    ends = [i for k in range(min(FIRST, extent)) for i in (k, extent - 1 - k)]
    rest = np.random.default_rng(0).permutation(extent).tolist()
    return [*dict.fromkeys([*ends, *rest])]


def races_of(kernel: Func, dims: Mapping[str, int]) -> Races:
    """What is known of a kernel for these dims, in the time that there is."""
    loops = [op for op in kernel.body.walk() if _is_shared(op)]
    proved = {op for op in loops if is_independent(op)}
    found = Races(proved=len(proved))
    if len(proved) == len(loops):
        return found
    run = _Watched(dict(dims), time.thread_time() + SECONDS, proved)
    shapes = [[int(evaluate_sym(d, dims)) for d in a.buffer.shape] for a in kernel.args]
    if not all(a.buffer.is_dense for a in kernel.args) or sum(map(prod, shapes)) > MOST_ELEMENTS:
        found.left = len(loops) - len(proved)
        return found
    arrays = [np.zeros(shape, a.buffer.dtype.storage) for a, shape in zip(kernel.args, shapes, strict=True)]
    try:
        run.bind(kernel, arrays)
        with np.errstate(all="ignore"):
            run.block(kernel.body)
        found.tried = len(loops) - len(proved)
    except _Race as race:
        found.wrong = str(race)
    except InternalError as error:
        found.wrong = error.what
    except (TooLong, ExecutionError):
        found.left = len(loops) - len(proved)
    return found
