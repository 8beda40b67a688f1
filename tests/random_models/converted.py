"""Random ONNX models: read and written again as ONNX, ONNX Runtime gives for them what it gave before."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx

from tests.fuzz.registry import Tried
from tests.random_models.fuzz import OUT_OF_RANGE, compare, described, explained, grown, with_other_sizes
from tests.random_models.growth import run_onnxruntime
from tilewright.exporters.convert import graph_to_convert
from tilewright.exporters.onnx.write import OPSETS, onnx_model
from tilewright.ir.diag import ExecutionError, TilewrightError, UnsupportedError
from tilewright.options import Request
from tilewright.session import Session

NEWEST = 25
"""Of later versions of the operator set ONNX Runtime has too little."""

LENIENT = ("GroupNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
"""Operators of which ONNX Runtime broadcasts operands that must be as long as others; what is written does not."""

NOT_IN_THE_ENGINE = (
    "NOT_IMPLEMENTED",
    "Could not find an implementation",
    "dim0_offset < dim0_size was false",  # a Scan of no trips
)
"""Texts of errors for what ONNX Runtime does not have."""


def fuzz(seed: int) -> Tried:
    """Convert a random model to a random version of the operator set, and run what was written."""
    growth, tried = grown(seed)
    results = growth.results()
    if not results:
        return tried
    model, opset = growth.model(results), random.Random(seed).choice([None, *range(OPSETS[0], NEWEST + 1)])
    try:
        written = converted(model, opset)
    except TilewrightError as e:
        reason = "refused" if isinstance(e, UnsupportedError) else explained(e)
        if not reason:
            e.add_note(described(model))
            raise
        tried["model", reason] += 1
        return tried
    except Exception as e:
        e.add_note(f"{described(model)}\nto {opset}")
        raise
    try:
        onnx.checker.check_model(written, full_check=True)
        tried["model", run(written, growth.inputs, results)] += 1
        is_checked = any(p.key == "tilewright.assumed" for p in written.metadata_props)
        may_make_no_trip = any(node.op_type in ("Loop", "Scan") for node in growth.nodes)  # rows have which shape then?
        is_lenient = any(node.op_type in LENIENT for node in growth.nodes)
        other_sizes = growth.symbolic and growth.is_continuous and not (is_checked or may_make_no_trip or is_lenient)
        if other_sizes and tried["model", "converted"]:
            tried["other sizes", with_other_sizes(growth, model, Again(written), results)] += 1
    except Exception as e:
        e.add_note(f"{described(model)}\nto {opset}:\n{described(written)}")
        raise
    tried += Counter({(op, "converted"): count for op, count in growth.applied.items()})
    return tried


def converted(model: onnx.ModelProto, opset: int | None) -> onnx.ModelProto:
    """The model written again."""
    module = graph_to_convert(Request.of(model, None, None), Session())
    return onnx_model(module, opset=opset)


class Again:
    """A model that is called with arrays in the order of its inputs."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model

    def __call__(self, *arrays: np.ndarray) -> Sequence[np.ndarray]:
        names = [value.name for value in self._model.graph.input]
        try:
            return run_onnxruntime(self._model, dict(zip(names, arrays, strict=True)))
        except RuntimeError as e:
            if "out of data bounds" in str(e):  # which is not checked of all operators
                raise ExecutionError(OUT_OF_RANGE) from e
            raise


def run(written: onnx.ModelProto, inputs: dict[str, np.ndarray], results: Sequence) -> str:
    """Compare what the written model gives."""
    try:
        found = Again(written)(*inputs.values())
    except Exception as e:
        if any(text in str(e) for text in NOT_IN_THE_ENGINE):
            return "not in the engine"
        raise
    compare(results, found)
    return "converted"
