"""Results: one record for an engine on a model with a number of threads, a line of JSON each."""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bench.turns import Standing
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.storage.files import check_file, check_folder


@dataclass(frozen=True)
class Record:
    """What was measured. Times are milliseconds of a call unless named otherwise; None is "not measured".

    `spread` is how far apart the medians of the turns are, over their median. `relative_error` is the largest error
    against float64, over the output's largest magnitude. `resident_mib` is what loading and running added to the
    process. `load_s` is with the engine's cache as it was, `cold_load_s` with an empty one. `failure` says why there
    are no times.
    """

    kind: str
    model: str
    threads: int
    engine: str
    version: str = ""
    median_ms: float | None = None
    min_ms: float | None = None
    p90_ms: float | None = None
    spread: float | None = None
    calls: int = 0
    turns: int = 0
    repeated_turns: int = 0
    disturbed: float | None = None
    relative_error: float | None = None
    resident_mib: float | None = None
    load_s: float | None = None
    cold_load_s: float | None = None
    first_run_s: float | None = None
    failure: str = ""
    about: str = ""
    date: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)


# of an absolute path, which stands at the start, after a space or after a mark: all but its last part
_FOLDERS = re.compile(r"(?<![\w.~/])/(?:[^\s/:'\"]+/)+")


def times(standing: Standing) -> dict[str, Any]:
    """The fields of a record that come from turns."""
    seconds = [s for turn in standing.turns for s in turn.seconds]
    if standing.lost or not seconds:
        return {"failure": standing.lost or "no turn was taken"}
    medians = [statistics.median(turn.seconds) for turn in standing.turns]
    return {
        "median_ms": _ms(statistics.median(seconds)),
        "min_ms": _ms(min(seconds)),
        "p90_ms": _ms(percentile(seconds, 0.9)),
        "spread": round((max(medians) - min(medians)) / statistics.median(medians), 4),
        "calls": len(seconds),
        "turns": len(standing.turns),
        "repeated_turns": standing.repeated,
        "disturbed": round(max(turn.disturbed for turn in standing.turns), 3),
    }


def _ms(seconds: float) -> float:
    return float(f"{1000 * seconds:.5g}")


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at least this share of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(1000 * share * len(ordered)) // 1000) - 1))]


def output_file(text: str) -> Path:
    """The path of a file for results, as an option's value: refused before hours of measuring, not after them."""
    path = Path(text)
    try:
        if path.exists():
            check_file(path)
        check_folder(path.parent)
    except ArtifactError as error:
        raise argparse.ArgumentTypeError(error.what) from error
    return path


def write(record: Record, path: Path) -> None:
    """Append a line. Results are published: a failure's message keeps the names of files, not their folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    published = replace(record, failure=without_folders(record.failure))
    with path.open("a") as file:
        file.write(json.dumps(asdict(published)) + "\n")


def without_folders(message: str) -> str:
    """A message with the names of files alone."""
    return _FOLDERS.sub("", message)


def read(paths: Iterable[Path]) -> list[Record]:
    """All records of these files; of two for the same engine, model and threads the later one counts."""
    known = {f.name for f in fields(Record)}
    latest: dict[tuple[str, str, int, str], Record] = {}
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not line.strip():
                continue
            try:
                record = Record(**{k: v for k, v in json.loads(line).items() if k in known})
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number} is no record: {error}") from error
            latest[record.kind, record.model, record.threads, record.engine] = record
    return list(latest.values())
