"""How close outputs are to those of the float32 model, or how good they are by labels: a loss for each item, and how
large its mean may be in truth.

Outputs that decide (classes, nearest neighbours) change only where noise is larger than the margin of the decision.
With enough items, changes are counted, and the bound is exact (Clopper and Pearson). Few items cannot show that less
than one in a thousand changes; then margins and noise are measured, which every item has, and the bound is

    P(change) <= density of margins near 0 * mean noise towards a change

with upper confidence bounds of both. It assumes that small margins are no denser near 0 than below their 20 % quantile,
and that noise does not prefer items of small margins. Certificates say which of the two it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.quantization.decision.bounds import (
    beta_quantile,
    bootstrap_interval,
    clopper_pearson,
    clopper_pearson_lower,
    items_needed,
    mean_bound,
)
from tilewright.runtime.errors import ExecutionError, InputError

NEAR = 0.2
"""The quantile of margins below which their density is measured."""

POSITIVE_PART = 1 / math.sqrt(2 * math.pi)
"""E[max(n, 0)] of a normal n of variance 1."""

Outputs = Sequence[np.ndarray]


@dataclass(frozen=True)
class Finding:
    """What was found of a form: the metric `before` (float32) and `after`, their difference `drop` with a two-sided
    interval, `upper` bound of the drop, how many `items`, and by what `basis` the bound was made. `energy` is the
    square of a predicted drop; those of independent changes add. The prediction is `caution` times what is expected, as
    few items say little about margins."""

    before: float
    after: float
    drop: float
    interval: tuple[float, float]
    upper: float
    items: int
    changed: float
    basis: str
    energy: float
    caution: float = 1.0


class Criterion(Protocol):
    """Counts the outputs of the samples in their order, and judges at the end. `name` says what is measured."""

    @property
    def name(self) -> str: ...

    def begin(self) -> None: ...

    def add(self, index: int, outputs: Outputs) -> None: ...

    def finding(self, budget: float, confidence: float) -> Finding: ...


@dataclass(frozen=True)
class Decisions:
    """A decision for each of some positions of items: how clear it is, and which."""

    margin: np.ndarray
    chosen: np.ndarray


def decide(scores: np.ndarray) -> Decisions:
    """Of scores `[items, positions, classes]`: the best class, and by how much it is better than the next."""
    chosen = scores.argmax(axis=-1)
    best = np.take_along_axis(scores, chosen[..., None], axis=-1)[..., 0]
    others = np.array(scores, np.float64)
    np.put_along_axis(others, chosen[..., None], -np.inf, axis=-1)
    return Decisions(best - others.max(axis=-1), chosen)


def lost_margin(scores: np.ndarray, before: Decisions) -> np.ndarray:
    """By how much the decisions became less clear; more than the margin where they changed."""
    best = np.take_along_axis(scores, before.chosen[..., None], axis=-1)[..., 0]
    others = np.array(scores, np.float64)
    np.put_along_axis(others, before.chosen[..., None], -np.inf, axis=-1)
    return np.asarray(before.margin - (best - others.max(axis=-1)))


def margin_bound(margins: np.ndarray, losses: Sequence[np.ndarray], items: int, confidence: float) -> float:
    """The bound of the share of changed decisions by margins and noise (see above). `losses` are those of each
    sample; the decisions of an item depend on each other, so that only `items` of them count for the confidence."""
    rows = [lost.reshape(len(lost), -1) if lost.ndim > 1 else lost.reshape(1, -1) for lost in losses]
    risen = np.concatenate([np.maximum(row, 0).mean(axis=1) for row in rows])
    if not risen.size or not risen.any():
        return 0.0
    each = (1 + confidence) / 2  # both bounds hold together
    noise = mean_bound(risen, each)
    return min(density(margins, items, each) * noise, 1.0)


def density(margins: np.ndarray, items: int, confidence: float) -> float:
    """An upper bound of the density of margins near 0: of the share that lies below the k-th smallest, over it. That
    share is distributed as Beta(k, items - k + 1), whatever the margins are."""
    place = _place(items)
    near = float(np.quantile(margins, place / items, method="inverted_cdf"))
    if near <= 0:
        return float("inf")
    return beta_quantile(confidence, place, items - place + 1) / near


def _place(items: int) -> int:
    """Which of so many margins is the largest that counts as small."""
    return max(1, int(NEAR * items))


def _caution(items: int, confidence: float) -> float:
    """By how much the upper bound of a density is above what is seen, in the energies of drops."""
    place = _place(items)
    return beta_quantile((1 + confidence) / 2, place, items - place + 1) * items / place


class ScoresCriterion:
    """Decisions by the best of several scores: classes of items, or of the positions of sequences and images.

    `scores(output)` gives `[items, positions, classes]`. Where there are several positions, changes are counted against
    those that have another class than the most frequent one (background, blanks of a transcript), as the errors that
    come of them will be. With labels, what counts is how many decisions are right.
    """

    def __init__(
        self,
        name: str,
        references: Sequence[Outputs],
        scores: Callable[[Outputs], np.ndarray],
        labels: Sequence[np.ndarray] | None = None,
    ) -> None:
        self.name = name
        self._scores = scores
        self._before = [decide(scores(outputs)) for outputs in references]
        self._labels = labels
        self._items = sum(len(found.chosen) for found in self._before)
        chosen = np.concatenate([found.chosen.reshape(-1) for found in self._before])
        self._margins = np.concatenate([found.margin.reshape(-1) for found in self._before])
        has_positions = any(found.chosen.shape[1] > 1 for found in self._before)
        counted = chosen.size
        if has_positions:
            _, counts = np.unique(chosen, return_counts=True)
            counted = max(chosen.size - int(counts.max()), 1)
        self._weight = chosen.size / counted
        if labels is not None:
            self._right = _right([d.chosen for d in self._before], labels)
        self.begin()

    def begin(self) -> None:
        self._lost: list[np.ndarray] = []
        self._chosen: list[np.ndarray] = []

    def add(self, index: int, outputs: Outputs) -> None:
        scores = self._scores(outputs)
        before = self._before[index]
        if scores.shape[:2] != before.chosen.shape or not np.isfinite(scores).all():
            self._lost.append(np.full(before.chosen.shape, np.inf))
            self._chosen.append(np.full(before.chosen.shape, -1))
            return
        self._lost.append(lost_margin(scores, before))
        self._chosen.append(scores.argmax(axis=-1))

    def finding(self, budget: float, confidence: float) -> Finding:
        lost = np.concatenate([x.reshape(-1) for x in self._lost])
        changes = [a != b.chosen for a, b in zip(self._chosen, self._before, strict=True)]
        changed = float(np.concatenate([x.reshape(-1) for x in changes]).mean()) * self._weight
        energy = self._energy(lost, confidence)
        if self._weight != 1:
            per_item = np.concatenate([x.mean(axis=1) for x in changes]) * self._weight
        else:
            per_item = np.concatenate([x.astype(np.float64).reshape(-1) for x in changes])
        before, after, drop = 1.0, 1.0 - changed, changed
        if self._labels is not None:
            right = _right(self._chosen, self._labels)
            before, after = float(self._right.mean()), float(right.mean())
            per_item, drop = self._right.astype(np.float64) - right, before - after
        counted = items_needed(budget, confidence) <= self._items and self._weight == 1
        if counted:
            upper, interval = exact_bound(per_item, confidence)
            basis = f"counted on {self._items} items (Clopper-Pearson)"
        else:
            model = margin_bound(self._margins, self._lost, self._items, confidence) * self._weight
            upper, interval = max(model, drop), _interval(per_item, confidence)
            basis = f"margins and noise of {self._items} items, too few to count changes"
        caution = _caution(self._items, confidence)
        return Finding(before, after, drop, interval, upper, self._items, changed, basis, energy, caution)

    def _energy(self, lost: np.ndarray, confidence: float) -> float:
        if not np.isfinite(lost).all():
            return float("inf")
        noise = float(np.mean(np.square(lost)))
        if noise == 0:
            return 0.0
        per_noise = density(self._margins, self._items, (1 + confidence) / 2) * POSITIVE_PART * self._weight
        return float(noise * per_noise**2)


def _right(chosen: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> np.ndarray:
    found = []
    for index, (a, b) in enumerate(zip(chosen, labels, strict=True)):
        wanted = np.asarray(b).reshape(len(b), -1) if np.asarray(b).ndim else np.asarray(b).reshape(1, 1)
        if wanted.shape != a.shape:
            raise InputError(
                f"labels of shape {list(np.shape(b))} for decisions of shape {list(a.shape)}",
                where=f"labels of sample {index}",
                hint="give a class for each decision, or --metric FILE.py:FUNCTION",
            )
        found.append((a == wanted).reshape(-1))
    return np.concatenate(found)


def exact_bound(losses: np.ndarray, confidence: float) -> tuple[float, tuple[float, float]]:
    """Bound and interval of the mean of losses that are -1, 0 or 1: of how many got worse, less how many better."""
    items, worse, better = len(losses), int((losses > 0).sum()), int((losses < 0).sum())
    if better == 0:
        one_sided = clopper_pearson(worse, items, confidence)
    else:
        each = (1 + confidence) / 2
        one_sided = clopper_pearson(worse, items, each) - clopper_pearson_lower(better, items, each)
    return one_sided, decision_interval(losses, confidence)


def decision_interval(losses: np.ndarray, confidence: float) -> tuple[float, float]:
    items, worse, better = len(losses), int((losses > 0).sum()), int((losses < 0).sum())
    each = (3 + confidence) / 4
    low = clopper_pearson_lower(worse, items, each) - (
        clopper_pearson(better, items, each) if better else 0.0
    )
    high = clopper_pearson(worse, items, each) - clopper_pearson_lower(better, items, each)
    return low, high


def _interval(losses: np.ndarray, confidence: float) -> tuple[float, float]:
    if np.isin(losses, (-1.0, 0.0, 1.0)).all():
        return decision_interval(losses, confidence)
    return bootstrap_interval(losses, confidence)


class VectorsCriterion:
    """Embeddings: which other item is nearest, by the cosine. Without labels that of the float32 model is right; with
    labels any item of the same label."""

    def __init__(
        self,
        name: str,
        references: Sequence[Outputs],
        vectors: Callable[[Outputs], np.ndarray],
        labels: Sequence[np.ndarray] | None = None,
    ) -> None:
        self.name = name
        self._vectors = vectors
        self._scores = _similarities(np.concatenate([vectors(outputs) for outputs in references]))
        if len(self._scores) < 3:
            raise InputError(
                f"{len(self._scores)} items have no nearest neighbours to compare",
                hint="give more samples, or --metric cosine",
            )
        self._before = decide(self._scores[:, None, :])
        self._labels = None if labels is None else np.concatenate([np.asarray(x).reshape(-1) for x in labels])
        if self._labels is not None:
            _, inverse, counts = np.unique(self._labels, return_inverse=True, return_counts=True)
            self._judged = counts[inverse] > 1
            if not self._judged.any():
                raise InputError(
                    "no two items have the same label: recall has nothing to find", where="labels"
                )
        self.begin()

    def begin(self) -> None:
        self._found: list[np.ndarray] = []

    def add(self, index: int, outputs: Outputs) -> None:
        self._found.append(self._vectors(outputs))

    def finding(self, budget: float, confidence: float) -> Finding:
        vectors = np.concatenate(self._found)
        items = len(self._scores)
        if len(vectors) != items or not np.isfinite(vectors).all():
            return _broken(items)
        scores = _similarities(vectors)
        lost = lost_margin(scores[:, None, :], self._before)
        after = scores.argmax(axis=1)
        chosen = self._before.chosen[:, 0]
        losses = (after != chosen).astype(np.float64)
        changed = float(losses.mean())
        before_value, after_value = 1.0, 1.0 - changed
        if self._labels is not None:
            was, is_ = (self._labels[x] == self._labels for x in (chosen, after))
            losses = (was.astype(np.float64) - is_)[self._judged]
            before_value, after_value = float(was[self._judged].mean()), float(is_[self._judged].mean())
        drop = float(losses.mean())
        margins = self._before.margin.reshape(-1)
        noise = float(np.mean(np.square(lost)))
        energy = noise * (density(margins, items, (1 + confidence) / 2) * POSITIVE_PART) ** 2 if noise else 0.0
        if items_needed(budget, confidence) <= len(losses):
            upper, interval = exact_bound(losses, confidence)
            basis = f"counted on {len(losses)} items (Clopper-Pearson)"
        else:
            upper = max(margin_bound(margins, list(lost), items, confidence), drop)
            interval = decision_interval(losses, confidence)
            basis = f"margins and noise of {items} items, too few to count changes"
        caution = _caution(items, confidence)
        return Finding(
            before_value, after_value, drop, interval, upper, len(losses), changed, basis, energy, caution
        )


def _similarities(vectors: np.ndarray) -> np.ndarray:
    """Cosines of all pairs; of an item with itself the least."""
    vectors = vectors.astype(np.float64)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    found = unit @ unit.T
    np.fill_diagonal(found, -2.0)
    return np.asarray(found)


class ValuesCriterion:
    """Outputs whose meaning is not known, or numbers: the root of the mean square by which an item is off, relative to
    how much outputs differ among items (`cosine`: one less the cosine of both)."""

    def __init__(
        self, name: str, references: Sequence[Outputs], output: int, *, cosine: bool = False
    ) -> None:
        self.name = name
        self._output, self._cosine = output, cosine
        self._references = [rows_of(outputs[output]) for outputs in references]
        self._scale = 1.0 if cosine else _spread(self._references)
        self.begin()

    def begin(self) -> None:
        self._losses: list[np.ndarray] = []

    def add(self, index: int, outputs: Outputs) -> None:
        before, after = self._references[index], rows_of(outputs[self._output])
        if before.shape != after.shape or not np.isfinite(after).all():
            self._losses.append(np.full(len(before), np.inf))
        elif self._cosine:
            norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
            same = (before == after).all(axis=1)
            cosine = np.where(norms > 0, (before * after).sum(axis=1) / np.where(norms > 0, norms, 1), 0.0)
            self._losses.append(np.where(same, 0.0, np.maximum(1 - cosine, 0.0)))
        else:
            self._losses.append(np.sqrt(np.mean(np.square(after - before), axis=1)) / self._scale)

    def finding(self, budget: float, confidence: float) -> Finding:
        losses = np.concatenate(self._losses)
        if not np.isfinite(losses).all():
            return _broken(len(losses))
        drop = float(losses.mean())
        upper = mean_bound(losses, confidence) if losses.any() else 0.0
        energy = drop if self._cosine else float(np.mean(np.square(losses)))
        energy = energy**2 if self._cosine else energy
        changed = float((losses > 0).mean())
        interval = bootstrap_interval(losses, confidence)
        basis = f"mean of {len(losses)} items (Student's t)"
        return Finding(1.0, 1.0 - drop, drop, interval, upper, len(losses), changed, basis, energy)


def rows_of(output: np.ndarray) -> np.ndarray:
    """`[items, elements]` in float64; a scalar is an item of one element."""
    array = np.asarray(output, np.float64)
    return array.reshape(len(array), -1) if array.ndim > 1 else array.reshape(-1, 1)


def _spread(references: Sequence[np.ndarray]) -> float:
    """How much outputs differ from item to item: the root mean square about the mean item, or their magnitude where
    items have different shapes or are few."""
    widths = {x.shape[1] for x in references}
    count = sum(len(x) for x in references)
    if len(widths) == 1 and count >= 8:
        everything = np.concatenate(references)
        found = float(np.sqrt(np.mean(np.square(everything - everything.mean(axis=0)))))
    else:
        flat = np.concatenate([x.reshape(-1) for x in references])
        found = float(flat.std())
    if found == 0:
        found = float(np.sqrt(np.mean([np.mean(np.square(x)) for x in references])))
    return found or 1.0


class EqualityCriterion:
    """Outputs that are no floats: the share of items with any difference."""

    def __init__(self, name: str, references: Sequence[Outputs], output: int) -> None:
        self.name = name
        self._output = output
        self._references = [np.asarray(outputs[output]) for outputs in references]
        self.begin()

    def begin(self) -> None:
        self._changed: list[np.ndarray] = []

    def add(self, index: int, outputs: Outputs) -> None:
        before, after = self._references[index], np.asarray(outputs[self._output])
        items = len(before) if before.ndim else 1
        if before.shape != after.shape:
            self._changed.append(np.ones(items))
            return
        self._changed.append((before != after).reshape(items, -1).any(axis=1).astype(np.float64))

    def finding(self, budget: float, confidence: float) -> Finding:
        changed = np.concatenate(self._changed)
        drop, items = float(changed.mean()), len(changed)
        if items_needed(budget, confidence) <= items:
            upper, basis = exact_bound(changed, confidence)[0], f"counted on {items} items (Clopper-Pearson)"
        else:
            upper, basis = drop, f"share of {items} items, too few for a bound"
        return Finding(
            1.0, 1 - drop, drop, decision_interval(changed, confidence), upper, items, drop, basis, drop**2
        )


class FunctionCriterion:
    """A function of the user's: `function(outputs, labels)` gives a score for each item, larger is better; without
    labels it gets the feeds. `outputs` are those of each call, in a list."""

    def __init__(
        self,
        name: str,
        references: Sequence[Outputs],
        function: Callable[[Any, Any], Any],
        beside: Sequence[Any],
    ) -> None:
        self.name = name
        self._function, self._beside = function, list(beside)
        self._before = self._called([list(outputs) for outputs in references])
        shuffled = [[_disturbed(x, i) for i, x in enumerate(outputs)] for outputs in references]
        if np.array_equal(self._called(shuffled, len(self._before)), self._before):
            raise InputError(
                f"the metric is constant: it gives the same scores for any outputs ({self._before.flat[0]:g}, ...)",
                where=name,
                hint="it has to compare its first argument, the outputs of each call, with the second",
            )
        self.begin()

    def begin(self) -> None:
        self._outputs: list[Outputs] = []

    def add(self, index: int, outputs: Outputs) -> None:
        self._outputs.append(list(outputs))

    def finding(self, budget: float, confidence: float) -> Finding:
        after = self._called(self._outputs, len(self._before))
        losses = self._before - after
        items, changed = len(losses), float((losses != 0).mean())
        drop = float(losses.mean())
        if np.isin(losses, (-1.0, 0.0, 1.0)).all():
            upper, interval = exact_bound(losses, confidence)
            basis = f"counted on {items} items (Clopper-Pearson)"
        else:
            interval = bootstrap_interval(losses, confidence)
            upper = max(mean_bound(losses, confidence), bootstrap_interval(losses, 2 * confidence - 1)[1])
            basis = f"mean of {items} paired items (Student's t, bootstrap)"
        before, value = float(self._before.mean()), float(after.mean())
        return Finding(before, value, drop, interval, upper, items, changed, basis, drop**2)

    def _called(self, outputs: Sequence[Outputs], count: int | None = None) -> np.ndarray:
        try:
            scores = np.asarray(self._function(outputs, self._beside), np.float64).reshape(-1)
        except Exception as error:
            raise InputError(
                f"the metric failed: {type(error).__name__}: {error}",
                where=self.name,
                hint="it is called with the outputs of each call (a list of lists of arrays), and labels or feeds",
            ) from error
        if not scores.size or not np.isfinite(scores).all():
            what = "no scores" if not scores.size else "scores that are NaN or infinite"
            raise InputError(f"the metric gives {what}", where=self.name, hint="give a number for each item")
        if count is not None and len(scores) != count:
            raise InputError(
                f"the metric gives {len(scores)} scores, and gave {count} before", where=self.name
            )
        return scores


def _disturbed(output: np.ndarray, index: int) -> np.ndarray:
    """An output of other values of the same kind."""
    array = np.asarray(output)
    if array.dtype.kind == "f":
        noise = np.random.default_rng(index).standard_normal(array.shape)
        return np.asarray((float(np.abs(array).max(initial=0.0)) + 1) * noise, array.dtype)
    if array.dtype.kind in "iu":
        return np.asarray(array[..., ::-1] + 1 if array.ndim else array + 1, array.dtype)
    return array


def _broken(items: int) -> Finding:
    """Of a form whose outputs are not finite, or of other shapes."""
    nothing = float("inf")
    return Finding(1.0, 0.0, 1.0, (1.0, 1.0), 1.0, items, 1.0, "outputs that are not finite", nothing)


def check_finite(outputs: Outputs, index: int) -> None:
    """ExecutionError for a float32 model that gives what cannot be compared."""
    for place, output in enumerate(outputs):
        array = np.asarray(output)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ExecutionError(
                f"the float32 model gives NaN or infinity in output {place}",
                where=f"sample {index}",
                hint="leave such samples out, or repair the model: nothing can be measured against it",
            )
