"""`load_onnx`: an ONNX model becomes a graph-level Module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from tilewright.frontends.exported.one_sequence import required_sequence
from tilewright.frontends.inputs import Declared
from tilewright.frontends.onnx import adapters as adapters
from tilewright.frontends.onnx.file import Source, read_model
from tilewright.frontends.onnx.importer import MAX_NODES, Importer, opsets_of
from tilewright.frontends.onnx.schema import NEWEST_OPSET
from tilewright.frontends.onnx.structure import check_expansion, functions_of
from tilewright.frontends.onnx.tensors import dtype_of
from tilewright.frontends.onnx.types import element_type
from tilewright.frontends.problems import shown
from tilewright.frontends.translation import Results, Translation, translated
from tilewright.ir.core import Module, Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.types import HostType

OPSETS = range(1, NEWEST_OPSET + 1)
"""Versions of the default operator set that can be read."""


def load_onnx(
    source: Source,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    is_decoder: bool = False,
) -> Module:
    """Translate the model at a path (or given as bytes or ModelProto) to a Module with one function `main`, as a front
    end's `load` does; one that `is_decoder` is of one sequence. ModelError when the file is broken, UnsupportedError
    listing all that is not supported."""
    model, folder = read_model(source)
    graph, opsets, functions = model.graph, opsets_of(model), functions_of(model)
    version = opsets.get("")
    if version is not None and version not in OPSETS:
        raise UnsupportedError(
            f"the model uses version {version} of the default operator set; "
            f"supported are {OPSETS[0]} to {OPSETS[-1]}",
            hint="export it again, for a version in that range",
        )
    check_expansion(graph.node, functions, MAX_NODES)

    declared = _inputs(graph)
    sequence = required_sequence(declared) if is_decoder else None

    def translate(translation: Translation, inputs: dict[str, Value | None]) -> Results:
        if sequence is not None:
            inputs = {**inputs, **sequence.values(inputs)}
        return Importer(translation, functions, folder, model.producer_name).main(graph, opsets, inputs)

    outputs = [o.name for o in graph.output]
    inputs = declared if sequence is None else sequence.inputs
    return translated(inputs, outputs, len(graph.node), translate, constants=constants, shapes=shapes)


def _inputs(graph: onnx.GraphProto) -> dict[str, Declared]:
    """Inputs that have no initializer, by name."""
    preset = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    names: set[str] = set()
    for info in graph.input:
        if not info.name or info.name in names:
            raise ModelError(
                f"two graph inputs are named '{shown(info.name)}'"
                if info.name
                else "a graph input has no name",
                hint="export the model again",
            )
        names.add(info.name)
    return {info.name: _declared(info) for info in graph.input if info.name not in preset}


def _declared(info: onnx.ValueInfoProto) -> Declared:
    where = f"graph input '{shown(info.name)}'"
    kind = info.type.WhichOneof("value")
    if kind is None:
        raise ModelError("the input has no type", where=where, hint="export the model again")
    if kind != "tensor_type":
        host = element_type(info.type, where)
        assert isinstance(host, HostType)
        return Declared(host)
    tensor = info.type.tensor_type
    dtype = dtype_of(tensor.elem_type, where)
    return Declared(dtype, tuple(map(_dim, tensor.shape.dim)) if tensor.HasField("shape") else None)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return None if dim.dim_value == -1 else int(dim.dim_value)
    # exporters write "?" for dims that they know nothing about, which need not be equal
    return str(dim.dim_param) if any(c.isalnum() for c in dim.dim_param) else None
