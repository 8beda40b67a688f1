"""Ours beside others on loops, branches, recurrent layers, positions, trees and steps of decoding."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import ratios
from bench.cases import Case
from bench.commands import measuring
from bench.commands.summary import summary_of_ratios
from bench.dynamic import control, models, positions
from bench.dynamic.model import MODELS, make_case
from bench.references import by_onnxruntime

__all__ = ["add_options", "control", "models", "positions", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="names with one of these texts in them [all]"
    )
    parser.add_argument("--keep", type=Path, help="leave the models in this folder")
    measuring.add_options(parser, "onnxruntime")


def run(options: argparse.Namespace) -> int:
    names = [name for name in MODELS if not options.models or any(text in name for text in options.models)]
    if not names:
        raise ValueError(f"no such model: {', '.join(options.models)}; there are {', '.join(MODELS)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = measuring.measure_all(_cases(names, folder), options)
    print(summary_of_ratios(ratios.rows(found)))
    return 0


def _cases(names: list[str], folder: Path) -> Iterator[Case]:
    for name in names:
        yield make_case(name, folder, by_onnxruntime)
