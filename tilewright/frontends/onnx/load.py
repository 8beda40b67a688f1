"""`load_onnx`: an ONNX model becomes a graph-level Module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from tilewright.frontends.choices import MAX_ATTEMPTS, Choices
from tilewright.frontends.errors import shown
from tilewright.frontends.onnx import adapters as adapters
from tilewright.frontends.onnx.dims import Dims, input_type
from tilewright.frontends.onnx.file import Source, read_model
from tilewright.frontends.onnx.importer import MAX_NODES, Importer, Scope
from tilewright.frontends.onnx.schema import NEWEST_OPSET
from tilewright.frontends.onnx.structure import check_expansion, functions_of
from tilewright.ir.core import Block, Builder, Func, Module
from tilewright.ir.diag import ModelError, TilewrightError, UnsupportedError
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
) -> Module:
    """Translate the model at a path (or given as bytes or ModelProto) to a Module with one function `main`.

    `constants` fixes graph inputs to values, and they are no inputs any more; `shapes` replaces the shapes
    of graph inputs (a string is a symbolic dim). `main.attrs["inputs"]` and `["outputs"]` are the names of
    the file, and `["nodes"]` is how many nodes its graph has. Where they are, `["assumed"]` are the conditions
    over dims that calls must fulfil, and `["contradictions"]` says which declared shapes are not those of the
    nodes. ModelError when the file is broken, UnsupportedError listing all that is not supported.
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
    fixed = {name: _checked_constant(name, array, types[name]) for name, array in fixed.items()}

    given = tuple(map(shown, dict.fromkeys((*shapes, *fixed))))

    def attempt(choices: Choices) -> Module:
        def importer(module: Module, builder: Builder) -> Importer:
            return Importer(module, builder, functions, folder, choices, given)

        return _translated(model, Scope(opsets), types, fixed, importer)

    return _best(attempt)


def _best(attempt: Callable[[Choices], Module]) -> Module:
    """Of the modules that choices lead to, the one that contradicts the least of what the file declares; the error
    of the first attempt where there is none."""
    plan: tuple[bool, ...] | None = ()
    found: Module | None = None
    error: TilewrightError | None = None
    for _ in range(MAX_ATTEMPTS):
        if plan is None:
            break
        choices = Choices(plan)
        try:
            module = attempt(choices)
            if not choices.are_any or not _contradictions(module):
                return module
            found = module if found is None else min(found, module, key=_contradictions)
        except TilewrightError as e:
            if not choices.are_any:
                raise
            error = error or e
        plan = choices.other_plan()
    if found is not None:
        return found
    assert error is not None
    raise error


def _contradictions(module: Module) -> int:
    return len(module.main.attrs.get("contradictions", ()))


def _translated(
    model: onnx.ModelProto,
    scope: Scope,
    types: Mapping[str, TensorType],
    fixed: Mapping[str, np.ndarray],
    importer_of: Callable[[Module, Builder], Importer],
) -> Module:
    """The module that an importer makes of the graph."""
    free = [name for name in types if name not in fixed]
    block = Block([types[name] for name in free], free)
    module = Module()
    builder = Builder(block, module)
    scope.values.update(zip(free, block.args, strict=True))
    importer = importer_of(module, builder)
    with builder:
        for name, array in fixed.items():
            scope.values[name] = constant(array, name)
        try:
            importer.translate(model.graph, scope)
        except RecursionError as e:
            raise ModelError(
                "the model is nested too deeply", hint="export it without so many subgraphs"
            ) from e
        importer.problems.raise_if_any()
        importer.check_presets(model.graph, scope)
        results = [importer.check_output(info, scope) for info in model.graph.output]
        builder.emit("return", results)
    names = tuple(o.name for o in model.graph.output)
    attrs = {"inputs": tuple(free), "outputs": names, "nodes": len(model.graph.node)}
    if importer.assumed:
        attrs["assumed"] = importer.assumed
    if importer.contradictions:
        attrs["contradictions"] = tuple(importer.contradictions.items())
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


def _as_python_has(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Arrays of the types that NumPy gives to Python's numbers (int64, float64), in the dtype of their input: integers
    must survive, floats must stay finite where they are. As they are where that fails, and of any other type."""
    if not (array.dtype == np.int64 and (dtype.is_int or dtype.is_float)) and not (
        array.dtype == np.float64 and dtype.is_float
    ):
        return array
    with np.errstate(all="ignore"):
        converted = array.astype(dtype.storage)
        if array.dtype == np.int64:
            survives = np.array_equal(converted.astype(np.int64), array)
        else:
            survives = np.array_equal(np.isfinite(converted.astype(np.float64)), np.isfinite(array))
    return converted if survives else array


def _checked_constant(name: str, array: np.ndarray, type: TensorType) -> np.ndarray:
    array = _as_python_has(array, type.dtype)
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
