"""Why a model is computed as it is: what a report says of a node or a kernel, as remarks of one form."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from tilewright.runtime.errors import OptionError, Remark, short_name
from tilewright.runtime.report.paths import module_path
from tilewright.runtime.report.records import (
    CallRecord,
    EdgeRecord,
    FlowRecord,
    LoopRecord,
    ProgramReport,
    WayRecord,
)

T = TypeVar("T")

Kind = Literal["passed", "missed", "failure", "analysis"]
"""As MLIR has kinds of remarks: what was done, what was not, what a defect prevented, and what was found out."""

_KINDS: Mapping[str, Kind] = {
    "applied": "passed", "missed": "missed", "failed": "failure", "warning": "analysis", "analysis": "analysis",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExplainedDecision:
    """What was decided about a `subject` of a model, at a stage, and why; `suggestion` is what would change it,
    `metric` what another decision would save, in cycles of one core (None where that is nothing, or not known)."""

    kind: Kind
    stage: str
    subject: str
    reason: str
    suggestion: str = ""
    metric: float | None = None


def explanations(report: ProgramReport) -> tuple[ExplainedDecision, ...]:
    """All that a report knows: branches and loops of the model, edges, loops of kernels, and the remarks of passes and
    schedules."""
    return (
        *map(explained_flow, report.flow),
        *map(explained_edge, report.edges),
        *(e for loop in report.loops for e in explained_loop(loop)),
        *map(explained_remark, report.remarks),
    )


def explained_flow(flow: FlowRecord) -> ExplainedDecision:
    """That a branch or a loop of the model stays one, or does not."""
    kind: Kind = "missed" if flow.outcome in STAYS else "passed"
    return ExplainedDecision(kind, CONTROL_FLOW, f"{flow.operator} '{flow.node}'", flow.reason, flow.suggestion)


STAYS = ("branch", "loop")
"""Outcomes of branches and loops that are taken and run by calls."""

CONTROL_FLOW = "control flow"
"""The stage of what is said of branches and loops."""


def explained_edge(edge: EdgeRecord) -> ExplainedDecision:
    """That a value stays within a kernel, or does not."""
    subject = f"{edge.value} ({edge.type}), from {edge.producer} to {edge.consumer}"
    kind: Kind = "passed" if edge.is_fused else "missed"
    return ExplainedDecision(kind, "fusion", subject, edge.reason, edge.suggestion, edge.cycles)


def explained_loop(loop: LoopRecord) -> Iterator[ExplainedDecision]:
    """That threads share a loop, or do not, and that its iterations are lanes of vectors, or not."""
    often = f", {loop.count} times" if loop.count > 1 else ""
    subject = f"{loop.kernel}: loop '{loop.loop}' of {loop.extent} iterations, {loop.kind}{often}"
    threads: Kind = "passed" if loop.is_shared else "missed"
    yield ExplainedDecision(threads, "threads", subject, loop.threads, loop.threads_change)
    yield ExplainedDecision("passed" if loop.is_vector else "missed", "vectors", subject, loop.lanes, loop.lanes_change)


def explained_remark(remark: Remark) -> ExplainedDecision:
    """What a pass or a schedule said."""
    return ExplainedDecision(_KINDS[remark.kind], remark.stage, remark.subject, remark.message)


@dataclass(frozen=True, slots=True)
class WayExplanation:
    """The kernels of one way of a branch, or of the body of a loop, and the cycles that one core is estimated to need
    for each (None: not known)."""

    way: str
    calls: tuple[CallRecord, ...]
    cycles: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class FlowExplanation:
    """All about a branch or loop of the model."""

    flow: FlowRecord
    ways: tuple[WayExplanation, ...]


def explain_flow(report: ProgramReport, wanted: str) -> tuple[FlowExplanation, ...]:
    """The branches and loops of this name, and their ways."""
    found = [flow for flow in report.flow if flow.node == wanted]
    calls = _grouped(report.calls, lambda call: [call.kernel]) if found else {}
    remarks = _grouped(report.remarks, lambda r: [r.subject]) if found else {}

    def explained(way: WayRecord) -> WayExplanation:
        kernels = [kernel for kernel in way.kernels if kernel in calls]
        cycles = (_estimated(remarks.get(kernel, ()), kernel) for kernel in kernels)
        return WayExplanation(way.way, tuple(calls[kernel][0] for kernel in kernels), tuple(cycles))

    return tuple(FlowExplanation(flow, tuple(map(explained, flow.ways))) for flow in found)


def _estimated(remarks: Sequence[Remark], kernel: str) -> float | None:
    """The cycles of the strategy that a kernel has."""
    strategy, estimates = (_said(remarks, stage, kernel) for stage in _SAID_APART)
    by_strategy = dict(part.rsplit(" ", 1) for part in estimates.split(", ") if " " in part)
    return float(by_strategy[strategy]) if strategy in by_strategy else None


@dataclass(frozen=True, slots=True)
class KernelExplanation:
    """All about one call of a kernel: what it computes, how, and what was decided about its edges and loops."""

    call: CallRecord
    strategy: str
    estimates: str
    types: tuple[str, ...]
    steps: tuple[str, ...]
    incoming: tuple[EdgeRecord, ...]
    inside: tuple[EdgeRecord, ...]
    outgoing: tuple[EdgeRecord, ...]
    loops: tuple[LoopRecord, ...]
    remarks: tuple[Remark, ...]


def explain_calls(report: ProgramReport, wanted: str) -> tuple[KernelExplanation, ...]:
    """The calls of a kernel, or those that compute a node or nodes of a module, by name; none of a branch or loop that
    no kernel computes by itself. OptionError with the nearest names for one that is not there."""
    calls = find_calls(report, wanted)
    index = _Index(report)
    return tuple(index.explained(call) for call in calls)


def find_calls(report: ProgramReport, wanted: str) -> list[CallRecord]:
    """Calls of the kernel of this name or number (`k3`), else those that compute the node of this name, else those of
    nodes in the module of this path."""
    inner = wanted.strip("/")
    tests = (
        lambda c: c.kernel == wanted or c.kernel.split("_")[0] == wanted,
        lambda c: wanted in c.nodes or wanted == c.node,
        lambda c: any(f"{path}/".startswith(f"{inner}/") for node in c.nodes for path in _paths(node)),
    )
    for test in tests:
        if wanted and (found := [call for call in report.calls if test(call)]):
            return found
    if any(flow.node == wanted for flow in report.flow):
        return []
    raise unknown_name(report, wanted)


def _paths(node: str) -> tuple[str, str]:
    """A node's module, as the model writes it and as profiles do."""
    return node.strip("/").rpartition("/")[0], module_path(node)


