"""Plans of memory beside simpler ones and the bound: graphs of the tensors of networks, boxes, and models as compiled.

A graph (JSON) has operations in program order with the tensors that they read and write, and the bytes of tensors; its
inputs are the caller's, its outputs are kept. Boxes (CSV) are `id,lower,upper,size`, the end exclusive; their order is
given. A model (ONNX or TFLite) is planned as it is compiled, with results in the place of arguments.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.compilation import Compilation, Setting
from tilewright.loops.kernel_info import kernel_info
from tilewright.options import Options, Request
from tilewright.program.memory.effort import PlanEffort
from tilewright.program.memory.order import tasks_of
from tilewright.program.memory.ordering.search import best_order
from tilewright.program.memory.ordering.tasks import Task, Tasks
from tilewright.program.memory.packing.boxes import TimedBox, most_alive, overlapping
from tilewright.program.memory.packing.pack import by_size, in_turns, pack
from tilewright.requested import import_request
from tilewright.session import Session
from tilewright.target.named import parse_target

KIB = 1024


@dataclass(frozen=True)
class PlanRow:
    """Units that a plan takes by each strategy: none shared (`naive`), slots in program order (`turns`), largest first
    in the given order (`greedy`), the most alive in the given order (`given`), in the best order found (`bound`, which
    no order is below if `is_best`), what the compiler plans (`ours`), and its seconds."""

    name: str
    tensors: int
    naive: int
    turns: int
    greedy: int
    given: int
    bound: int
    is_best: bool
    ours: int
    seconds: float


def row_of(path: Path, effort: PlanEffort) -> PlanRow:
    """The plans of a file."""
    name = f"{path.parent.name}/{path.stem}"
    if path.suffix == ".csv":
        return _row(name, None, boxes_of(path), effort)
    tasks = tasks_of_graph(path) if path.suffix == ".json" else tasks_of_model(path)
    return _row(name, tasks, boxes_in(tasks, range(len(tasks.tasks))), effort)


def _row(name: str, tasks: Tasks | None, given: list[TimedBox], effort: PlanEffort) -> PlanRow:
    start = time.perf_counter()
    order = None if tasks is None else best_order(tasks, effort.order)
    boxes = given if tasks is None or order is None else boxes_in(tasks, order.order)
    ours = pack(boxes, effort.offsets)
    seconds = time.perf_counter() - start
    wrong = overlapping(boxes, ours)
    if wrong is not None:
        raise ValueError(f"{name}: boxes {wrong} overlap")
    return PlanRow(
        name, len(given), sum(b.size for b in given), in_turns(given), by_size(given).total, most_alive(given),
        most_alive(boxes), order is None or order.is_best, ours.total, seconds,
    )  # fmt: skip


def boxes_of(path: Path) -> list[TimedBox]:
    with path.open() as file:
        rows = [(int(r["size"]), int(r["lower"]), int(r["upper"]) - 1) for r in csv.DictReader(file)]
    return [TimedBox(*row) for row in rows]


def tasks_of_graph(path: Path) -> Tasks:
    graph = json.loads(path.read_text())
    number = {name: k for k, name in enumerate(graph["bytes"])}
    sizes = [0 if name in graph["inputs"] else size for name, size in graph["bytes"].items()]
    made: dict[str, int] = {}
    tasks = []
    for n, op in enumerate(graph["ops"]):
        touched = dict.fromkeys(number[t] for t in (*op["in"], *op["out"]))
        tasks.append(Task(tuple(touched), tuple(made[t] for t in op["in"] if t in made)))
        made |= dict.fromkeys(op["out"], n)
    return Tasks(tuple(tasks), tuple(sizes), frozenset(number[t] for t in graph["outputs"]))


def tasks_of_model(path: Path) -> Tasks:
    """The kernels of a model for one CPU, in units of the alignment of tensors."""
    graph = import_request(Request.of(path, None, None), Session())
    module = Compilation(graph, Setting.of(Options(), parse_target("zen3"))).run("scheduled").module
    inplace = {f.name: kernel_info(f).inplace for f in module.funcs.values() if f.level == "loops"}
    return tasks_of(module.main, inplace)


def boxes_in(tasks: Tasks, order: Iterable[int]) -> list[TimedBox]:
    """When each buffer is needed in an order; where one takes the memory of another, both are one box."""
    position = {n: k for k, n in enumerate(order)}
    steps: list[list[int]] = [[] for _ in tasks.sizes]
    for n, task in enumerate(tasks.tasks):
        for buffer in task.touches:
            steps[buffer].append(position[n])
    last = [len(position) - 1 if b in tasks.kept else max(s, default=-1) for b, s in enumerate(steps)]
    first = [min(s, default=0) for s in steps]
    home = list(range(len(steps)))
    replaced: set[int] = set()
    for n in position:
        for old, new in tasks.tasks[n].reuses:
            if last[old] == position[n] == first[new] and old not in replaced and home[new] == new:
                replaced.add(old)
                home[new] = home[old]
    spans: dict[int, tuple[int, int]] = {}
    for buffer, root in enumerate(home):
        if steps[buffer]:
            begin, end = spans.get(root, (first[buffer], last[buffer]))
            spans[root] = min(begin, first[buffer]), max(end, last[buffer])
    return [TimedBox(tasks.sizes[root], *span) for root, span in spans.items()]


def table(rows: Sequence[PlanRow]) -> str:
    """A Markdown table; factors are over the bound."""
    lines = [
        "| graph | tensors | naive | in turns | greedy | given order | bound | ours | ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        over = [f"{x / max(r.bound, 1):.3f}" for x in (r.naive, r.turns, r.greedy, r.given)]
        proved = "" if r.is_best else " (not proved)"
        lines.append(
            f"| {r.name} | {r.tensors} | {' | '.join(over)} | {r.bound:,}{proved} | "
            f"{r.ours / max(r.bound, 1):.3f} | {r.seconds * 1e3:.0f} |"
        )
    return "\n".join(lines)
