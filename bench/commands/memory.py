"""Plans of memory beside simpler ones and the bound, over graphs, boxes and models."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import plans
from tilewright.program.memory.effort import EFFORTS

SUFFIXES = (".json", ".csv", ".onnx", ".tflite")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE",
        help="graphs (.json), boxes (.csv), models (.onnx, .tflite), or folders",
    )  # fmt: skip
    parser.add_argument("--effort", choices=tuple(EFFORTS), default="fast", help="what a plan may take [fast]")


def run(options: argparse.Namespace) -> int:
    rows = []
    for path in options.files:
        found = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES) if path.is_dir() else [path]
        graphs = {p.with_suffix("") for p in found if p.suffix == ".json"}
        for file in found:
            if file.suffix == ".csv" and file.with_suffix("") in graphs:
                continue  # the boxes of that graph
            rows.append(plans.row_of(file, EFFORTS[options.effort]))
            print(plans.table(rows[-1:]).splitlines()[-1], flush=True)
    print(plans.table(rows))
    return 0
