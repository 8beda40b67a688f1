"""What `tilewright.quantize` gives: a model with its certificate, to be saved as ONNX or compiled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from tilewright.api import compile as compile_model
from tilewright.frontends.onnx import OnnxFrontEnd
from tilewright.quantization.certificate import KEY, Certificate
from tilewright.runtime import Artifact
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.storage.container import is_container
from tilewright.runtime.storage.files import check_replaced, replacing, write_slices


class BudgetError(TilewrightError):
    """Nothing can be made smaller within the budget, though there is what would be faster. `result` holds the float32
    model with its certificate."""

    result: Quantized | None = None


@dataclass(frozen=True)
class Quantized:
    """A model with its certificate: `model` is ONNX (QuantizeLinear and DequantizeLinear around the layers)."""

    model: onnx.ModelProto
    certificate: Certificate

    def __repr__(self) -> str:
        return f"<quantised model {self.certificate.model}: {self.certificate!r}>"

    def save(self, path: str | Path, *, threads: int | None = None, force: bool = False) -> None:
        """Write an .onnx file, or for .tw compile it for this machine.

        ArtifactError where that would replace the float32 model, or a file of another kind; `force` does it.
        """
        path = Path(path)
        check_output(path, Path(self.certificate.model) if self.certificate.model else None, force)
        if path.suffix == ".tw":
            self.artifact(threads).save(path, force=force)
        else:
            with replacing(path) as file:
                write_slices(file, self.model.SerializeToString())

    def artifact(self, threads: int | None = None) -> Artifact:
        """The model compiled for this machine and so many threads, with the certificate."""
        compiled = compile_model(self.model, threads=threads, cache=False)
        record = self.certificate.record()
        return replace(compiled.artifact, report={**compiled.artifact.report, KEY: record})


def check_output(path: Path, source: Path | None, force: bool = False) -> None:
    """ArtifactError where a quantised model written at `path` would replace its `source`, or what is no model of the
    kind that the suffix says."""
    sources = [] if source is None else [source]
    if path.suffix == ".tw":
        check_replaced(path, "a compiled model", is_container, sources=sources, force=force)
    else:
        check_replaced(path, "an ONNX model", OnnxFrontEnd().accepts, sources=sources, force=force)


def digest_of(model: onnx.ModelProto) -> str:
    """Of the graph: what is said in the metadata changes nothing."""
    return hashlib.blake2b(model.graph.SerializeToString(deterministic=True), digest_size=16).hexdigest()
