"""What `tilewright.quantize` gives: a model with its certificate, to be saved as ONNX or compiled."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx

from tilewright.api import compile as compile_model
from tilewright.exporters.onnx.write import onnx_model, write_onnx
from tilewright.frontends.built_in import GraphFrontEnd
from tilewright.frontends.onnx import OnnxFrontEnd
from tilewright.ir.core import Module
from tilewright.ir.diag import UnsupportedError
from tilewright.quantization.certificate import KEY, Certificate
from tilewright.quantization.network import read_graph
from tilewright.runtime import Artifact
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.storage.container import is_container
from tilewright.runtime.storage.files import check_replaced


class BudgetError(TilewrightError):
    """Nothing can be made smaller within the budget, though there is what would be faster. `result` holds the float32
    model with its certificate."""

    result: Quantized | None = None


@dataclass(frozen=True)
class Quantized:
    """A model with its certificate: `graph` is a program of the compiler, with quantisation and dequantisation around
    the layers."""

    graph: Module
    certificate: Certificate

    def __repr__(self) -> str:
        return f"<quantised model {self.certificate.model}: {self.certificate!r}>"

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model as ONNX (QuantizeLinear and DequantizeLinear around the layers), with the certificate.

        UnsupportedError where ONNX cannot express it; `artifact` compiles it all the same.
        """
        return onnx_model(self.graph, metadata=self._metadata)

    @property
    def _metadata(self) -> dict[str, str]:
        return {KEY: json.dumps(self.certificate.record())}

    def save(self, path: str | Path, *, threads: int | None = None, force: bool = False) -> None:
        """Write an .onnx file, or for .tw compile it for this machine.

        ArtifactError where that would replace the float32 model, or a file of another kind; `force` does it.
        UnsupportedError where ONNX cannot express the model.
        """
        path = Path(path)
        check_output(path, Path(self.certificate.model) if self.certificate.model else None, force)
        if path.suffix == ".tw":
            self.artifact(threads).save(path, force=force)
        else:
            write_onnx(self.graph, path, metadata=self._metadata)

    def artifact(self, threads: int | None = None) -> Artifact:
        """The model compiled for this machine and so many threads, with the certificate."""
        compiled = compile_model(as_read_again(self.graph), threads=threads, cache=False)
        record = self.certificate.record()
        return replace(compiled.artifact, attached={**compiled.artifact.attached, KEY: record})


def check_output(path: Path, source: Path | None, force: bool = False) -> None:
    """ArtifactError where a quantised model written at `path` would replace its `source`, or what is no model of the
    kind that the suffix says."""
    sources = [] if source is None else [source]
    if path.suffix == ".tw":
        check_replaced(path, "a compiled model", is_container, sources=sources, force=force)
    else:
        check_replaced(path, "an ONNX model", OnnxFrontEnd().accepts, sources=sources, force=force)


def as_read_again(graph: Module) -> Module:
    """The graph that an ONNX file of this one holds, so that what is judged is what others read; itself where ONNX
    cannot express it."""
    try:
        return read_graph(onnx_model(graph))
    except UnsupportedError:
        return graph


def digest_of(graph: Module) -> str:
    """Of the program and its constants: what is said in the metadata of a file changes nothing."""
    return GraphFrontEnd().digest(graph, lambda path, find_out: find_out(path)).hex()


def bytes_of(graph: Module) -> int:
    """Of all constants."""
    readers = (op for op in graph.main.body.walk() if op.attrs.get("name") in graph.constants)
    types = {op.attrs["name"]: op.result.tensor for op in readers}
    return sum(-(-int(type.size.value) * type.dtype.bits // 8) for type in types.values())
