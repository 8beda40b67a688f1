"""Judging forms of a model: which criteria apply to its outputs, and the worst of what they find."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.quantization.data import Sample
from tilewright.quantization.decision.bounds import items_needed
from tilewright.quantization.decision.criteria import (
    Criterion,
    EqualityCriterion,
    Finding,
    FunctionCriterion,
    Outputs,
    ScoresCriterion,
    ValuesCriterion,
    VectorsCriterion,
    check_finite,
)
from tilewright.runtime import Model
from tilewright.runtime.errors import InputError, OptionError

METRICS = ("accuracy", "top1", "recall", "cosine")

MOST_BYTES = 1 << 30
"""Of reference outputs: samples beyond are not judged with."""

Metric = str | Callable[[Any, Any], Any] | None
Run = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]


def as_function(model: Model) -> Run:
    """A compiled model as a function of feeds."""
    names = [info.name for info in model.inputs]
    return lambda feed: model(*[feed[name] for name in names])


@dataclass(frozen=True)
class Verdict:
    """The finding that decides, what it measured, and the energies that predict drops of several changes."""

    metric: str
    finding: Finding
    guard: Finding | None
    energy: float
    caution: float

    def within(self, budget: float) -> bool:
        """Whether the drop is within the budget with confidence, and so is the guard where that is needed."""
        return self.bound <= budget and self.finding.drop <= budget

    @property
    def bound(self) -> float:
        """The upper bound of the drop. A metric on too few items to prove anything says what the outputs do."""
        return self.finding.upper if self.guard is None else max(self.finding.drop, self.guard.upper)


class Judge:
    """Compares runs over samples with those of the float32 model."""

    def __init__(
        self, samples: Iterable[Sample], reference: Run, metric: Metric, budget: float, confidence: float
    ) -> None:
        self.samples: list[Sample] = []
        self.references: list[Outputs] = []
        self.budget, self.confidence = budget, confidence
        size = 0
        for index, sample in enumerate(samples):
            outputs = [np.asarray(x) for x in reference(sample.feed)]
            check_finite(outputs, index)
            size += sum(x.nbytes for x in outputs)
            if size > MOST_BYTES and self.samples:
                break
            self.samples.append(sample)
            self.references.append(outputs)
        labels = [s.labels for s in self.samples if s.labels is not None]
        has_labels = len(labels) == len(self.samples) and bool(labels)
        self.guards = list(unlabelled(self.references))
        if not self.guards:
            raise InputError(
                "the model has no output that can be compared", hint="give --metric FILE.py:FUNCTION"
            )
        self.main = _asked(metric, self.references, labels if has_labels else None, self.samples)
        if self.main is None and has_labels:
            self.main = _labelled(self.references, labels)
        self.metric = self.main.name if self.main else "; ".join(guard.name for guard in self.guards)

    def judge(self, run: Run) -> Verdict:
        """Run all samples and judge."""
        criteria = [*self.guards, *([self.main] if self.main else [])]
        for criterion in criteria:
            criterion.begin()
        for index, sample in enumerate(self.samples):
            outputs = [np.asarray(x) for x in run(sample.feed)]
            for criterion in criteria:
                criterion.add(index, outputs)
        guards = [guard.finding(self.budget, self.confidence) for guard in self.guards]
        worst = max(guards, key=lambda found: found.upper)
        loudest = max(guards, key=lambda found: found.energy)
        energy, caution = loudest.energy, loudest.caution
        if self.main is None:
            return Verdict(self.metric, worst, None, energy, caution)
        finding = self.main.finding(self.budget, self.confidence)
        is_enough = finding.items >= items_needed(self.budget, self.confidence)
        guard = None if is_enough or isinstance(self.main, ValuesCriterion) else worst
        return Verdict(self.metric, finding, guard, energy, caution)


def _asked(
    metric: Metric,
    references: Sequence[Outputs],
    labels: Sequence[np.ndarray] | None,
    samples: Sequence[Sample],
) -> Criterion | None:
    if metric is None:
        return None
    if callable(metric) or ":" in str(metric):
        function = metric if callable(metric) else read_function(str(metric))
        name = str(metric) if isinstance(metric, str) else getattr(metric, "__name__", "metric")
        beside: Sequence[Any] = labels if labels is not None else [dict(s.feed) for s in samples]
        return FunctionCriterion(name, references, function, beside)
    if metric not in METRICS:
        raise OptionError(f"metric={metric!r} is not known: one of {', '.join(METRICS)}, or FILE.py:FUNCTION")
    output = _first_float(references)
    if metric == "cosine":
        return ValuesCriterion("cosine to float32", references, output, cosine=True)
    said = "" if labels is not None else " (float32 is right)"
    if metric == "recall":
        return VectorsCriterion(f"recall at 1{said}", references, partial(_plain_rows, output), labels)
    return ScoresCriterion(f"{metric}{said}", references, _scores_of(references, output), labels)


def _labelled(references: Sequence[Outputs], labels: Sequence[np.ndarray]) -> Criterion:
    """With labels and no metric: accuracy, where labels are classes and an output has scores of these."""
    output = _first_float(references)
    first = references[0][output]
    if first.ndim < 2 or any(np.asarray(x).dtype.kind not in "iu" for x in labels):
        raise InputError(
            "the data has labels, and it is not clear what makes an output right",
            hint="say --metric accuracy, recall, cosine, or FILE.py:FUNCTION; or leave the labels out",
        )
    return ScoresCriterion("accuracy", references, _scores_of(references, output), labels)


def _first_float(references: Sequence[Outputs]) -> int:
    for place, output in enumerate(references[0]):
        if output.dtype.kind == "f":
            return place
    raise InputError("no output has floats to be compared", hint="give --metric FILE.py:FUNCTION")


def read_function(text: str) -> Callable[[Any, Any], Any]:
    """The function that `file.py:function` names."""
    path, _, name = text.rpartition(":")
    file = Path(path)
    if not file.is_file() or not name.isidentifier():
        raise OptionError(f"--metric {text}: there is no file {path or text}", hint="write FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(f"tilewright_metric_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise OptionError(f"--metric {text}: {path} is no Python file", hint="write FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise OptionError(f"--metric {text}: {path} fails: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise OptionError(f"--metric {text}: {path} has no function {name}")
    return found


def unlabelled(references: Sequence[Outputs]) -> Iterable[Criterion]:
    """What each output is compared by, where the float32 model is right."""
    count = len(references[0])
    floats = sum(output.dtype.kind == "f" for output in references[0])
    for place in range(count):
        arrays = [outputs[place] for outputs in references]
        if arrays[0].dtype.kind in "iubUO":
            yield EqualityCriterion(f"output {place}: equality", references, place)
        elif arrays[0].dtype.kind == "f":
            yield from _float_criteria(references, arrays, place, floats == 1)


def _float_criteria(
    references: Sequence[Outputs], arrays: Sequence[np.ndarray], place: int, is_only: bool
) -> Iterable[Criterion]:
    form = form_of(arrays, is_only)
    name = f"output {place}: "
    if form == "vectors" and sum(len(a) for a in arrays) >= 3:
        yield VectorsCriterion(name + "nearest neighbour", references, partial(_plain_rows, place))
    elif form in ("logits", "probabilities", "channels"):
        yield ScoresCriterion(name + "top 1", references, partial(_SCORES[form], place))
    elif form == "sigmoids":
        yield ScoresCriterion(name + "top 1", references, partial(_SCORES[form], place))
        yield ScoresCriterion(name + "above 0.5", references, partial(_above_half, place))
    else:
        yield ValuesCriterion(name + "relative error", references, place)


def form_of(arrays: Sequence[np.ndarray], is_only: bool) -> str:
    """What an output looks like: "probabilities" (sums of 1 along the last axis; "channels": along the second),
    "sigmoids" (between 0 and 1), "vectors" (of length 1), "logits" (the only output, a row for each item), "values"."""
    first = arrays[0]
    if first.ndim < 2:
        return "values"
    lasts, seconds = {a.shape[-1] for a in arrays}, {a.shape[1] for a in arrays}
    if len(lasts) == 1 and first.shape[-1] >= 2:
        if all(a.min() >= 0 and np.allclose(a.sum(axis=-1, dtype=np.float64), 1, atol=1e-3) for a in arrays):
            return "probabilities"
        if first.ndim == 2 and all(a.min() >= 0 and a.max() <= 1 for a in arrays):
            return "sigmoids"
        if first.ndim == 2 and all(np.allclose(np.linalg.norm(a, axis=-1), 1, atol=1e-3) for a in arrays):
            return "vectors"
    has_channels = first.ndim > 2 and len(seconds) == 1 and first.shape[1] >= 2
    if has_channels and all(
        a.min() >= 0 and np.allclose(a.sum(axis=1, dtype=np.float64), 1, atol=1e-3) for a in arrays
    ):
        return "channels"
    return "logits" if first.ndim == 2 and first.shape[-1] >= 2 and is_only else "values"


_LEAST = 1e-30
_LEAST_RATIO = 1e-7


def _plain_rows(place: int, outputs: Outputs) -> np.ndarray:
    return outputs[place].reshape(len(outputs[place]), -1).astype(np.float64)


def _logits(place: int, outputs: Outputs) -> np.ndarray:
    return outputs[place].reshape(len(outputs[place]), -1, outputs[place].shape[-1]).astype(np.float64)


def _probabilities(place: int, outputs: Outputs) -> np.ndarray:
    return np.asarray(np.log(np.maximum(_logits(place, outputs), _LEAST)))


def _channels(place: int, outputs: Outputs) -> np.ndarray:
    moved = np.moveaxis(outputs[place], 1, -1)
    flat = moved.reshape(len(moved), -1, moved.shape[-1]).astype(np.float64)
    return np.asarray(np.log(np.maximum(flat, _LEAST)))


def _sigmoids(place: int, outputs: Outputs) -> np.ndarray:
    p = np.clip(_logits(place, outputs), _LEAST_RATIO, 1 - _LEAST_RATIO)
    return np.asarray(np.log(p) - np.log1p(-p))


def _above_half(place: int, outputs: Outputs) -> np.ndarray:
    logits = _sigmoids(place, outputs)
    flat = logits.reshape(len(logits), -1)
    return np.stack([np.zeros_like(flat), flat], axis=-1)


_SCORES = {"logits": _logits, "probabilities": _probabilities, "channels": _channels, "sigmoids": _sigmoids}


def _scores_of(references: Sequence[Outputs], place: int) -> Callable[[Outputs], np.ndarray]:
    """How scores are read of an output that the user says has some."""
    arrays = [outputs[place] for outputs in references]
    if arrays[0].ndim < 2 or arrays[0].shape[-1] < 2:
        raise InputError(
            f"output {place} has the shape {list(arrays[0].shape)}, and no scores of classes",
            hint="choose --metric cosine, or FILE.py:FUNCTION",
        )
    form = form_of(arrays, True)
    return partial(_SCORES.get(form, _logits), place)
