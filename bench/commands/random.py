"""Ours beside others on models of random shapes: batches of 1-32, images of 160-640, sequences of 1-512."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import ratios
from bench.cases import Case
from bench.commands import measuring
from bench.commands.summary import summary_of_ratios
from bench.shapes.sample import make_case


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed", type=int, default=0, help="models of the same seed and number are the same [0]"
    )
    parser.add_argument("--count", type=int, default=40, help="models [40]")
    parser.add_argument("--first", type=int, default=0, help="number of the first one [0]")
    parser.add_argument("--keep", type=Path, help="leave the models in this folder")
    measuring.add_options(parser, "onnxruntime,openvino")


def run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = measuring.measure_all(_cases(options, folder), options)
    print(summary_of_ratios(ratios.rows(found)))
    return 0


def _cases(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    for number in range(options.first, options.first + options.count):
        case = make_case(options.seed, number, folder)
        print(f"{case.name}: {case.about}")
        yield case
        if not options.keep:
            case.model.unlink()
            case.arrays.unlink()
