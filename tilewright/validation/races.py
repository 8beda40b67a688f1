"""Whether iterations that threads share touch one element that one of them writes: looked at in the addresses of some
iterations of each parallel loop, as the interpreter of loops runs them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.core import Block, Func, Op
from tilewright.ir.diag import ExecutionError, InternalError
from tilewright.ops.define.bodies import evaluate_sym
from tilewright.ops.define.loop_programs import Elements, Run
from tilewright.validation.values import TooLong

FIRST = 3
"""Iterations from the first one on that are looked at, and as many up to the last one."""

SECONDS = 1.0
"""Of processor time, for one kernel."""


class _Race(Exception):
    """Two iterations meet."""


class _Watched(Run):
    """Runs some iterations of parallel loops one after the other, and notes which elements each touches."""

    def __init__(self, env: dict[str, Any], deadline: float) -> None:
        super().__init__(env)
        self.deadline = deadline
        self.touched: list[tuple[Elements, np.ndarray, bool]] | None = None

    def op(self, op: Op) -> None:
        if time.thread_time() > self.deadline:
            raise TooLong
        is_shared = op.name == "for" and op.attrs["kind"] == "parallel" and not op.attrs.get("overlap")
        if is_shared and self.touched is None:
            self._shared(op)
        else:
            super().op(op)

    def _shared(self, op: Op) -> None:
        extent = int(evaluate_sym(op.attrs["extent"], self.env))
        before: list[tuple[Elements, np.ndarray, bool]] = []
        chosen = {*range(min(FIRST, extent)), *range(max(0, extent - FIRST), extent)}
        for i in sorted(chosen):
            self.env[op.attrs["var"].name] = i
            self.touched = []
            self.block(op.blocks[0])
            for memory, at, writes in self.touched:
                for other, other_at, other_writes in before:
                    if other.flat is memory.flat and (writes or other_writes) and np.intersect1d(at, other_at).size:
                        name, loop = memory.name, op.attrs["var"].name
                        raise _Race(f"two iterations of the parallel loop '{loop}' meet in '{name}'")
            before += self.touched
        self.touched = None

    def _sum_up(self, op: Op, block: Block, extents: Mapping[str, int]) -> bool:
        return False  # each access is noted where it is made

    def _place(self, op: Op) -> tuple[Elements, Any, np.ndarray | None]:
        memory, at, mask = super()._place(op)
        if self.touched is not None and not (mask is not None and not mask.any()):
            lanes = self.lanes or 1
            each = np.arange(at.start, at.stop, at.step) if type(at) is slice else np.ravel(at)
            if mask is not None and mask.ndim and each.size == lanes:
                each = each[mask]
            self.touched.append((memory, np.unique(each), op.name == "store"))
        return memory, at, mask


def race_of(kernel: Func, dims: Mapping[str, int]) -> str:
    """How two iterations of a parallel loop of a kernel meet for these dims, or leave a buffer; "" where none of those
    do that were looked at."""
    run = _Watched(dict(dims), time.thread_time() + SECONDS)
    arrays = []
    for argument in kernel.args:
        type = argument.buffer
        shape = [int(evaluate_sym(d, dims)) for d in type.shape]
        if not type.is_dense:
            return ""
        arrays.append(np.zeros(prod(shape), type.dtype.storage).reshape(shape))
    try:
        run.bind(kernel, arrays)
        with np.errstate(all="ignore"):
            run.block(kernel.body)
    except _Race as race:
        return str(race)
    except InternalError as error:
        return error.what
    except (TooLong, ExecutionError):
        pass
    return ""
