"""The certificate of a language model with smaller weights, measured again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.frontends.decoders.load import context_of
from tilewright.llm.reading.decoder import compiled_decoder
from tilewright.llm.texts.promised import MOST_PIECES, digest_of_text, reference_of
from tilewright.llm.texts.score import BUILT_IN, logits_of, pieces_of, text_of
from tilewright.llm.vocabulary import read_vocabulary
from tilewright.quantization.decoders.agreement import Agreement, compare
from tilewright.quantization.decoders.certificate import AgreementCertificate, attached_certificate
from tilewright.quantization.decoders.promise import ComparedText
from tilewright.runtime import Artifact, Model
from tilewright.runtime.errors import InputError

TOLERANCE = 1e-3
"""By which the divergence may be larger on another machine, whose sums round otherwise."""


@dataclass(frozen=True)
class VerifiedAgreement:
    """The certificate, what was measured now, and what does not hold (nothing: it is valid)."""

    certificate: AgreementCertificate
    agreement: Agreement
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.problems

    def record(self) -> dict[str, Any]:
        """As JSON data."""
        measured = {"holds": self.holds, "problems": list(self.problems), "agreement": self.agreement.record()}
        return {**measured, "certificate": self.certificate.record()}


def certificate_of_decoder(artifact: Artifact, where: str) -> AgreementCertificate | None:
    """That of a compiled language model, None where it has none."""
    return attached_certificate(artifact.attached, where)


def verify_agreement(
    path: str | Path,
    *,
    model: str | Path | None = None,
    text: str | Path | None = None,
    tokenizer: str | Path | None = None,
    threads: int | None = None,
    **how: Any,
) -> VerifiedAgreement:
    """Measure a compiled language model (.tw) again on the text of its certificate beside the checkpoint, computed in
    float64, that it was made of, and compare.

    model: where the checkpoint is (None: where it was); text: the file of the text (None: as certified); tokenizer:
    where the vocabulary is, if it is not beside the checkpoint; how: session, progress and cache of the reference's
    compilation. InputError for a model without a certificate, and for another text.
    """
    artifact = Artifact.load(path)
    certificate = certificate_of_decoder(artifact, str(path))
    if certificate is None:
        raise InputError(
            "the model has no certificate", where=str(path), hint='it is one that weights="auto" made, and max_drop='
        )
    checkpoint = Path(certificate.model if model is None else model)
    if not checkpoint.exists():
        raise InputError(
            f"the checkpoint {checkpoint} that the model was made of is not there", where=str(path),
            hint="say where it is now: model= (--model)",
        )  # fmt: skip
    named = None if certificate.text == BUILT_IN else certificate.text
    content, name = text_of(named if text is None else text)
    if digest_of_text(content) != certificate.text_digest:
        raise InputError("the text is not that of the certificate", where=name, hint=f"it was {certificate.text}")
    words = read_vocabulary(checkpoint if tokenizer is None else Path(tokenizer)).tokenizer
    decoder = compiled_decoder(Model(artifact, threads))
    pieces = pieces_of(content, words, min(decoder.context, context_of(checkpoint)), most=MOST_PIECES)
    judging = ComparedText.of(pieces, name, certificate.text_digest).judging
    reference = reference_of(checkpoint, max(map(len, judging)), threads=threads, **how)
    found = compare(judging, reference, logits_of(decoder)).agreement(certificate.agreement.confidence)
    return VerifiedAgreement(certificate, found, tuple(_problems(certificate, found)))


def _problems(certificate: AgreementCertificate, found: Agreement) -> list[str]:
    told, problems = certificate.agreement, []
    if found.tokens != told.tokens:
        problems.append(f"{found.tokens} tokens were compared, and {told.tokens} when it was certified")
    if found.bound > certificate.max_drop:
        problems.append(
            f"up to {100 * found.bound:.4g} % of tokens become others, and at most {100 * certificate.max_drop:.4g} % "
            "were promised"
        )
    if found.divergence > told.divergence_bound * (1 + TOLERANCE):
        problems.append(f"the divergence is {found.divergence:.4g}, certified was at most {told.divergence_bound:.4g}")
    return problems
