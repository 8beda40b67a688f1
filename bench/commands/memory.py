"""Plans of memory beside simpler ones and the bound; with --beside what deployed models take, beside other engines."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import footprint, plans, records
from bench.cases import Case
from bench.commands import measuring
from bench.peers import OURS
from tilewright.program.memory.effort import EFFORTS

SUFFIXES = (".json", ".csv", ".onnx", ".tflite")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE",
        help="graphs (.json), boxes (.csv), models (.onnx, .tflite), or folders; models alone with --beside",
    )  # fmt: skip
    parser.add_argument("--effort", choices=tuple(EFFORTS), default="fast", help="what a plan may take [fast]")
    parser.add_argument(
        "--beside", type=measuring.engine_names, metavar="NAMES",
        help="size, start and memory of models (with inputs and references in NAME.npz), and these engines',"
        " such as onnxruntime,openvino",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, help="of each engine [1]")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each engine [3]")
    parser.add_argument("--out", type=records.output_file, help="append what engines took, a line of JSON each")
    parser.add_argument(
        "--python", action="append", default=[], type=measuring.assignment, metavar="ENGINE=PATH",
        help="the Python that has this engine [that of `install`; for ours this one]",
    )  # fmt: skip
    measuring.add_places(parser)


def run(options: argparse.Namespace) -> int:
    if options.beside is None:
        return _plans(options)
    return _footprints(options)


def _plans(options: argparse.Namespace) -> int:
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


def _footprints(options: argparse.Namespace) -> int:
    if min(options.threads, options.rounds) < 1:
        raise ValueError("--threads and --rounds are at least 1")
    chosen = [OURS, *(name for name in options.beside if name != OURS)]
    pythons = measuring.pythons(chosen, options.home, dict(options.python))
    cases = [Case("footprint", path.stem, path, path.with_suffix(".npz")) for path in options.files]
    if missing := [str(path) for case in cases for path in (case.model, case.arrays) if not path.is_file()]:
        raise ValueError(f"there is no {', no '.join(missing)}")
    rows: list[footprint.Footprint] = []
    for case in cases:
        made = footprint.measure(case, pythons, options.threads, options.home / "cache" / "footprint", options.rounds)
        if options.out:
            footprint.write(made, options.out)
        rows += made
    print(footprint.table(rows))
    return 0
