"""What deployed models take, engine by engine: files, the start of a cold process, memory. `bench.deployed` is the
process of one engine."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import machine, peers, records
from bench.cases import Case
from bench.engine import REASON_CHARACTERS, ROOT, process_environment

LONGEST_S = 900
MIB = 1 << 20


@dataclass(frozen=True)
class Footprint:
    """What an engine takes with a model: medians of several processes, in bytes and milliseconds.

    `artefact` is what is deployed for the model, `runtime` the packages that run it, without Python and NumPy.
    `answer_ms` is from the start of a process to its first answer; of that `load_ms` went into importing the engine and
    loading, `first_ms` into the first call; `steady_ms` is the median of later calls. `loaded` is what importing and
    loading added to the memory of the process, `resident` what these and calls did; `private` is the part of `resident`
    that is no file's, and `peak` the most that was added at any time. `failure` says why there is nothing.
    """

    model: str
    engine: str
    threads: int
    version: str = ""
    artefact: int = 0
    runtime: int = 0
    answer_ms: float = 0.0
    load_ms: float = 0.0
    first_ms: float = 0.0
    steady_ms: float = 0.0
    loaded: int = 0
    resident: int = 0
    private: int = 0
    peak: int = 0
    relative_error: float | None = None
    failure: str = ""
    machine: Mapping[str, Any] | None = None


MEASURED = ("answer_ms", "load_ms", "first_ms", "steady_ms", "loaded", "resident", "private", "peak")


def measure(
    case: Case, pythons: Mapping[str, str], threads: int, cache: Path, rounds: int
) -> list[Footprint]:
    """A footprint for each engine, in the order of `pythons`; their processes take turns."""
    found = {
        name: _deployed(Footprint(case.name, name, threads), case, python, cache)
        for name, python in pythons.items()
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, (row, files) in found.items():
            if row.failure:
                continue
            started = time.monotonic_ns()
            told = _process("run", row, files[0], case, pythons[name], cache)
            if "failed" in told:
                found[name] = (replace(row, failure=told["failed"]), files)
                continue
            told["answer_ms"] = (told.pop("answered_ns") - started) / 1e6
            runs[name].append(told)
    return [_median(row, runs[name]) for name, (row, _) in found.items()]


def _deployed(row: Footprint, case: Case, python: str, cache: Path) -> tuple[Footprint, list[Path]]:
    told = _process("files", row, case.model, case, python, cache)
    if "failed" in told:
        return replace(row, failure=told["failed"]), []
    files = [Path(path) for path in told["files"]]
    size = sum(path.stat().st_size for path in files)
    return replace(row, artefact=size, runtime=told["runtime"], version=told["version"]), files


def _median(row: Footprint, runs: Sequence[Mapping[str, Any]]) -> Footprint:
    if row.failure or not runs:
        return row
    middle = {name: statistics.median_low(run[name] for run in runs) for name in MEASURED}
    middle |= {name: float(f"{value:.5g}") for name, value in middle.items() if name.endswith("_ms")}
    return replace(row, **middle, relative_error=max(run["relative_error"] for run in runs))


def _process(step: str, row: Footprint, model: Path, case: Case, python: str, cache: Path) -> dict[str, Any]:
    """What the process of an engine says; `failed` with its last words if it says nothing."""
    own = (cache / row.engine / case.name).resolve()
    own.mkdir(parents=True, exist_ok=True)
    command = [python, "-m", "bench.deployed", step, row.engine, str(model.resolve()), str(case.arrays.resolve())]
    try:
        done = subprocess.run(
            [*command, "--threads", str(row.threads), "--cache", str(own)],
            cwd=ROOT,
            env=process_environment(peers.describe(row.engine).variables(row.threads), None),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {LONGEST_S} s"}
    if done.returncode or not done.stdout:
        words = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "nothing")
        return {"failed": f"the process ended with {done.returncode}: {words}"[:REASON_CHARACTERS]}
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


HEADS = (
    "model", "engine", "artefact, MiB", "runtime, MiB", "first answer, ms", "of which load", "first call",
    "steady call", "loaded, MiB", "after calls", "of which private", "peak", "error",
)  # fmt: skip


def table(rows: Sequence[Footprint]) -> str:
    """The rows as Markdown."""
    lines = [f"| {' | '.join(HEADS)} |", "|---|---|" + "---:|" * (len(HEADS) - 2)]
    return "\n".join([*lines, *map(_line, rows)])


def _line(row: Footprint) -> str:
    name = [row.model, peers.describe(row.engine).title]
    if row.failure:
        reason = row.failure.replace("|", "\\|").replace("`", "'")[:100]
        return f"| {' | '.join([*name, f'fails: {reason}', *[''] * (len(HEADS) - 3)])} |"
    sizes = [_mib(row.artefact), _mib(row.runtime)]
    times = [f"{value:.3g}" if value < 100 else f"{value:.0f}" for value in
             (row.answer_ms, row.load_ms, row.first_ms, row.steady_ms)]  # fmt: skip
    memory = [_mib(value) for value in (row.loaded, row.resident, row.private, row.peak)]
    error = "" if row.relative_error is None else f"{row.relative_error:.1e}"
    return f"| {' | '.join([*name, *sizes, *times, *memory, error])} |"


def _mib(size: int) -> str:
    return f"{size / MIB:.1f}"


def write(rows: Sequence[Footprint], path: Path) -> None:
    """Append a line of JSON for each row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for row in rows:
            published = replace(row, failure=records.without_folders(row.failure), machine=machine.facts())
            file.write(json.dumps(asdict(published)) + "\n")


def read(path: Path) -> list[Footprint]:
    """What `write` wrote, of two rows for the same model, engine and threads the later one; none without a file."""
    lines = path.read_text().splitlines() if path.exists() else ()
    rows = [Footprint(**json.loads(line)) for line in lines]
    return list({(row.model, row.threads, row.engine): row for row in rows}.values())
