"""The certificate of a quantised model: what was measured, what was chosen, and why. It travels with the model: in the
metadata of an ONNX file, attached to a compiled one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import onnx

from tilewright.runtime import Artifact
from tilewright.runtime.errors import InputError

KEY = "tilewright.quantization"
"""Of the entry in the metadata of a model, and of what is attached to an artefact."""

SCHEMA = 2
"""Of certificates whose digests are those of graphs."""


@dataclass(frozen=True)
class LayerRecord:
    """A layer: its `kind` ("float32" where it stayed), the `reason` for it, and what was measured for each other kind:
    seconds saved and predicted drop when its unit alone changes."""

    node: str
    operator: str
    unit: str
    kind: str
    recipe: str
    reason: str
    milliseconds: float
    gains: Mapping[str, float]
    sensitivity: Mapping[str, float]

    def __repr__(self) -> str:
        return f"<layer '{self.node}' ({self.operator}): {self.kind}, {self.reason}>"


@dataclass(frozen=True)
class Certificate:
    """See docs/quantize.md. Times are seconds, sizes bytes, drops differences of the metric."""

    metric: str
    before: float
    after: float
    drop: float
    interval: Sequence[float]
    bound: float
    max_drop: float
    confidence: float
    basis: str
    items: int
    changed: float
    outcome: str
    layers: Sequence[LayerRecord]
    seconds_before: float
    seconds_after: float
    bytes_before: int
    bytes_after: int
    calibration: Mapping[str, Any]
    model: str
    model_digest: str
    weights_digest: str
    data: str
    data_digest: str
    options: Mapping[str, Any]
    remarks: Sequence[str] = field(default_factory=tuple)
    schema: int = SCHEMA

    def __repr__(self) -> str:
        return (
            f"<certificate: {self.metric} {_short(self.before)} -> {_short(self.after)}, a drop of "
            f"{_short(self.drop)} with a bound of {_short(self.bound)}, {_short(self.max_drop)} allowed; "
            f"{self.narrowed} of {len(self.layers)} layers changed>"
        )

    def record(self) -> dict[str, Any]:
        """Its fields as JSON data."""
        return asdict(self)

    @classmethod
    def of(cls, record: Any, where: str) -> Certificate:
        """From JSON data. InputError for what is none of a certificate."""
        try:
            if record.get("schema") != SCHEMA:
                raise ValueError(f"its schema is {record.get('schema')}, and {SCHEMA} is known")
            known = {f.name for f in fields(cls)}
            found = {name: value for name, value in record.items() if name in known}
            found["layers"] = tuple(LayerRecord(**layer) for layer in found["layers"])
            return cls(**found)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"the certificate cannot be read: {error}", where=where, hint="quantise the model again"
            ) from error

    @property
    def narrowed(self) -> int:
        """Layers that are not float32 any more."""
        return sum(layer.kind != "float32" for layer in self.layers)

    @property
    def is_within(self) -> bool:
        return self.drop <= self.max_drop and self.bound <= self.max_drop


def _short(number: object) -> str:
    """A number in few digits; what a damaged certificate has instead as it is."""
    return f"{number:.4g}" if isinstance(number, int | float) else f"{number!r:.20}"


def certificate_of(source: onnx.ModelProto | Artifact, where: str) -> Certificate:
    """The certificate that a model carries. InputError where it has none."""
    if isinstance(source, Artifact):
        record = source.attached.get(KEY)
    else:
        text = next((entry.value for entry in source.metadata_props if entry.key == KEY), None)
        try:
            record = None if text is None else json.loads(text)
        except ValueError as error:
            raise InputError(f"the certificate cannot be read: {error}", where=where) from error
    if record is None:
        raise InputError(
            "the model has no certificate", where=where, hint="`tilewright quantize` writes models with one"
        )
    return Certificate.of(record, where)


def name_of(model: Any) -> str:
    return str(model) if isinstance(model, str | Path) else ""
