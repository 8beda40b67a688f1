"""Writes docs/emulated.md from docs/emulated.json: exported models on machines that are emulated.

The file is written by `python -m tests.exporters.library.emulated`. Run by `make docs`; a test compares.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

PAGE = Path(__file__).parent / "emulated.md"
RESULTS = Path(__file__).parent / "emulated.json"

INTRODUCTION = """\
# Models on other machines

Made by `make docs` from `docs/emulated.json`, which `python -m tests.exporters.library.emulated` writes; do not edit.

Trained models, exported for each of these targets (`tilewright export --target ...`) and run by an emulator: qemu-user
for AArch64, RISC-V and IBM Z (where the high byte comes first), node and wasmtime for WebAssembly. The inputs are those
that models come with, or drawn. A cell is the largest difference from what the same model gives on x86-64, as a part of
the largest element of an output; *equal* is no difference at all, and **equal** one whose outputs are all integers.
Emulators tell whether code is right, and not how fast it is. What they take many minutes for is left empty.
"""


@dataclass(frozen=True)
class Cell:
    """A model on a machine: the largest difference (infinite where there is none), whether all outputs are integers,
    how many seconds export and run took, and why there is no answer."""

    difference: float
    integers: bool
    seconds: float
    why: str = ""


Results = dict[str, dict[str, Cell]]
"""By machine and model."""


def load() -> Results:
    content = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {machine: {name: Cell(**cell) for name, cell in cells.items()} for machine, cells in content.items()}


def as_json(results: Results) -> str:
    content = {m: {name: asdict(c) for name, c in sorted(cells.items())} for m, cells in results.items()}
    return json.dumps(content, indent=1) + "\n"


def shown(cell: Cell) -> str:
    if cell.why:
        return "none"
    if cell.difference == 0:
        return "**equal**" if cell.integers else "equal"
    return f"{cell.difference:.0e}"


def page(results: Results) -> str:
    """The text of the page: a row for each model."""
    names = sorted(set().union(*results.values()))
    lines = [INTRODUCTION, f"| model | {' | '.join(results)} |", f"|---|{'---|' * len(results)}"]
    reasons: dict[str, int] = {}
    for name in names:
        cells = []
        for machine in results:
            cell = results[machine].get(name)
            text = "" if cell is None else shown(cell)
            if cell is not None and cell.why:
                text += f" ({reasons.setdefault(cell.why, len(reasons) + 1)})"
            cells.append(text)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    notes = [f"{number}. {why}" for why, number in reasons.items()]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(load()))
