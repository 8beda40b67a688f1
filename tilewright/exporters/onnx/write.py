"""`write_onnx`: a module of the graph level becomes an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import helper

import tilewright
from tilewright.exporters.onnx.file import OnnxWeights, save_model
from tilewright.exporters.onnx.writer import OnnxWriter
from tilewright.frontends.onnx.schema import NEWEST_OPSET
from tilewright.ir.core import Module
from tilewright.runtime.errors import OptionError

OLDEST_OPSET = 14
"""The first version of the operator set in which a shape can say that a size is 0."""

OPSETS = range(OLDEST_OPSET, NEWEST_OPSET + 1)
DEFAULT_OPSET = 20
"""Where nothing needs a later one, as integers of 4 bits do (21). Of 20 ONNX Runtime has all operators that are written
here; of later ones it lacks some (RandomUniform and RoiAlign of 22), and ONNX Runtime 1.32 refuses int8 networks of 21
in which values are transposed."""


def write_onnx(
    module: Module,
    path: str | Path,
    *,
    opset: int | None = None,
    external_data: bool | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the main function of a module of the graph level as a standard ONNX model to `path`, whole or not at all.

    The module is that of a front end, or what passes made of it, as long as its operators are those of a model: not
    blocked ones, nor regions. It is not changed. Inputs and outputs have the names in `main.attrs["inputs"]` and
    `["outputs"]`, nodes those of the layers they come from (`Op.loc`), values those of the graph. Operators
    `quantize_linear` and `dequantize_linear` become QuantizeLinear and DequantizeLinear, with scales and zero points
    for a tensor, along an axis, or for blocks, whichever their shapes (or, of blocks, their constant elements) say;
    constants of i8, u8, i4 and so on are stored as they are.

    `opset` is the version of the operator set, one of `OPSETS`; by default `DEFAULT_OPSET`, or the first later one that
    has the element types and the layouts of scales. With `external_data` weights lie in a file beside the
    model, whose name has `.data` at its end; by default where the model would have 2 GB or more. `metadata` are further
    properties of the model.

    UnsupportedError where something has no form in ONNX, which lists all of it by operator and place; OptionError for
    another opset; ArtifactError where the file cannot be written.
    """
    model, weights = to_onnx(module, opset=opset, metadata=metadata)
    save_model(model, weights, Path(path), external_data)


def onnx_model(
    module: Module, *, opset: int | None = None, metadata: Mapping[str, str] | None = None
) -> onnx.ModelProto:
    """The same in memory, with its weights in it."""
    model, weights = to_onnx(module, opset=opset, metadata=metadata)
    weights.add_to(model.graph)
    return model


def to_onnx(
    module: Module, *, opset: int | None = None, metadata: Mapping[str, str] | None = None
) -> tuple[onnx.ModelProto, OnnxWeights]:
    """The model without its constants, and these, as `write_onnx` says."""
    check_opset(opset)
    graph, writer = _written(module, DEFAULT_OPSET if opset is None else opset)
    while opset is None and writer.needed > writer.opset:
        graph, writer = _written(module, writer.needed)
    writer.problems.raise_if_any()
    weights = OnnxWeights.of(graph, writer.constants)
    version = helper.make_opsetid("", writer.opset)
    model = helper.make_model(
        graph,
        opset_imports=[version],
        ir_version=helper.find_min_ir_version_for([version]),
        producer_name="tilewright",
        producer_version=tilewright.__version__,
    )
    for key, value in {**_said(module), **(metadata or {})}.items():
        model.metadata_props.add(key=key, value=value)
    return model, weights


def _written(module: Module, opset: int) -> tuple[onnx.GraphProto, OnnxWriter]:
    """The graph of the main function, and what wrote it; the module is as it was."""
    func = module.main
    inputs = tuple(func.attrs.get("inputs", [v.name for v in func.args]))
    outputs = tuple(func.attrs.get("outputs", [f"output_{k}" for k in range(len(func.returns))]))
    before = set(module.constants)
    writer = OnnxWriter(module, opset, [*inputs, *outputs])
    try:
        return writer.main(func, inputs, outputs), writer
    finally:
        for name in set(module.constants) - before:  # those of bodies that were written out
            del module.constants[name]


def check_opset(opset: object) -> None:
    """OptionError for what is no version of the operator set that can be written."""
    if opset is None:
        return
    if isinstance(opset, bool) or not isinstance(opset, int) or opset not in OPSETS:
        raise OptionError(
            f"opset={opset!r:.40} is not allowed: versions of the operator set that are written are {OPSETS[0]} to "
            f"{OPSETS[-1]}",
            hint=f"leave it out to have {DEFAULT_OPSET}, or the first later one that the model needs",
        )


def _said(module: Module) -> dict[str, str]:
    """What the graph says of itself that ONNX has no other place for."""
    attrs, found = module.main.attrs, {}
    if attrs.get("complex_inputs"):
        found["tilewright.complex_inputs"] = ", ".join(attrs["complex_inputs"])
    if attrs.get("complex_outputs"):
        found["tilewright.complex_outputs"] = ", ".join(attrs["complex_outputs"])
    if attrs.get("assumed"):
        found["tilewright.assumed"] = "; ".join(dict.fromkeys(str(condition) for condition, *_ in attrs["assumed"]))
    if attrs.get("warnings"):
        found["tilewright.warnings"] = "; ".join(f"{subject}: {message}" for subject, message in attrs["warnings"])
    return found
