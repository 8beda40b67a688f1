"""The certificate of a language model with smaller weights: what was promised, and what was measured. It is attached to
the compiled model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.quantization.decoders.agreement import Agreement, finite
from tilewright.runtime.errors import InputError
from tilewright.runtime.storage.records import record as typed

KEY = "tilewright.agreement"
"""Of what is attached to an artefact."""
SCHEMA = 1


@dataclass(frozen=True)
class MatrixRecord:
    """A matrix: what it is stored in, what it became ("" where it stayed), its bytes then, and the estimated
    divergence that it alone causes in the smallest form."""

    name: str
    stored: str
    form: str
    bytes: int
    sensitivity: float


@dataclass(frozen=True)
class KindRecord:
    """All matrices in one form (those that have fewer bits stay): bytes, and agreement on the text that was used to
    choose."""

    form: str
    bytes: int
    agreement: Agreement


@dataclass(frozen=True)
class AgreementCertificate:
    """See docs/language-models.md. `agreement` is that of the compiled model on text that was not used to choose, with
    the checkpoint computed in float64; `judged` choices were compared with the promise on it. `outcome` says in words
    what became of the promise."""

    outcome: str
    max_drop: float
    agreement: Agreement
    kinds: tuple[KindRecord, ...]
    matrices: tuple[MatrixRecord, ...]
    bytes_before: int
    bytes_after: int
    judged: int
    chosen_tokens: int
    model: str
    text: str
    text_digest: str
    schema: int = SCHEMA

    @property
    def is_within(self) -> bool:
        """Whether the promise is kept."""
        return self.agreement.bound <= self.max_drop

    @property
    def forms(self) -> dict[str, str]:
        """Of the matrices that became smaller, by name: what `weights=` takes."""
        return {record.name: record.form for record in self.matrices if record.form}

    @property
    def shares(self) -> dict[str, tuple[int, int]]:
        """Matrices and bytes by form, and by what is stored where they stayed."""
        found: dict[str, tuple[int, int]] = {}
        for record in self.matrices:
            kind = record.form or record.stored
            count, size = found.get(kind, (0, 0))
            found[kind] = (count + 1, size + record.bytes)
        return found

    def record(self) -> dict[str, Any]:
        """Its fields as JSON data."""
        found: dict[str, Any] = finite(asdict(self))
        return found

    @classmethod
    def of(cls, record: Any, where: str) -> AgreementCertificate:
        """From JSON data. InputError for what is none of a certificate."""
        try:
            if record["schema"] != SCHEMA:
                raise ValueError(f"its schema is {record['schema']}, and {SCHEMA} is known")
            kinds = tuple(
                typed(KindRecord, rest, agreement=Agreement.from_record(agreement))
                for kind in record["kinds"]
                for agreement, rest in [_apart(kind, "agreement")]
            )
            matrices = tuple(typed(MatrixRecord, _with_sensitivity(matrix)) for matrix in record["matrices"])
            agreement, rest = _apart(record, "agreement")
            own = {"kinds": kinds, "matrices": matrices, "agreement": Agreement.from_record(agreement)}
            return typed(cls, {name: value for name, value in rest.items() if name not in own}, **own)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"the certificate cannot be read: {error}", where=where, hint="make the model again"
            ) from error


def _apart(record: Mapping[str, Any], name: str) -> tuple[Any, dict[str, Any]]:
    """One field, and the others."""
    return record[name], {other: value for other, value in record.items() if other != name}


def _with_sensitivity(matrix: Mapping[str, Any]) -> dict[str, Any]:
    return {**matrix, "sensitivity": math.inf if matrix["sensitivity"] is None else matrix["sensitivity"]}


def attached_certificate(attached: Mapping[str, Any], where: str) -> AgreementCertificate | None:
    """That of an artefact, None where it has none."""
    record = attached.get(KEY)
    return None if record is None else AgreementCertificate.of(record, where)
