"""Where one kernel in the place of two would save most, of all models of a folder: `python -m bench.missed FOLDER`.

A table as `tilewright explain` ranks them (estimates for one thread; edges that are alike are one row), and below it
how many edges there are, and how many of them, and of the kernels, lack a reason or a node.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tilewright
from tilewright.accounts.explanation import MissedOpportunity, costliest
from tilewright.cli.explained import milliseconds
from tilewright.runtime.report.records import ProgramReport
from tilewright.target.hardware import measured_hertz


@dataclass(frozen=True)
class Row:
    """An opportunity, and the model that has it."""

    model: str
    missed: MissedOpportunity

    def text(self, hertz: float) -> str:
        edge = self.missed.edge
        cells = (
            milliseconds(self.missed.cycles, hertz), str(self.missed.count), self.model,
            f"{edge.producer} to {edge.consumer}", edge.type, edge.reason,
        )  # fmt: skip
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def reports(folder: Path) -> Iterable[tuple[str, ProgramReport]]:
    """Those of the ONNX models of a folder, by the names of their files."""
    for path in sorted(folder.glob("*.onnx")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield path.stem, tilewright.compile(path, threads=1).artifact.summary()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=10, help="rows of the table")
    given = parser.parse_args()
    rows: list[Row] = []
    edges = unexplained = unnamed = 0
    for model, report in reports(given.folder):
        rows += [Row(model, missed) for missed in costliest(report, given.most)]
        edges += len(report.edges)
        unexplained += sum(not edge.reason for edge in report.edges)
        unnamed += sum(not call.nodes for call in report.calls)
    print("| saved by one kernel | edges | network | from, to | value | why two kernels |\n|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: -row.missed.cycles)[: given.most]:
        print(row.text(measured_hertz()))
    print(f"\n{edges} edges, {unexplained} without a reason; {unnamed} kernels without a node")


if __name__ == "__main__":
    main()
