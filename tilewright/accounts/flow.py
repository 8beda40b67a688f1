"""What branches and loops of a model have become, and which kernels compute their ways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewright.ir.core import Block, Module
from tilewright.ops.define.staged import BRANCH, FLOW, LOOP
from tilewright.runtime.report.records import CallRecord, FlowRecord, WayRecord

_WAYS = {BRANCH: ("then", "else"), LOOP: ("body",)}


def flow_records(module: Module, calls: Sequence[CallRecord]) -> tuple[FlowRecord, ...]:
    """Those of a program in one piece, whose kernels are told by the nodes that they compute."""
    return _records(module, calls, {})


def flow_of_parts(
    module: Module, parts: Mapping[str, Sequence[CallRecord]]
) -> tuple[FlowRecord, ...]:
    """Those of a program in parts, by the names of these: the kernels of what stays a branch or a loop are those of the
    parts in its blocks, which `module` calls."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for op in module.main.body.walk():
        for way, block in zip(_WAYS.get(op.name, ()), op.blocks, strict=False):
            kernels = (call.kernel for part in _parts_in(block) for call in parts.get(part, ()))
            found.setdefault((op.loc.node or op.loc.value, way), {}).update(dict.fromkeys(kernels))
    return _records(module, [call for calls in parts.values() for call in calls], found)


def _parts_in(block: Block) -> Iterable[str]:
    return (op.attrs["part"] for op in block.walk() if "part" in op.attrs)


def _records(
    module: Module, calls: Sequence[CallRecord], known: Mapping[tuple[str, str], Iterable[str]]
) -> tuple[FlowRecord, ...]:
    computing: dict[str, list[str]] = {}
    for call in calls:
        for node in call.nodes:
            computing.setdefault(node, []).append(call.kernel)
    return tuple(
        FlowRecord(
            node, operator, outcome, reason, change,
            tuple(
                WayRecord(way, tuple(known[node, way]) if (node, way) in known else _distinct(computing, nodes))
                for way, nodes in ways
            ),
        )
        for node, operator, outcome, reason, change, ways in module.main.attrs.get(FLOW, ())
    )  # fmt: skip


def _distinct(computing: Mapping[str, Sequence[str]], nodes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(kernel for node in nodes for kernel in computing.get(node, ())))
