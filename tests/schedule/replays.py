"""Replays the traces of all kernels of ONNX files: python -m tests.schedule.replays FILE...

Each kernel's trace is printed, parsed, printed again, and taken on the kernel as it was lowered, which must give the
kernel that its schedule has made, facts about it included.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.compilation import Compilation, Setting
from tilewright.ir.core import Func, Module
from tilewright.ir.diag import TilewrightError
from tilewright.ir.text import print_func
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.stages import Lowered
from tilewright.options import Options, Request
from tilewright.requested import import_request
from tilewright.schedule.defaults import schedule_kernel
from tilewright.schedule.replay import replay
from tilewright.schedule.sharing import kernels
from tilewright.schedule.strategies import STRATEGIES
from tilewright.schedule.text import parse_trace
from tilewright.session import Session
from tilewright.target.named import parse_target

TARGET = "zen3"


def why_not_identical(naive: Func, scheduled: Func) -> str | None:
    """What is not the same after the trace of `scheduled` is printed, parsed and taken on `naive`."""
    lines = kernel_info(scheduled).schedule
    try:
        trace = parse_trace("\n".join(lines))
        if trace.lines() != lines:
            return "its text reads back as other steps"
        again = replay(naive, trace)
    except TilewrightError as error:
        return str(error)
    again.info = replace(kernel_info(again), work=kernel_info(scheduled).work)
    return None if print_func(again) == print_func(scheduled) else "it gives another kernel"


def replays(module: Module, target: str) -> Iterator[tuple[str, str | None]]:
    """For each kernel that a module's regions become: its name, and what its replay has other."""
    found: list[tuple[str, str | None]] = []

    def scheduled(lowered: Lowered, *arguments: Any) -> Lowered:
        result = schedule_kernel(lowered, *arguments)
        found.append((lowered.func.name, why_not_identical(lowered.func, result.func)))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "schedule_kernel", scheduled)
        kernels.schedule_regions(module, parse_target(target), STRATEGIES, [])
    yield from found


def main(files: list[str]) -> int:
    """The number of kernels that are not identical."""
    total: Counter[str] = Counter()
    for file in files:
        try:
            found = list(replays(lowered_graph(Path(file)), TARGET))
        except TilewrightError as error:
            print(f"{file}: not compiled: {error.what.splitlines()[0]}")
            continue
        wrong = [(name, reason) for name, reason in found if reason is not None]
        total += Counter(models=1, kernels=len(found), differ=len(wrong))
        print(f"{file}: {len(found)} kernels, {len(wrong)} differ")
        for name, reason in wrong:
            print(f"  {name}: {reason}")
    print(f"{total['models']} models, {total['kernels']} kernels, {total['differ']} differ")
    return total["differ"]


def lowered_graph(model: Path | bytes) -> Module:
    """The regions that a model becomes."""
    options = Options(target=TARGET)
    module = import_request(Request.of(model, None, None), Session())
    return Compilation(module, Setting.of(options, parse_target(TARGET))).run("fused").module


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
