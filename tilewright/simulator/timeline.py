"""The time line of a program on an accelerator, for Perfetto (ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.ir.core import Module
from tilewright.simulator.clock import SCALAR
from tilewright.simulator.totals import calls_timed
from tilewright.target.machine import Accelerator


def timeline_events(
    modules: Sequence[Module], machine: Accelerator, sizes: Mapping[str, int], title: str
) -> dict[str, Any]:
    """One call as JSON data in Chrome's trace event format, in microseconds: a row for kernels, and one for each queue
    with its runs. Of the equal iterations of a loop the first are shown."""
    rows = {name: k for k, name in enumerate(("kernels", *machine.queues(), SCALAR))}
    events: list[dict[str, Any]] = [_name("process_name", 0, f"{title} on {machine.name}")]
    events += [_name("thread_name", row, name) for name, row in rows.items()]
    microseconds = 1e6 / machine.clock_hz
    at = 0.0

    def span(row: str, name: str, start: float, end: float, about: Mapping[str, Any]) -> None:
        place = {"pid": 1, "tid": rows[row], "ts": start * microseconds, "dur": (end - start) * microseconds}
        events.append({"ph": "X", "cat": "tilewright", "name": name, **place, "args": {**about}})

    for module in modules:
        for op, timed in calls_timed(module, machine, sizes):
            about = {"node": op.loc.node, "cycles": timed.cycles, **timed.bytes}
            span("kernels", op.attrs["kernel"], at, at + timed.cycles, about)
            for run in timed.events:
                span(run.queue, run.name, at + run.start, at + run.end, {"cycles": run.end - run.start})
            at += timed.cycles
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"model": title}}


def _name(kind: str, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": row, "args": {"name": name}}
