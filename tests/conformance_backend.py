"""The compiler as a backend for runners of ONNX conformance cases: `prepare(model, path)` gives a function of
the inputs (in the graph's order) that returns the outputs.

Operators whose attribute-like inputs must be known at compile time are compiled when the inputs are there, those
inputs bound as constants: the specialisation that `constants=` offers to every user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tilewright
from tilewright.frontends.errors import ConstantNeededError
from tilewright.options import Options

Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]

OPTIONS = Options(cache=False, threads=1)
MAX_ROUNDS = 4


def prepare(model: onnx.ModelProto, path: str | Path) -> Run:
    """Compile the model; raises UnsupportedError or ModelError where that is refused."""
    preset = {t.name for t in model.graph.initializer} | {s.values.name for s in model.graph.sparse_initializer}
    names = [i.name for i in model.graph.input if i.name not in preset]
    compiled: list[tilewright.Model] = []
    with suppress(ConstantNeededError):  # those are compiled below, once for each set of inputs
        compiled.append(tilewright.compile(str(path), options=OPTIONS))

    def run(inputs: Sequence[Any]) -> list[np.ndarray]:
        given = dict(zip(names, inputs, strict=True))
        built = compiled[0] if compiled else specialised(path, given)
        return list(built(*[np.asarray(given[i.name]) for i in built.inputs]))

    return run


def specialised(path: str | Path, given: dict[str, Any]) -> tilewright.Model:
    """The model with the inputs that must be known bound to their values."""
    constants: dict[str, np.ndarray] = {}
    for _ in range(MAX_ROUNDS):
        try:
            return tilewright.compile(str(path), options=OPTIONS, constants=constants)
        except ConstantNeededError as e:
            constants |= {name: np.asarray(given[name]) for name in e.inputs}
        except tilewright.TilewrightError as e:
            raise NotImplementedError(str(e)) from e  # what runners count as a refusal
    raise NotImplementedError("more and more inputs must be known")


prepare.prepare = prepare  # type: ignore[attr-defined]
