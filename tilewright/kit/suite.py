"""The conformance suite of a machine: each case compiled for it, verified, run, and where it ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.compiler import compile_module
from tilewright.ir.diag import TilewrightError
from tilewright.kit.cases import CASES, KitCase
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.runtime.report.records import KernelCycles
from tilewright.runtime.report.shown import Report
from tilewright.simulator.clock import SCALAR
from tilewright.simulator.totals import program_cycles
from tilewright.target.machine import Accelerator

TOLERANCE = 1e-3
"""Of results beside the largest of them, where functions are approximated."""


@dataclass(frozen=True)
class CaseOutcome:
    """What became of a case: whether its results are right, the cycles it takes, the units that work for it, why what
    is left to the scalar unit is, and the events that it needs of each pair of queues."""

    case: str
    right: bool
    cycles: float
    units: tuple[str, ...]
    missing: tuple[str, ...]
    error: str = ""
    events: Mapping[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether no kernel is left to the scalar unit."""
        return self.right and not self.missing


def conformance(machine: Accelerator) -> Iterator[CaseOutcome]:
    """All cases, one after the other."""
    return (_outcome(case, machine) for case in CASES)


def _outcome(case: KitCase, machine: Accelerator) -> CaseOutcome:
    rng = np.random.default_rng(1)
    arrays = [_drawn(rng, dtype.storage, shape) for dtype, shape in case.operands]
    try:
        (right,) = evaluate_func((module := case.module()).main, module, arrays)
        made = Model(compile_module(case.module(), Options(verify=True), machine), 1)
        (found,) = made(*arrays)
    except TilewrightError as error:
        return CaseOutcome(case.name, False, 0, (), (), error.what)
    report = made.report()
    missing = _missing(report)
    kernels: tuple[KernelCycles, ...] = report.simulated
    units = sorted({q for k in kernels for q, n in k.busy.items() if n and q != SCALAR})
    cycles = sum(k.cycles * k.calls for k in kernels)
    events = program_cycles(kernels).events
    return CaseOutcome(case.name, _is_right(found, right, case.exact), cycles, tuple(units), missing, events=events)


def _drawn(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Small whole numbers, whose sums and products all dtypes have."""
    low = 0 if dtype == np.int64 else -2
    return rng.integers(low, 3, shape).astype(dtype)


def _is_right(found: np.ndarray, right: np.ndarray, exact: bool) -> bool:
    if exact:
        return np.array_equal(found, right)
    found, right = found.astype(np.float64), right.astype(np.float64)
    return bool(np.abs(found - right).max() <= TOLERANCE * max(1.0, np.abs(right).max()))


def _missing(report: Report) -> tuple[str, ...]:
    """Why kernels are left to the scalar unit: the first reason of each."""
    left = {r.subject for r in report.remarks if r.stage == "strategy" and r.message == "scalar"}
    reasons: dict[str, str] = {}
    for remark in report.remarks:
        name = remark.subject.split(":")[0]
        if remark.stage == "schedule" and remark.kind == "missed" and name in left:
            reasons.setdefault(name, remark.message)
    return tuple(reasons.get(name, "no unit of the machine does it") for name in sorted(left))
