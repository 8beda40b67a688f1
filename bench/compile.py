"""Compile time by stage, cold and from the cache, of the models that are named.

    python bench/compile.py resnet50.onnx bert.onnx            a table in Markdown
    python bench/compile.py *.onnx --rounds 5 --json out.json  and the same as JSON
    python -m bench compile --large 1000 5000                  a node's share, of models of `large_models.py`

Each round starts the clock after the imports; `read` is the frontend with the file's weights, `llvm` what was
waited for after all kernels had been handed to LLVM's threads, `rest` loading the code and all else. The best
round by its total is shown, in milliseconds. `cached` is the time to open the model from the cache in a new
process, with all imports, after the interpreter's own start; what the cache notes of a model's file when it
first reads it (its digest, that the weights are sound) is noted before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import onnx

import tilewright
from bench.large_models import FAMILIES
from tilewright.api import compile as compile_model
from tilewright.frontends.onnx.load import load_onnx
from tilewright.options import Progress
from tilewright.session import SETTLED_NS, Session

ROOT = Path(__file__).resolve().parent.parent
_STARTS = 3
_OPEN = """
import sys, time
start = time.perf_counter()
import tilewright
tilewright.compile(sys.argv[1])
print(1000 * (time.perf_counter() - start))
"""

STAGES = ("graph", "schedule", "emit", "llvm")
FUSION = 3
"""The last passes of the graph: fusion, views in the place of copies, the order of the kernels."""


@dataclass(frozen=True)
class Times:
    """Milliseconds of one model; `stages` has `read`, those of the compiler's report, and `rest`."""

    model: str
    nodes: int
    kernels: int
    distinct: int
    stages: Mapping[str, float]
    total: float
    cached: float


def measure(path: Path, rounds: int, threads: int | None) -> Times:
    """The best of `rounds`, each one compilation without a cache and one from a cache of its own."""
    return min((_round(path, threads) for _ in range(rounds)), key=lambda t: t.total)


def _round(path: Path, threads: int | None) -> Times:
    read = _milliseconds(lambda: load_onnx(path))
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder))
        start = time.perf_counter()
        model = compile_model(path, cache=False, compile_threads=threads)
        total = 1000 * (time.perf_counter() - start)
        compile_model(path, session=session, compile_threads=threads)
        time.sleep(SETTLED_NS / 1e9)
        cached = min(_start(path, session.folder) for _ in range(_STARTS))
    report = model.report()
    stages = {"read": read} | {s: float(report.compile_ms.get(s, 0.0)) for s in STAGES}
    stages["rest"] = max(0.0, total - sum(stages.values()))
    return Times(
        path.stem, report.nodes or 0, report.kernels, report.distinct_kernels, stages, total, cached
    )


def _start(path: Path, cache: Path) -> float:
    """Milliseconds that a new process needs to open the model."""
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, path.resolve()], env={**os.environ, "TILEWRIGHT_CACHE": str(cache)},
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


def _milliseconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - start)


def table(rows: Iterable[Times]) -> str:
    """The rows as Markdown."""
    heads = ("model", "nodes", "kernels", "distinct", "read", *STAGES, "rest", "total", "cached")
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for row in rows:
        numbers = (*row.stages.values(), row.total, row.cached)
        cells = [row.model, *map(str, (row.nodes, row.kernels, row.distinct)), *(f"{n:.0f}" for n in numbers)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def per_node(path: Path) -> Mapping[str, float]:
    """Milliseconds a node of one compilation without a cache, by phase: `passes` and `fusion` are those of the graph,
    `rest` is reading the model, linking and all else, `total` their sum."""
    marks: list[float] = []

    def mark(progress: Progress) -> None:
        if progress.stage == "graph" and progress.total - progress.done <= FUSION:
            marks.append(time.perf_counter())

    start = time.perf_counter()
    model = compile_model(path, cache=False, progress=mark)
    total = 1000 * (time.perf_counter() - start)
    report = model.report()
    spent = {stage: float(report.compile_ms.get(stage, 0.0)) for stage in STAGES}
    fusion = 1000 * (marks[-1] - marks[0])
    phases = {"passes": spent.pop("graph") - fusion, "fusion": fusion} | spent
    phases |= {"rest": total - sum(phases.values()), "total": total}
    return {phase: ms / (report.nodes or 1) for phase, ms in phases.items()}


def measure_large(sizes: Sequence[int], rounds: int) -> None:
    """Print a row for each family of large models and each number of nodes, as it is measured."""
    with tempfile.TemporaryDirectory() as folder:
        for number, (family, nodes) in enumerate(product(FAMILIES, sizes)):
            path = Path(folder) / f"{family}_{nodes}.onnx"
            onnx.save(FAMILIES[family](nodes), path)
            found = min((per_node(path) for _ in range(rounds)), key=lambda p: p["total"])
            if not number:
                print(f"| model, milliseconds a node | {' | '.join(found)} |\n|---|{'---:|' * len(found)}")
            print(f"| {path.stem} | {' | '.join(f'{ms:.2f}' for ms in found.values())} |", flush=True)
            path.unlink()


def read(path: Path) -> list[Times]:
    """What `--json` wrote; empty where there is no file."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else ()
    return [Times(**row) for row in rows]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compile time by stage.")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="cold compilations of each model [3]")
    parser.add_argument("--threads", type=int, help="threads of LLVM [all that the process may use]")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    chosen = parser.parse_args(arguments)
    rows = [measure(path, chosen.rounds, chosen.threads) for path in chosen.models]
    print(table(rows))
    if chosen.json:
        numbers = {"tilewright": tilewright.__version__, "unit": "ms", "rows": [asdict(row) for row in rows]}
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
