"""Ours beside others on trained models: folders with model.onnx and test_data_set_0/{input,output}_K.pb."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from bench import ratios
from bench.cases import Case, write_arrays
from bench.commands import measuring
from bench.commands.summary import summary_of_ratios

KIND = "real"
DATA = "test_data_set_0"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="a folder of such folders, or one of them")
    parser.add_argument("--only", default="", metavar="TEXT", help="those with this text in their name")
    measuring.add_options(parser, "onnxruntime,openvino")


def run(options: argparse.Namespace) -> int:
    folders = model_folders(options.folder, options.only)
    with tempfile.TemporaryDirectory() as scratch:
        found = measuring.measure_all(_cases(folders, Path(scratch)), options)
    print(summary_of_ratios(ratios.rows(found)))
    return 0


def model_folders(folder: Path, text: str = "") -> list[Path]:
    """The folders with a model and data; ValueError when there are none."""
    candidates = [folder, *sorted(folder.iterdir())] if folder.is_dir() else []
    found = [f for f in candidates if (f / "model.onnx").exists() and (f / DATA).is_dir() and text in f.name]
    if not found:
        raise ValueError(f"{folder} has no folder with model.onnx and {DATA}")
    return found


def _cases(folders: list[Path], scratch: Path) -> Iterator[Case]:
    for folder in folders:
        case = Case(KIND, folder.name, folder / "model.onnx", scratch / "arrays.npz")
        try:
            write_arrays(case.arrays, *read_data(folder))
        except (TypeError, ValueError) as error:
            print(f"{folder.name}: left out, {error}")
            continue
        yield case


def read_data(folder: Path) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Inputs by name and stored outputs; ValueError for texts, which are no numbers to measure with."""
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weights]
    inputs, outputs = _arrays(folder / DATA, "input"), _arrays(folder / DATA, "output")
    if any(array.dtype == object for array in [*inputs, *outputs]):
        raise ValueError("it reads or writes texts")
    return dict(zip(names, inputs, strict=False)), outputs


def _arrays(folder: Path, what: str) -> list[np.ndarray]:
    files = sorted(folder.glob(f"{what}_*.pb"), key=lambda path: int(path.stem.rpartition("_")[2]))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())) for path in files]
