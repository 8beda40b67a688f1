"""`tilewright.convert`: a model of any format that can be read becomes a standard ONNX model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.api import with_examples
from tilewright.exporters.onnx.whole import whole_composites
from tilewright.exporters.onnx.write import check_opset, write_onnx
from tilewright.frontends.onnx import OnnxFrontEnd
from tilewright.ir.core import Module
from tilewright.options import Request
from tilewright.requested import graph_of_request
from tilewright.runtime.errors import OptionError
from tilewright.runtime.storage.files import check_file, check_replaced
from tilewright.session import Session


def convert(
    model: str | Path | bytes | Any,
    output: str | Path,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    opset: int | None = None,
    external_data: bool | None = None,
    constants: Mapping[str, Any] | str | Path | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    session: Session | None = None,
    force: bool = False,
) -> tuple[Path, ...]:
    """Write a model (whatever `tilewright.compile` takes, with the same arguments) as a standard ONNX model to the file
    `output`, whose name ends in .onnx, and give the files that were written, that one first.

    What is written is the graph as the model says it: no optimisation is done. Inputs, outputs, layers and values keep
    their names, dims that are symbolic theirs, and quantised values are QuantizeLinear and DequantizeLinear. `opset` is
    the version of the operator set, from 14 on, by default 20, or the first later one that has the model's types. With
    `external_data` weights lie beside the model, in `output` with .data behind it; by default where the model would
    have 2 GB or more. `output` may be neither the model itself nor a file of another kind, unless `force` is true. An
    error leaves what was there before.

    Raises as `compile` does, UnsupportedError with all that ONNX cannot express, OptionError, ArtifactError.
    """
    path = _checked_path(output)
    check_opset(opset)
    if not isinstance(external_data, bool | None):
        raise OptionError(f"external_data={external_data!r:.80} is not allowed: give True, False or None")
    source = with_examples(model, example_inputs, example_kwargs, dynamic_shapes)
    request, session = Request.of(source, constants, shapes), Session.of(session)
    given = [request.model] if isinstance(request.model, Path) else []
    check_replaced(path, "an ONNX model", OnnxFrontEnd().accepts, sources=given, force=force)
    check_file(path)
    return write_onnx(graph_to_convert(request, session), path, opset=opset, external_data=external_data)


def _checked_path(output: object) -> Path:
    if not isinstance(output, str | os.PathLike):
        raise OptionError(f"output={output!r:.80} is not allowed: give the path of a file")
    path = Path(output)
    if path.suffix != ".onnx":
        raise OptionError(f"output={str(output)!r:.80} is not allowed: the suffix is .onnx")
    return path


def graph_to_convert(request: Request, session: Session) -> Module:
    """The graph as the model says it: in the operators that ONNX has for it, where sizes can be followed through these,
    and with both meanings of dims that may be equal, or of which one may be 1."""
    return graph_of_request(request, session, whole_composites())
