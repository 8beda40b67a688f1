"""A model as ONNX text, with weights and inputs drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from bench.cases import Case, write_arrays

KIND = "dynamic"
HEAD = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1, "ai.onnx.ml" : 3]>'


@dataclass(frozen=True)
class Dynamic:
    """A graph in the text of `onnx.parser`, of which `weights` are initializers by name, or a made model; and the
    inputs of a call."""

    graph: str | onnx.ModelProto
    inputs: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]

    def model(self) -> onnx.ModelProto:
        if isinstance(self.graph, onnx.ModelProto):
            return self.graph
        made = parser.parse_model(f"{HEAD}\n{self.graph}")
        made.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in self.weights.items())
        return made


MODELS: dict[str, Callable[[np.random.Generator], Dynamic]] = {}
"""By name; each takes the random numbers that it may draw."""


def dynamic(make: Callable[[np.random.Generator], Dynamic]) -> Callable[[np.random.Generator], Dynamic]:
    """Register a model under the name of its function."""
    MODELS[make.__name__] = make
    return make


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(np.float32)


References = Callable[[Path, Mapping[str, np.ndarray]], list[np.ndarray]]
"""The outputs of the model of a file for inputs by name."""


def make_case(name: str, folder: Path, references: References) -> Case:
    """Write a model and its arrays into a folder."""
    found = MODELS[name](np.random.default_rng(17))
    case = Case(KIND, name, folder / f"{name}.onnx", folder / f"{name}.npz")
    onnx.save(found.model(), case.model)
    write_arrays(case.arrays, found.inputs, references(case.model, found.inputs))
    return case