def unknown_name(report: ProgramReport, wanted: str) -> OptionError:
    """The error for a node or kernel that is not there, with names that are near."""
    fused = {node for edge in report.edges for node in (edge.producer, edge.consumer)}
    nodes = (*(n for c in report.calls for n in c.nodes), *(flow.node for flow in report.flow))
    names = [*dict.fromkeys((*(c.kernel for c in report.calls), *nodes))]
    known = {call.kernel.partition("_")[0]: call.kernel for call in report.calls} | {name: name for name in names}
    near = [*dict.fromkeys(known[name] for name in difflib.get_close_matches(wanted, known, 3, 0.5))]
    near = near or [n for n in names if wanted and wanted in n][:3]
    hint = f"did you mean {' or '.join(repr(short_name(n)) for n in near)}?" if near else (
        f"kernels are {', '.join(short_name(n) for n in names[:3])}, ...; `tilewright explain MODEL` lists all"
    )
    folded = any(f"'{wanted}'" in name for name in fused)
    why = ": no kernel computes it; it is part of others, or was known when compiling" if folded else ""
    return OptionError(f"there is no node or kernel '{short_name(wanted)}'{why}", hint=hint)


class _Index:
    """What a report says, by kernels and by nodes: a module may have thousands of calls."""

    def __init__(self, report: ProgramReport) -> None:
        self.types = _grouped(report.types, lambda t: [t.kernel])
        self.schedules = _grouped(report.schedules, lambda s: [s.kernel])
        self.loops = _grouped(report.loops, lambda loop: [loop.kernel])
        self.remarks = _grouped(report.remarks, lambda r: [r.subject.split(":")[0]])
        self.edges = report.edges
        self.numbers = _grouped(range(len(self.edges)), lambda n: {*map(_node, _ends(self.edges[n]))})

    def explained(self, call: CallRecord) -> KernelExplanation:
        """All about a call."""
        name, own = call.kernel, {*call.nodes}
        numbers = sorted({n for node in own for n in self.numbers.get(node, ())})
        mine = [e for n in numbers if name in ((e := self.edges[n]).source, e.target)]
        remarks = self.remarks.get(name, ())
        return KernelExplanation(
            call,
            _said(remarks, "strategy", name),
            _said(remarks, "estimated cycles", name),
            tuple(str(product.form) for t in self.types.get(name, ()) for product in t.products),
            tuple(step for s in self.schedules.get(name, ()) for step in s.steps),
            tuple(e for e in mine if not e.is_fused and e.target == name and _node(e.consumer) in own),
            tuple(e for e in mine if e.is_fused),
            tuple(e for e in mine if not e.is_fused and e.source == name and _node(e.producer) in own),
            tuple(self.loops.get(name, ())),
            tuple(r for r in remarks if r.stage not in _SAID_APART),
        )


def _grouped(items: Iterable[T], names: Callable[[T], Iterable[str]]) -> Mapping[str, Sequence[T]]:
    """The items of each of their names, in order."""
    found: dict[str, list[T]] = {}
    for item in items:
        for name in names(item):
            found.setdefault(name, []).append(item)
    return found


_SAID_APART = ("strategy", "estimated cycles")


def _said(remarks: Iterable[Remark], stage: str, subject: str) -> str:
    return next((r.message for r in remarks if (r.stage, r.subject) == (stage, subject)), "")


def _ends(edge: EdgeRecord) -> tuple[str, str]:
    return edge.producer, edge.consumer


def _node(operator: str) -> str:
    """The node in `add of 'node'`."""
    return operator.partition(" of '")[2].removesuffix("'")


@dataclass(frozen=True, slots=True)
class MissedOpportunity:
    """Edges that are alike, as those of a model's layers are, of which the first stands for all `count`: two kernels
    that one would be faster than, by so many cycles of one core in all."""

    edge: EdgeRecord
    count: int
    cycles: float


def costliest(report: ProgramReport, most: int = 10) -> Sequence[MissedOpportunity]:
    """Where one kernel would save most, by the cost model's estimate. Where nothing would be saved is none."""
    alike = _grouped((e for e in report.edges if not e.is_fused and e.cycles is not None), lambda e: [_form(e)])
    found = (MissedOpportunity(each[0], len(each), sum(e.cycles or 0.0 for e in each)) for each in alike.values())
    return sorted(found, key=lambda each: -each.cycles)[:most]


def _form(edge: EdgeRecord) -> str:
    """Equal for edges of one type between operators of one kind that are apart for one reason."""
    ends = (operator.partition(" of '")[0] for operator in (edge.producer, edge.consumer))
    return "\n".join((*ends, edge.type, edge.reason))
