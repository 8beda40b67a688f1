"""`verify`: everything in a certificate that can be computed again is, and compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from tilewright.api import compile as compile_model
from tilewright.frontends.onnx.file import read_model
from tilewright.ir.core import Module
from tilewright.quantization.certificate import Certificate, certificate_of
from tilewright.quantization.checks import check_quantised
from tilewright.quantization.data import open_data
from tilewright.quantization.decision.judge import METRICS, Judge, Metric, Verdict, as_function
from tilewright.quantization.network import read_graph
from tilewright.quantization.result import digest_of
from tilewright.runtime import Artifact, Model
from tilewright.runtime.errors import InputError, OptionError

TOLERANCE = 1e-3
"""By which a metric may differ on another machine, whose sums round otherwise, beside one item."""


@dataclass(frozen=True)
class Verification:
    """The certificate, what was measured now, and what does not hold (nothing: it is valid)."""

    certificate: Certificate
    verdict: Verdict
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.problems


def open_certificate(source: str | Path | onnx.ModelProto) -> Certificate:
    """The certificate of a quantised .onnx file or compiled .tw file."""
    if isinstance(source, str | Path) and Path(source).suffix == ".tw":
        return certificate_of(Artifact.load(source), str(source))
    model, _ = read_model(source)
    return certificate_of(model, str(source) if isinstance(source, str | Path) else "the model")


def verify(
    source: str | Path | onnx.ModelProto,
    data: Any,
    *,
    model: Any = None,
    metric: Metric = None,
    batch: int | None = None,
    threads: int | None = None,
) -> Verification:
    """Measure a quantised model (.onnx or .tw) again beside the float32 `model` that it was made of (by default the
    file that the certificate names), with the same `data`, and compare with the certificate. A metric that was a Python
    function is to be given again. InputError for another model, other data, or parameters that no integers fit."""
    certificate = open_certificate(source)
    problems: list[str] = []
    if isinstance(source, str | Path) and Path(source).suffix == ".tw":
        after = Model(Artifact.load(source), threads)
    else:
        small = read_graph(source)
        check_quantised(small)
        if digest_of(small) != certificate.weights_digest:
            problems.append("the model is not the one that was certified: its graph or weights are others")
        after = compile_model(small, threads=threads)
    wide = _float32(certificate, model)
    before = compile_model(wide, threads=threads)
    samples = open_data(data, before.inputs, batch=batch)
    if samples.digest != certificate.data_digest:
        raise InputError(
            "the data is not that of the certificate", where=samples.about, hint=f"it was {certificate.data}"
        )
    judge = Judge(
        samples.samples("judge"), as_function(before), _metric(certificate, metric), certificate.max_drop,
        certificate.confidence,
    )  # fmt: skip
    verdict = judge.judge(as_function(after))
    finding = verdict.finding
    allowed = TOLERANCE + 1.0 / max(finding.items, 1)
    for name, said, found in (
        ("the metric of the float32 model", certificate.before, finding.before),
        ("the metric of the quantised model", certificate.after, finding.after),
        ("the drop", certificate.drop, finding.drop),
    ):
        if not abs(said - found) <= allowed:
            problems.append(f"{name} is {found:.6g}, and the certificate says {said:.6g}")
    if certificate.drop > certificate.max_drop or certificate.bound > certificate.max_drop:
        problems.append("the certificate itself is above its budget")
    if not verdict.within(certificate.max_drop):
        problems.append(
            f"the drop is {finding.drop:.4g}, at most {verdict.bound:.4g}, and {certificate.max_drop:.4g} is the budget"
        )
    return Verification(certificate, verdict, tuple(problems))


def _metric(certificate: Certificate, metric: Metric) -> Metric:
    if metric is not None:
        return metric
    said = certificate.options.get("metric")
    if said is not None and said not in METRICS and ":" not in said:
        raise OptionError(f"the metric was the function {said}", hint="give it again: metric=...")
    return str(said) if said is not None else None


def _float32(certificate: Certificate, model: Any) -> Module:
    source = model if model is not None else certificate.model
    if isinstance(source, str) and not source:
        raise OptionError(
            "the certificate names no file of the float32 model", hint="give it: model=... or --model"
        )
    found = read_graph(source)
    if digest_of(found) != certificate.model_digest:
        raise InputError(
            "the float32 model is not the one that was quantised",
            where=str(source) if isinstance(source, str | Path) else None,
            hint="give the one that was: its graph and weights must be the same",
        )
    return found
