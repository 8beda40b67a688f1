"""The smallest weights of a language model with which a promise about its text holds."""

from __future__ import annotations

import base64
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.quantization.decision.bounds import clopper_pearson, items_needed
from tilewright.quantization.decoders.agreement import (
    Agreement,
    ComparedLogits,
    KnownLogits,
    Logits,
    compared,
)
from tilewright.quantization.decoders.certificate import AgreementCertificate, KindRecord, MatrixRecord
from tilewright.quantization.decoders.choice import (
    LADDER,
    Forms,
    Ladder,
    bits_of,
    ladder_of,
    least_that_holds,
)
from tilewright.quantization.decoders.probe import DecoderProbe
from tilewright.runtime.errors import InputError, OptionError, TilewrightError

CHOOSING = 4
"""One of so many pieces of the text is used to choose, at most `_MOST_TO_CHOOSE` in all: the others judge."""
_MOST_TO_CHOOSE = 4
_MOST_JUDGED = 6
_MOST_KEPT = 1 << 28
"""Logits of a reference in memory."""
_LEAST_IMPORTANCE = 0.03
"""Of a column, in parts of the mean."""
_CAUTION = 0.8
"""Divergences that are estimated may be so much too small; those of choices that failed are made smaller by it."""


_LONGEST_TEXT = 10**12
"""Tokens: more than have been written."""


class PromiseError(TilewrightError):
    """No choice keeps the promise. `certificate` is that of the best one that was judged."""

    certificate: AgreementCertificate | None = None


