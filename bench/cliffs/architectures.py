"""Cases of a list of architectures: a line each, exported once and kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.cases import Case, relative_error, write_arrays
from bench.cliffs.families import Architecture, export_listed
from bench.references import by_onnxruntime

KIND = "architectures"
LISTED = Path(__file__).with_suffix(".txt")
"""The list that is measured when no other is given."""

SAME_MODEL = 1e-2
"""Relative difference up to which a file is taken for the model that it was exported from."""


def read_list(path: Path, batches: Sequence[int]) -> list[Architecture]:
    """Those of a file, each with each batch; ValueError names a line that is none."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        package, _, rest = line.partition(" ")
        name, _, options = rest.partition(" ")
        if not line.strip() or package.startswith("#"):
            continue
        try:
            given = json.loads(options or "{}")
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: {options} is no JSON: {error}") from error
        if package not in ("timm", "transformers") or not name or not isinstance(given, dict):
            raise ValueError(
                f"{path}, line {number}: '{line}' is not `timm NAME` or `transformers TYPE`, with an object of "
                "options after it or nothing"
            )
        found += [Architecture(package, name, batch, given) for batch in batches]
    return found


def cases(found: Sequence[Architecture], folder: Path) -> Iterator[Case]:
    """A case of each, exported into a folder unless it is there; what cannot be exported is told and left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for architecture in found:
        name = str(architecture)
        case = Case(KIND, name, folder / f"{name}.onnx", folder / f"{name}.npz")
        try:
            if not case.arrays.exists():  # written last
                inputs, exact = export_listed(architecture, case.model)
                write_arrays(case.arrays, inputs, _of_the_file(case, inputs, exact))
        except Exception as error:  # PyTorch raises classes of its own
            case.model.unlink(missing_ok=True)
            print(f"{name}: left out, {' '.join(str(error).split())[:300]}", flush=True)
            continue
        yield case


def _of_the_file(case: Case, inputs: Mapping[str, np.ndarray], exact: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """What the file should give: what the model gives exactly, unless the exporter wrote another model (of longformer's
    attention, say), which is told."""
    found = by_onnxruntime(case.model, inputs)
    if relative_error(found, exact) <= SAME_MODEL:
        return exact
    print(f"{case.name}: the file is another model than was exported; compared with ONNX Runtime's f32", flush=True)
    return found
