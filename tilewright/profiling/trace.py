"""A profile as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing, in the trace event format of Chrome."""

from __future__ import annotations

from typing import Any

from tilewright.profiling.records import ModelProfile

_PROCESS = 1
_MODULES, _KERNELS, _THREADS = 1, 2, 10
"""Numbers of the rows: modules, kernels, and from the last one on the threads."""


def trace_events(found: ModelProfile) -> dict[str, Any]:
    """One call of the model as JSON data: kernels in the order of execution, each as long as its median; the modules
    that they are in above them, and below them how long each thread computed."""
    events = [
        _name("process_name", 0, f"{found.model} on {found.threads} threads"),
        _name("thread_name", _MODULES, "modules"),
        _name("thread_name", _KERNELS, "kernels"),
        *(_name("thread_name", _THREADS + n, f"thread {n}") for n in range(found.threads)),
    ]
    at = 0.0
    begun: tuple[str, float] | None = None
    for kernel in found.kernels:
        span = 1000 * kernel.median_ms
        if begun is not None and begun[0] != kernel.path:
            events.append(_event(begun[0], _MODULES, begun[1], at - begun[1], {}))
            begun = None
        begun = begun or (kernel.path, at)
        about = {
            "nodes": ", ".join(kernel.nodes), "times": kernel.count, "flops": kernel.flops, "bytes": kernel.bytes,
            "GFLOP/s": kernel.gflops, "GB/s": kernel.gbytes, "bound by": kernel.bound,
            "percent of the roofline": kernel.percent, "balance": kernel.balance,
        }  # fmt: skip
        events.append(_event(kernel.kernel, _KERNELS, at, span, about))
        events += [
            _event(kernel.kernel, _THREADS + n, at, min(1000 * busy, span), {})
            for n, busy in enumerate(kernel.busy_ms)
            if busy > 0
        ]
        at += span
    if begun is not None:
        events.append(_event(begun[0], _MODULES, begun[1], at - begun[1], {}))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"model": found.model}}


def _event(name: str, row: int, start: float, span: float, about: dict[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in about.items() if value not in (None, "")}
    place = {"pid": _PROCESS, "tid": row, "ts": round(start, 3), "dur": round(span, 3)}
    return {"ph": "X", "cat": "tilewright", "name": name or "(model)", **place, "args": known}


def _name(kind: str, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": row, "args": {"name": name}}
