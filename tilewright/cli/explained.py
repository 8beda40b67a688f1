"""What `explain` answers about a node or a kernel: why it is computed as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from rich.markup import escape
from rich.tree import Tree

from tilewright.accounts.explanation import FlowExplanation, KernelExplanation, WayExplanation, costliest
from tilewright.runtime.errors import Remark, short_name
from tilewright.runtime.report.records import CallRecord, EdgeRecord, LoopRecord, ProgramReport

NAMED_LOOPS = 6
"""Loops that are named of those that are run as another one is, for the same reasons."""


_OUTCOMES = {
    "branch": "stays a branch: calls take one of its ways",
    "loop": "stays a loop: calls run its trips",
    "select": "is no branch: both ways are computed, and a result is chosen",
    "decided": "is no branch: all calls take one way",
    "unrolled": "is no loop: its trips are written out",
}


def flow_tree(found: FlowExplanation, hertz: float) -> Tree:
    """All about a branch or loop of the model: what it has become, why, and the kernels of its ways."""
    flow = found.flow
    tree = Tree(f"[bold]{escape(short_name(flow.node))}[/] ({escape(flow.operator)})")
    branch = tree.add(_OUTCOMES[flow.outcome])
    branch.add(escape(f"why: {flow.reason}"))
    if flow.suggestion:
        branch.add(escape(f"what would change it: {flow.suggestion}"))
    for way in found.ways:
        costs = zip(way.calls, way.cycles, strict=True)
        _list(tree, _way_title(way), (_of_way(call, cycles, hertz) for call, cycles in costs))
        if not way.calls:
            tree.add(escape(f"{way.way}: no kernels: it gives what is there already, or kernels of other nodes do it"))
    return tree


def _way_title(way: WayExplanation) -> str:
    count = len(way.calls)
    bytes, flops = ([*map(amount, way.calls)] for amount in (attrgetter("bytes"), attrgetter("flops")))
    amounts = [
        f"{sum(map(int, each))} {what}"
        for what, each in (("bytes", bytes), ("operations on floats", flops))
        if all(amount is not None and amount.isdigit() for amount in each)
    ]
    return ", ".join((f"{way.way}: {count} kernel{'s' if count != 1 else ''}", *amounts)) + " in all" * bool(amounts)


def _of_way(call: CallRecord, cycles: float | None, hertz: float) -> str:
    nodes = ", ".join(short_name(node) for node in call.nodes[:3]) + (", ..." if call.nodes[3:] else "")
    flops = f", {call.flops} operations on floats" if call.flops is not None else ""
    time = f", some {milliseconds(cycles, hertz)} by estimate" if cycles is not None else ""
    return f"{call.kernel} (of {nodes}): {call.bytes} bytes{flops}{time}"


def kernel_tree(found: KernelExplanation, hertz: float, everything: bool = False) -> Tree:
    """All about one kernel. Cycles are told as times at so many a second. Loops that are run alike are one line, unless
    `everything` is asked for."""
    call = found.call
    tree = Tree(f"[bold]{escape(call.kernel)}")
    nodes = [short_name(node) for node in call.nodes or (call.node,) if node]
    _list(tree, f"computes {len(nodes)} node{'s' if len(nodes) != 1 else ''} of the model", nodes)
    tree.add(escape(f"gives {', '.join(call.results)}, and moves {call.bytes} bytes"))
    if found.strategy:
        estimates = f" (estimated cycles: {found.estimates})" if found.estimates else ""
        tree.add(escape(f"algorithm: {found.strategy.replace('_', ' ')}{estimates}"))
    if found.types:
        tree.add(escape(f"products: {'; '.join(found.types)}"))
    tiles, layouts = (_steps(found.steps, names) for names in (_TILES, _LAYOUTS))
    if tiles:
        tree.add(escape(f"tiles: {tiles}"))
    if found.steps:
        tree.add(escape(f"layout: {layouts or 'operands and results lie as the graph has them'}"))
    _edges(tree, "reads what other kernels have written", found.incoming, hertz)
    _list(tree, "computes in one go", [f"{e.producer} and {e.consumer}: {e.reason}" for e in found.inside])
    _edges(tree, "writes what other kernels read", found.outgoing, hertz)
    _list(tree, "loops", map(_loop, found.loops) if everything else _alike(found.loops))
    if not found.loops:
        tree.add("loops are told of files that were made by `tilewright compile --profile`, and of models")
    _list(tree, "remarks", map(_remark, found.remarks))
    return tree


def _remark(remark: Remark) -> str:
    """What was done with a kernel, or was not; subjects are the kernel, or the kernel and what was tried."""
    tried = remark.subject.partition(": ")[2].replace("_", " ")
    stage = f"{remark.stage}: {tried}" if tried else remark.stage
    return f"{stage}: {'' if remark.kind == 'applied' else 'not done: '}{remark.message}"


_TILES = ("split", "strided_split", "compute_at", "unroll_and_jam", "rfactor")
_LAYOUTS = ("pack_argument", "pack", "cache", "set_space")


def _steps(steps: Sequence[str], names: Sequence[str]) -> str:
    return "; ".join(step for step in steps if step.partition("(")[0] in names)


def _list(tree: Tree, title: str, lines: Iterable[str]) -> None:
    every = [*lines]
    if every:
        branch = tree.add(escape(title))
        for line in every:
            branch.add(escape(line))


def _edges(tree: Tree, title: str, edges: Sequence[EdgeRecord], hertz: float) -> None:
    """Values that go through memory, and what storing and reading each of them takes at most."""
    if edges:
        branch = tree.add(escape(title))
        for edge in edges:
            saved = f": one kernel would save up to {milliseconds(edge.cycles, hertz)}" if edge.cycles else ""
            _apart(branch, edge, f"{edge.value} ({edge.type}){saved}")


def _apart(tree: Tree, edge: EdgeRecord, title: str) -> None:
    """Why a value goes through memory, what stands in the way of one kernel, and what would change it."""
    branch = tree.add(escape(title))
    branch.add(escape(f"from {edge.producer} to {edge.consumer}"))
    branch.add(escape(f"why two kernels: {edge.reason}"))
    if any(other not in edge.suggestion for other in edge.others):
        branch.add(escape(f"blocked by: {', '.join(edge.others)}"))
    if edge.suggestion:
        branch.add(escape(f"what would change it: {edge.suggestion}"))


def _alike(loops: Sequence[LoopRecord]) -> list[str]:
    """A line for loops of one kind that have the same reasons, but for the names in these: the first stands for all."""
    groups: dict[tuple[str, ...], list[LoopRecord]] = {}
    for loop in loops:
        texts = (loop.threads, loop.lanes, loop.threads_change, loop.lanes_change)
        groups.setdefault((loop.kind, *(_QUOTED.sub("", text) for text in texts)), []).append(loop)
    return [_with_others(*group) for group in groups.values()]


_QUOTED = re.compile(r"'[^']*'|[0-9]+")


def _with_others(first: LoopRecord, *others: LoopRecord) -> str:
    """What is said of a loop, and which others are run like it."""
    line = _loop(replace(first, depth=0))
    if not others:
        return line
    names = ", ".join(f"{loop.loop} of {loop.extent}" for loop in others[:NAMED_LOOPS])
    more = ", ..." if len(others) > NAMED_LOOPS else ""
    return f"{line} (and {sum(loop.count for loop in others)} like it: {names}{more})"


def _loop(loop: LoopRecord) -> str:
    often = f" ({loop.count} such loops)" if loop.count > 1 else ""
    head = f"{'  ' * loop.depth}{loop.loop} of {loop.extent}, {loop.kind}{often}"
    shared = "shared by threads" if loop.is_shared else "not shared by threads"
    if loop.kind in ("vector", "unroll", "dot"):
        return f"{head}: {loop.lanes if loop.is_vector else loop.threads}"
    threads, lanes = (
        why + (f" (what would change it: {change})" if change else "")
        for why, change in ((loop.threads, loop.threads_change), (loop.lanes, loop.lanes_change))
    )
    return f"{head}: {shared}: {threads}; {'vectors' if loop.is_vector else 'no vectors'}: {lanes}"


def milliseconds(cycles: float, hertz: float) -> str:
    """Cycles of one core as a time."""
    return f"{1000 * cycles / hertz:.3g} ms"


NEGLIGIBLE = 0.01
"""Share of the largest saving below which others are not listed."""


def missed_tree(report: ProgramReport, hertz: float) -> Tree | None:
    """Where one kernel in the place of two would save most."""
    found = costliest(report)
    if not found:
        return None
    tree = Tree("[bold]where one kernel in the place of two would save most (estimates, for one thread)")
    for missed in found:
        if missed.cycles >= NEGLIGIBLE * found[0].cycles:
            more = f", with {missed.count - 1} like it" if missed.count > 1 else ""
            saved = milliseconds(missed.cycles, hertz)
            _apart(tree, missed.edge, f"up to {saved}{more}: {missed.edge.value} ({missed.edge.type})")
    return tree
