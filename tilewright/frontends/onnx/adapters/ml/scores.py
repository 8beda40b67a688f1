"""From scores [rows, columns] to what a model gives: the transforms that models of several kinds end with."""

from __future__ import annotations

import math

from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops.norm import softmax
from tilewright.ops.reduce import reduce_max, reduce_sum
from tilewright.ops.view import concat

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")

_NEAR_ZERO = 1e-7
"""Scores up to this count as zero for SOFTMAX_ZERO."""


def transformed(scores: Value, transform: str) -> Value:
    """The scores after one of TRANSFORMS, which goes along the columns."""
    if transform == "SOFTMAX":
        return softmax(scores, axis=1)
    if transform == "LOGISTIC":
        return ew.sigmoid(scores)
    if transform == "SOFTMAX_ZERO":
        return _softmax_zero(scores)
    return probit(scores) if transform == "PROBIT" else scores


def only_probit(score: Value, transform: str) -> Value:
    """A single score [rows, 1], of which ONNX Runtime applies no transform but PROBIT."""
    return probit(score) if transform == "PROBIT" else score


def complemented(score: Value, transform: str) -> Value:
    """Two scores [rows, 2] of the one [rows, 1] that is a probability: 1 - s and s, but for LOGISTIC as `mirrored`."""
    if transform in ("PROBIT", "LOGISTIC"):
        return mirrored(score, transform)
    return concat(ew.sub(1.0, score), score, axis=1)


def mirrored(score: Value, transform: str) -> Value:
    """Two scores [rows, 2] of the one [rows, 1] whose sign decides: -s and s, of which LOGISTIC is applied."""
    if transform == "PROBIT":
        return alone(score, transform)
    both = concat(ew.neg(score), score, axis=1)
    return ew.sigmoid(both) if transform == "LOGISTIC" else both


def alone(score: Value, transform: str) -> Value:
    """The one score and a 0, where ONNX Runtime leaves the second undefined."""
    return concat(only_probit(score, transform), ew.mul(score, 0.0), axis=1)


def _softmax_zero(scores: Value) -> Value:
    """Softmax among the scores that are not zero; those that are stay so."""
    greatest = reduce_max(scores, axes=(1,))
    is_zero = ew.le(ew.abs_(scores), _NEAR_ZERO)
    powers = ew.exp(ew.sub(scores, greatest))
    nothing = ew.mul(scores, ew.exp(ew.neg(greatest)))
    total = reduce_sum(ew.select(is_zero, 0.0, powers), axes=(1,))
    return ew.div(ew.select(is_zero, nothing, powers), total)


def probit(x: Value) -> Value:
    """The quantile of the normal distribution, by Winitzki's approximation of the inverse error function (2008)."""
    a = 0.147
    y = ew.sub(ew.mul(x, 2.0), 1.0)
    log = ew.log(ew.mul(ew.sub(1.0, y), ew.add(y, 1.0)))
    mean = ew.add(ew.mul(log, 0.5), 2 / (math.pi * a))
    root = ew.sqrt(ew.sub(ew.sqrt(ew.sub(ew.mul(mean, mean), ew.mul(log, 1 / a))), mean))
    return ew.mul(ew.select(ew.lt(y, 0.0), ew.neg(root), root), math.sqrt(2))
