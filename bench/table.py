"""Writes the table of results into README.md from bench/results.json. Run by `make docs`; a test compares.

The file is `{"machine": text, "date": text, "rows": [row, ...]}`, a row `{"model": name, "threads": n,
"tilewright": ms, "onnxruntime": ms, "openvino": ms}`; an engine that cannot run a model is left out or null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"
README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
OURS = "tilewright"
PEERS = ("onnxruntime", "openvino")


def with_table(readme: str, results: Mapping[str, Any] | None) -> str:
    """The README with its table replaced."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


def table(results: Mapping[str, Any] | None) -> str:
    """The table as Markdown: milliseconds, and our time over that of the better peer."""
    if results is None:
        return "Not measured yet: `bench/results.json` does not exist."
    rows = results["rows"]
    lines = [
        "| model | threads | tilewright, ms | ONNX Runtime, ms | OpenVINO, ms | ours / better of the two |",
        "|---|---:|---:|---:|---:|---:|",
        *map(_line, rows),
        f"\nGeometric mean of the last column: {_geometric_mean(rows)}. {results['machine']}; {results['date']}.",
    ]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    cells = [row["model"], str(row["threads"])]
    cells += [_ms(row.get(engine)) for engine in (OURS, *PEERS)]
    ratio = ratio_of(row)
    return f"| {' | '.join([*cells, '' if ratio is None else f'{ratio:.2f}'])} |"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def ratio_of(row: Mapping[str, Any]) -> float | None:
    """Our time over the least of the peers'; None where one of the two is missing."""
    ours, theirs = row.get(OURS), [row[p] for p in PEERS if row.get(p) is not None]
    return None if ours is None or not theirs else float(ours / min(theirs))


def _geometric_mean(rows: Sequence[Mapping[str, Any]]) -> str:
    logs = [math.log(r) for r in map(ratio_of, rows) if r is not None]
    return f"{math.exp(sum(logs) / len(logs)):.2f}" if logs else "none"


def load() -> Mapping[str, Any] | None:
    """The results, or None before the first measurement."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else None


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(), load()))
