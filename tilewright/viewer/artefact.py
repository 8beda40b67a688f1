"""An artefact for a page: what its file says, without the model that it was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.profiling.records import ModelProfile
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.report.records import CallRecord
from tilewright.viewer.collect import remark_views
from tilewright.viewer.hierarchy import Placed, group_of_kernel, hierarchy, path_of
from tilewright.viewer.records import CallView, CodeView, GroupView, ModelView, NodeView
from tilewright.viewer.roofline import measured_roofline
from tilewright.viewer.times import facts_of, timed

NOT_HELD = (
    "this is a compiled model: its file has no graph, no loop programs, no schedules, no LLVM IR and no plan of "
    "memory, so that kernels stand in the order of their calls, in the modules that names of nodes tell; a report of "
    "the model that it was made of has all of these"
)


def artefact_view(path: Path, artifact: Artifact, profile: ModelProfile | None) -> ModelView:
    """What is shown of a loaded artefact, with times of its kernels where they were taken."""
    report = artifact.summary()
    names = list(dict.fromkeys(call.kernel for call in report.calls))
    numbers = {name: number for number, name in enumerate(names)}
    nodes, groups = _nodes(report.calls)
    node_numbers = {node.name: number for number, node in enumerate(nodes)}
    placed = [node.group for node in nodes]
    calls = []
    for number, call in enumerate(report.calls):
        computed = tuple(node_numbers[name] for name in _names(call))
        calls.append(CallView(
            numbers[call.kernel], call.node or call.kernel, group_of_kernel(computed, placed, groups),
            (number - 1,) if number else (), (), computed, call.results, _number(call.flops),
            _number(call.touched_bytes or call.bytes),
        ))  # fmt: skip
    codes = tuple(CodeView(name, {}, None, "") for name in names)
    facts: Mapping[str, object] = {
        "machine": f"{artifact.target.cpu} ({artifact.target.triple or artifact.target.kind})",
        "numerics": report.numerics,
        "operators": report.nodes,
        "code": f"{report.object_bytes:,} bytes",
        "weights": f"{report.constant_bytes:,} bytes",
        "intermediate results": f"{report.arena} bytes",
        "inputs": ", ".join(report.inputs),
        "outputs": ", ".join(report.outputs),
        "products": ", ".join(map(str, report.products)),
    }
    shown = tuple((name, str(value)) for name, value in facts.items() if value not in (None, "", 0))
    timed_calls, said = timed(calls, codes, profile)
    rates = None if profile is None or profile.machine is None else measured_roofline(profile.machine, profile.threads)
    return ModelView(
        path.name, "artefact", (*shown, *facts_of(profile)), (NOT_HELD, *said), groups, nodes, timed_calls, codes,
        remark_views(report.remarks), roofline=rates,
    )  # fmt: skip


def _nodes(calls: Sequence[CallRecord]) -> tuple[tuple[NodeView, ...], tuple[GroupView, ...]]:
    """The nodes that kernels compute, by their names, and the modules that these tell. What nodes read is not known:
    modules are alike whose nodes are computed by the same kernels, one after the other."""
    kernels: dict[str, list[int]] = {}
    types: dict[str, tuple[str, ...]] = {}
    for number, call in enumerate(calls):
        types.setdefault(call.node, call.results)
        for name in _names(call):
            kernels.setdefault(name, []).append(number)
    placed = [
        Placed(path_of(name), tuple(calls[k].kernel for k in own), (number - 1,) if number else ())
        for number, (name, own) in enumerate(kernels.items())
    ]
    groups, group_of = hierarchy(placed)
    nodes = (
        NodeView(name, "", group, (), (), types.get(name, ()), kernels=tuple(own))
        for group, (name, own) in zip(group_of, kernels.items(), strict=True)
    )
    return tuple(nodes), groups


def _names(call: CallRecord) -> tuple[str, ...]:
    return call.nodes or ((call.node,) if call.node else ())


def _number(amount: str | None) -> int | None:
    """None for an amount that depends on dims, or was not counted."""
    return int(amount) if amount is not None and amount.isdecimal() else None
