"""`load_onnx`: an ONNX model becomes a graph-level Module."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx

from tilewright.frontends.onnx.dims import Dims, input_type
from tilewright.frontends.onnx.errors import shown
from tilewright.frontends.onnx.file import Source, read_model
from tilewright.frontends.onnx.importer import MAX_NODES, Importer, Scope
from tilewright.frontends.onnx.schema import NEWEST_OPSET
from tilewright.frontends.onnx.structure import check_expansion, functions_of
from tilewright.frontends.onnx.tensors import dtype_of
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.types import TensorType
from tilewright.ops.define import constant

OPSETS = range(6, NEWEST_OPSET + 1)
"""Versions of the default operator set that can be read."""


def load_onnx(
    source: Source,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    untyped: Collection[str] = (),
) -> Module:
    """Translate the model at a path (or given as bytes or ModelProto) to a Module with one function `main`.

    `constants` fixes graph inputs to values, and they are no inputs any more (those that `untyped` names take
    the dtype of their input where it can hold them); `shapes` replaces the shapes of graph inputs (a string is
    a symbolic dim). `main.attrs["inputs"]` and `["outputs"]` are the names of
    the file, and `["nodes"]` is how many nodes its graph has. ModelError when the file is broken,
    UnsupportedError listing all that is not supported.
    """
    model, folder = read_model(source)
    opsets = _opsets(model)
    functions = functions_of(model)
    check_expansion(model.graph.node, functions, MAX_NODES)
    inputs = _graph_inputs(model.graph)
    fixed = {name: np.asarray(value) for name, value in (constants or {}).items()}
    shapes = shapes or {}
    _check_names(inputs, fixed, "constants=")
    _check_names(inputs, shapes, "shapes=")
    dims = Dims()
    types = {name: input_type(info, dims, shapes) for name, info in inputs.items()}
    free = [name for name in inputs if name not in fixed]
    block = Block([types[name] for name in free], free)
    module = Module()
    builder = Builder(block, module)
    scope = Scope(opsets, dict(zip(free, block.args, strict=True)))
    importer = Importer(module, builder, functions, folder)
    with builder:
        for name, array in fixed.items():
            value = _converted(array, types[name].dtype) if name in untyped else array
            scope.values[name] = constant(_checked_constant(name, value, types[name]), name)
        try:
            importer.translate(model.graph, scope)
        except RecursionError as e:
            raise ModelError(
                "the model is nested too deeply", hint="export it without so many subgraphs"
            ) from e
        importer.problems.raise_if_any()
        results = [_checked_output(info, scope) for info in model.graph.output]
        builder.emit("return", results)
    names = tuple(o.name for o in model.graph.output)
    attrs = {"inputs": tuple(free), "outputs": names, "nodes": len(model.graph.node)}
    module.add(Func("main", block, "graph", attrs))
    return module


def _opsets(model: onnx.ModelProto) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for imported in model.opset_import:
        domain = "" if imported.domain == "ai.onnx" else imported.domain
        opsets[domain] = max(imported.version, opsets.get(domain, imported.version))
    version = opsets.get("")
    if version is not None and version not in OPSETS:
        raise UnsupportedError(
            f"the model uses version {version} of the default operator set; "
            f"supported are {OPSETS[0]} to {OPSETS[-1]}",
            hint="convert it with onnx.version_converter, or export it again",
        )
    return opsets


def _graph_inputs(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """Inputs that have no initializer, by name."""
    preset = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    found: dict[str, onnx.ValueInfoProto] = {}
    for info in graph.input:
        if not info.name or info.name in found:
            raise ModelError(
                f"two graph inputs are named '{shown(info.name)}'"
                if info.name
                else "a graph input has no name",
                hint="export the model again",
            )
        if info.name not in preset:
            found[info.name] = info
    return found


def _check_names(inputs: Mapping[str, object], given: Mapping[str, object], option: str) -> None:
    for name in given:
        if name not in inputs:
            raise ModelError(
                f"{option} names '{shown(name)}', which is no input of the model",
                hint=f"inputs: {', '.join(map(shown, inputs)) or 'none'}",
            )


def _converted(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Numbers without a dtype of their own in `dtype`; as they are where their kind or a value does not fit."""
    kinds = "b" if dtype.kind == "bool" else "iu" if dtype.is_int else "iuf" if dtype.is_float else ""
    if array.size and array.dtype.kind not in kinds:
        return array
    with np.errstate(all="ignore"):
        converted = array.astype(dtype.storage)
        if dtype.is_float:
            kept = np.isfinite(converted.astype(np.float64)) == np.isfinite(array.astype(np.float64))
        else:
            kept = converted.astype(array.dtype) == array
    return converted if bool(np.all(kept)) else array


def _checked_constant(name: str, array: np.ndarray, type: TensorType) -> np.ndarray:
    fits = array.ndim == type.rank and all(
        not d.is_const or d.value == n for d, n in zip(type.shape, array.shape, strict=True)
    )
    if array.dtype != type.dtype.storage or not fits:
        raise ModelError(
            f"constants= gives {array.dtype}{list(array.shape)} for an input of type {type}",
            where=f"graph input '{shown(name)}'",
            hint="give an array of the input's shape and dtype",
        )
    return array


def _checked_output(info: onnx.ValueInfoProto, scope: Scope) -> Value:
    where = f"graph output '{shown(info.name)}'"
    if not scope.defines(info.name):
        raise ModelError(
            "no node gives this output", where=where, hint="the model is incomplete; export it again"
        )
    value = scope.find(info.name)
    assert value is not None and isinstance(value.type, TensorType)
    declared = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        return value
    if declared.elem_type and dtype_of(declared.elem_type, where) != value.type.dtype:
        raise ModelError(
            f"declared as {dtype_of(declared.elem_type, where)}, but the nodes give {value.type}",
            where=where,
            hint="the model contradicts itself; export it again",
        )
    if declared.HasField("shape") and not _shape_fits(declared.shape, value.type):
        listed = ", ".join(str(d.dim_value) if d.HasField("dim_value") else "?" for d in declared.shape.dim)
        raise ModelError(
            f"declared with shape [{listed}], but the nodes give {value.type}",
            where=where,
            hint="the model contradicts itself; export it again",
        )
    return value


def _shape_fits(declared: onnx.TensorShapeProto, type: TensorType) -> bool:
    if len(declared.dim) != type.rank:
        return False
    return all(
        not d.HasField("dim_value") or not s.is_const or d.dim_value in (s.value, -1)
        for d, s in zip(declared.dim, type.shape, strict=True)
    )
