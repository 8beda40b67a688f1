"""Ours beside others on loops, branches, recurrent layers, positions, trees and steps of decoding."""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from bench import ratios
from bench.cases import Case
from bench.commands import measuring
from bench.commands.summary import summary_of_ratios
from bench.dynamic import control, models, positions
from bench.dynamic.model import MODELS, make_case

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
        yield make_case(name, folder, _references)


def _references(model: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes without optimisations: it is installed beside ours here."""
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, dict(inputs))]
