"""The class that the votes of trees are for, by the conventions of ONNX Runtime, which the specification leaves open.

Trees may vote for one class of two alone. The votes are then a single score: a probability where all weights are
positive, which 0.5 decides about, and one whose sign decides otherwise. A class without votes gets no base
value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.frontends.onnx.adapters.ml.labels import Labels, greatest
from tilewright.frontends.onnx.adapters.ml.scores import (
    alone,
    complemented,
    mirrored,
    only_probit,
    transformed,
)
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.view import concat, section, squeeze


@dataclass(frozen=True)
class Votes:
    """Scores [rows, classes], and for which classes there are votes: known, or for each row (bool). `base` is added.
    `is_binary` where all votes are for one class of two, `is_positive` where no weight is below 0."""

    scores: Value
    found: np.ndarray | Value
    base: np.ndarray
    is_binary: bool
    is_positive: bool

    def score(self, k: int) -> Value:
        """Class k's score [rows, 1]."""
        return section(self.scores, 1, k, 1)

    def where_found(self, k: int, score: Value) -> Value:
        """The score [rows, 1], and 0 where there are no votes for class k."""
        if isinstance(self.found, Value):
            return ew.select(section(self.found, 1, k, 1), score, 0.0)
        return score if self.found[k] else ew.mul(self.score(k), 0.0)


def classified(votes: Votes, labels: Labels, transform: str) -> tuple[Value | None, Value]:
    """The label of each row (None where nobody reads it), and the scores that are given for the classes."""
    if labels.count == 1:
        score = votes.score(0)
        score = ew.add(score, float(votes.base[0])) if votes.base.size == 1 else score
        return labels.of_sign(_is_positive(score)), only_probit(score, transform)
    return (_of_two if labels.count == 2 else _of_many)(votes, labels, transform)


def _of_many(votes: Votes, labels: Labels, transform: str) -> tuple[Value | None, Value]:
    base = votes.base[: labels.count]
    missing = labels.count - base.size
    scores, found = votes.scores, votes.found
    if base.size:
        scores = ew.add(scores, constant(np.pad(base, (0, missing)), "base_values"))
    has_base = np.arange(labels.count) < base.size
    candidates = scores
    if isinstance(found, Value):
        candidates = ew.select(ew.or_(found, constant(has_base, "has_base")), scores, -np.inf)
    elif not (found | has_base).all():
        candidates = ew.select(constant(found | has_base, "found"), scores, -np.inf)
    return labels.of(greatest(candidates)), transformed(scores, transform)


def _of_two(votes: Votes, labels: Labels, transform: str) -> tuple[Value | None, Value]:
    if not isinstance(votes.found, Value):
        decisive, scores = (_second if votes.found[1] else _first)(votes, transform)
    else:
        is_second = section(votes.found, 1, 1, 1)
        pairs = zip(_second(votes, transform), _first(votes, transform), strict=True)
        decisive, scores = (ew.select(is_second, a, b) for a, b in pairs)
    limit = 0.5 if votes.is_binary and votes.is_positive else 0.0
    label = labels.of_sign(_is_positive(decisive, limit), always=votes.is_binary)
    return label, scores


def _second(votes: Votes, transform: str) -> tuple[Value, Value]:
    """The score that decides, and those that are given, where there are votes for the second class."""
    first, second = votes.score(0), votes.score(1)
    if votes.base.size == 2:
        second = ew.add(first, float(votes.base[1]))
        first = ew.neg(second)
    elif votes.base.size == 1:
        first = ew.add(first, float(votes.base[0]))
    first = votes.where_found(0, first)
    return second, transformed(concat(first, second, axis=1), transform)


def _first(votes: Votes, transform: str) -> tuple[Value, Value]:
    """The same where there are none."""
    score = votes.score(0)
    if votes.base.size == 2:
        score = ew.add(score, float(votes.base[0]))
        return score, transformed(concat(score, ew.mul(votes.score(1), 0.0), axis=1), transform)
    if votes.base.size == 1:
        score = ew.add(score, float(votes.base[0]))
    if votes.base.size == 1 and not votes.is_binary:
        return score, alone(score, transform)
    given = complemented if votes.is_binary and votes.is_positive else mirrored
    return score, given(score, transform)


def _is_positive(score: Value, limit: float = 0.0) -> Value:
    return ew.gt(squeeze(score, axes=(1,)), limit)


