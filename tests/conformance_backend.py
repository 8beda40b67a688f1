"""The compiler as a backend for runners of ONNX conformance cases: `prepare(model, path)` gives a function of
the inputs (in the graph's order) that returns the outputs. Models are compiled once, with no input bound to a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx

import tilewright
from tilewright.options import Options

Run = Callable[[Sequence[Any]], list[Any]]

OPTIONS = Options(cache=False, threads=1)


def prepare(model: onnx.ModelProto, path: str | Path) -> Run:
    """Compile the model; raises UnsupportedError or ModelError where that is refused."""
    preset = {t.name for t in model.graph.initializer} | {s.values.name for s in model.graph.sparse_initializer}
    names = [i.name for i in model.graph.input if i.name not in preset]
    compiled = tilewright.compile(str(path), options=OPTIONS)

    def run(inputs: Sequence[Any]) -> list[Any]:
        given = dict(zip(names, inputs, strict=True))
        return list(compiled(*[given[i.name] for i in compiled.inputs]))

    return run


prepare.prepare = prepare  # type: ignore[attr-defined]