@dataclass(frozen=True)
class Promise:
    """With `confidence` no more than `max_drop` of all positions have another most likely token than the checkpoint in
    float64."""

    max_drop: float
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name, value, low in (("max_drop", self.max_drop, 0.0), ("confidence", self.confidence, 0.5)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < 1:
                raise OptionError(
                    f"{name}={value!r:.80} is not allowed: give a number from {low:g} to 1, and less than that",
                    hint="max_drop=0.02 lets two of a hundred tokens differ",
                )

    def most_changes(self, tokens: int) -> int:
        """Of so many tokens how many may differ; -1 where they are too few to show anything."""
        changes = -1
        while clopper_pearson(changes + 1, tokens, self.confidence) <= self.max_drop:
            changes += 1
        return changes

    def check(self, tokens: int) -> None:
        """InputError for a text whose tokens cannot show it."""
        if self.most_changes(tokens) < 0:
            needed = items_needed(self.max_drop, self.confidence)
            is_possible = self.max_drop > 0 and needed < _LONGEST_TEXT
            more = f"at least {needed} tokens can show that" if is_possible else "no text can show that"
            raise InputError(
                f"a drop of {self.max_drop:g} cannot be promised with a confidence of {self.confidence:g} by "
                f"{tokens} tokens that judge it: {more}",
                hint="allow a larger drop, or give a longer text; a quarter of it is used to choose",
            )


@dataclass(frozen=True)
class ComparedText:
    """Pieces of a text as sequences of tokens, each a beginning of its own; `choosing` are used to choose, `judging` to
    judge."""

    choosing: Sequence[np.ndarray]
    judging: Sequence[np.ndarray]
    name: str
    digest: str

    @classmethod
    def of(cls, pieces: Sequence[np.ndarray], name: str, digest: str) -> ComparedText:
        if len(pieces) == 1:
            half = len(pieces[0]) // 2
            pieces = [pieces[0][:half], pieces[0][half:]]
        chosen = [k for k in range(len(pieces)) if k % CHOOSING == CHOOSING - 1][:_MOST_TO_CHOOSE] or [len(pieces) - 1]
        choosing = [pieces[k] for k in chosen]
        return cls(choosing, [piece for k, piece in enumerate(pieces) if k not in chosen], name, digest)


Importance = Mapping[str, np.ndarray]
"""f32[columns] by the names of matrices."""
Compile = Callable[[dict[str, str], Importance], Logits]
"""The compiled model with these forms: logits of a sequence of tokens, by the kernels that text is made with."""


@dataclass(frozen=True)
class Chosen:
    """What was found: `certificate.forms` and `importance` are what a `DecoderSource` takes."""

    certificate: AgreementCertificate
    importance: Importance

    def record(self) -> dict[str, Any]:
        """As JSON data."""
        codes = {name: base64.b64encode(_codes(found).tobytes()).decode() for name, found in self.importance.items()}
        return {"certificate": self.certificate.record(), "importance": codes}

    @classmethod
    def of(cls, record: Any) -> Chosen:
        """From JSON data. InputError for a certificate that is none."""
        codes = {name: np.frombuffer(base64.b64decode(text), np.uint8) for name, text in record["importance"].items()}
        certificate = AgreementCertificate.of(record["certificate"], "the cache")
        return cls(certificate, {name: _of_codes(found) for name, found in codes.items()})


def rounded_importance(squares: np.ndarray) -> np.ndarray:
    """Of mean squares: in eighths of powers of two, as they are recorded, and none far below the mean, as other text
    may have what this one has not."""
    mean = float(squares.mean())
    return _of_codes(_codes(squares / mean + _LEAST_IMPORTANCE)) if mean > 0 else np.ones(len(squares), np.float32)


def _codes(importance: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(8 * np.log2(importance)) + 128, 0, 255).astype(np.uint8)


def _of_codes(codes: np.ndarray) -> np.ndarray:
    return np.exp2((codes.astype(np.float32) - 128) / 8).astype(np.float32)


class Choosing:
    """The choice for one checkpoint, text and promise."""

    def __init__(self, path: Path, text: ComparedText, promise: Promise, compile: Compile, **how: Any) -> None:
        """`how`: threads, session, progress and cache of `tilewright.compile`."""
        promise.check(sum(map(len, text.judging)))
        self._path, self._text, self._promise, self._compile = path, text, promise, compile
        window = max(map(len, (*text.choosing, *text.judging)))
        self._probe = DecoderProbe(path, window, **how)
        self._judged = 0

    def chosen(self) -> Chosen:
        """The smallest choice that keeps the promise. PromiseError where none does."""
        for _ in self._choosing:
            pass
        seen = {name: rounded_importance(squares) for name, squares in self._probe.seen.items()}
        self._probe.matrices.importance = seen
        return Chosen(self._kept(), seen)

    def _kept(self) -> AgreementCertificate:
        ladder = ladder_of(self._probe.matrices, self._divergence)
        tokens = sum(map(len, self._text.judging))
        most = self._promise.most_changes(tokens)
        kinds = self._kinds()

        def seems_to_hold(count: int) -> bool:
            return self._chosen(ladder.forms(count)).drop <= most / tokens

        count = least_that_holds(len(ladder.steps), seems_to_hold)
        count = len(ladder.steps) if count is None else count
        best: AgreementCertificate | None = None
        while True:
            found = self._certified(ladder, count, kinds)
            if found.is_within:
                return found
            best = found if best is None or found.agreement.bound < best.agreement.bound else best
            if count == len(ladder.steps):
                raise _unreachable(best)
            count = self._next(ladder, count, found.agreement, most)

    def _certified(self, ladder: Ladder, count: int, kinds: tuple[KindRecord, ...]) -> AgreementCertificate:
        forms = ladder.forms(count)
        self._judged += 1
        if forms and self._judged < _MOST_JUDGED:  # a choice that fails needs no compiled model
            seen = self._against(self._judging, self._text.judging, self._probe.narrow(forms))
            if seen.bound > self._promise.max_drop:
                return self._record(forms, seen, kinds, ladder)
        compiled = self._compile(
            {name: str(form) for name, form in forms.items()}, self._probe.matrices.importance
        )
        return self._record(forms, self._against(self._judging, self._text.judging, compiled), kinds, ladder)

    def _next(self, ladder: Ladder, count: int, found: Agreement, most: int) -> int:
        """As many steps as should bring changes down to what is allowed, which go with the root of the divergence."""
        if self._judged >= _MOST_JUDGED:
            return len(ladder.steps)
        left = math.fsum(step.gain for step in ladder.steps[count:])
        wanted = left * _CAUTION * (most / max(found.tokens - found.agreed, 1)) ** 2
        while count < len(ladder.steps):
            left -= ladder.steps[count].gain
            count += 1
            if left <= wanted:
                break
        return count

    def _kinds(self) -> tuple[KindRecord, ...]:
        matrices, found = self._probe.matrices, []
        for form in LADDER:
            forms = {name: form for name, stored in matrices.stored.items() if form.bits < bits_of(stored)}
            if forms:
                size = sum(matrices.bytes(name, forms.get(name)) for name in matrices.stored)
                found.append(KindRecord(str(form), size, self._chosen(forms)))
        return tuple(found)

    def _record(
        self, forms: Forms, agreement: Agreement, kinds: tuple[KindRecord, ...], ladder: Ladder
    ) -> AgreementCertificate:
        matrices = self._probe.matrices
        records = tuple(
            MatrixRecord(
                name, str(stored.kind), str(forms[name]) if name in forms else "",
                matrices.bytes(name, forms.get(name)), ladder.sensitivity.get(name, 0.0),
            )
            for name, stored in matrices.stored.items()
        )  # fmt: skip
        within = agreement.bound <= self._promise.max_drop
        what = f"{len(forms)} of {len(records)} matrices are smaller" if forms else "everything stays as it is stored"
        return AgreementCertificate(
            f"the promise {'is kept' if within else 'is not kept'}: {what}", self._promise.max_drop, agreement, kinds,
            records, sum(tensor.data.nbytes for tensor in matrices.stored.values()),
            sum(record.bytes for record in records), self._judged, sum(map(len, self._text.choosing)),
            str(self._path), self._text.name, self._text.digest,
        )  # fmt: skip

    def _divergence(self, forms: Forms) -> float:
        """On the first of the pieces that choose."""
        found = compared(next(iter(self._choosing)), self._probe.narrow(forms)(self._text.choosing[0]))
        return float(found.divergences.mean())

    def _chosen(self, forms: Forms) -> Agreement:
        return self._against(self._choosing, self._text.choosing, self._probe.narrow(forms))

    def _against(self, reference: Iterable[KnownLogits], pieces: Sequence[np.ndarray], model: Logits) -> Agreement:
        parts = (compared(wanted, model(tokens)) for wanted, tokens in zip(reference, pieces, strict=True))
        return ComparedLogits.joined(parts).agreement(self._promise.confidence)

    @cached_property
    def _choosing(self) -> Reference:
        return Reference(self._probe, self._text.choosing)

    @cached_property
    def _judging(self) -> Reference:
        return Reference(self._probe, self._text.judging)


class Reference:
    """The logits of what is stored, computed in float64, behind the tokens of each piece of a text. They are kept in
    float32, whose rounding is far below what is compared, in a file where they take much memory, or computed each time
    where there is no room for it."""

    def __init__(self, probe: DecoderProbe, pieces: Sequence[np.ndarray]) -> None:
        self._probe, self._pieces = probe, pieces
        self._kept: dict[int, KnownLogits] = {}

    def __iter__(self) -> Iterator[KnownLogits]:
        wide: Logits | None = None
        for k, tokens in enumerate(self._pieces):
            if k not in self._kept:
                wide = wide or self._probe.wide()
                found = wide(tokens)
                if found.size * sum(map(len, self._pieces)) // len(tokens) > _MOST_KEPT:
                    known = KnownLogits.of(found)
                    if (rows := in_file(found.astype(np.float32))) is None:
                        yield known
                        continue
                    self._kept[k] = replace(known, rows=rows)
                else:
                    self._kept[k] = KnownLogits.of(found.astype(np.float32))
            yield self._kept[k]


def in_file(array: np.ndarray) -> np.ndarray | None:
    """The same as a view of a file that ends with it; None where there is no room."""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(np.ascontiguousarray(array).data)
            file.flush()
            return np.memmap(file, array.dtype, "r", shape=array.shape)
    except OSError:
        return None


def _unreachable(best: AgreementCertificate) -> PromiseError:
    error = PromiseError(
        f"a drop of {best.max_drop:g} cannot be promised: of the choices that were judged the best is one where "
        f"{best.agreement}",
        hint=f"allow a drop of {best.agreement.bound:.4f}, or give a longer text, which bounds it better",
    )
    error.certificate = best
    return error
