"""Confidence bounds: how much worse the truth may be than what a sample shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

RESAMPLES = 4000
"""Of the bootstrap: the 2.5 % quantile is then known to about a tenth of its distance from the mean."""


def items_needed(drop: float, confidence: float) -> int:
    """How many items without a single change show that less than `drop` of all change."""
    most = int(np.iinfo(np.int64).max)
    if drop <= 0:
        return most
    return math.ceil(min(math.log(1 - confidence) / math.log1p(-min(drop, 1 - 1e-12)), most))


def least_items(drop: float, confidence: float, items: int, near: float) -> int:
    """How many different items a bound on `items` needs: where there are enough to count changes, as many as that
    takes, and else as many as show that one of them lies below the quantile `near`, from which margins are known."""
    counted = items_needed(drop, confidence)
    return counted if items >= counted else math.ceil(math.log(1 - confidence) / math.log1p(-near))


def clopper_pearson(count: float, items: float, confidence: float) -> float:
    """The upper bound of a share of which `count` of `items` were seen (Clopper and Pearson, 1934)."""
    if items <= 0 or count >= items:
        return 1.0
    return beta_quantile(confidence, count + 1, items - count)


@lru_cache(maxsize=1024)
def beta_quantile(confidence: float, a: float, b: float) -> float:
    """What a number that is distributed as Beta(a, b) stays below with this confidence."""
    return _solved(lambda p: beta_cdf(p, a, b) - confidence, 0.0, 1.0)


def clopper_pearson_lower(count: float, items: float, confidence: float) -> float:
    """The lower bound of such a share."""
    return 0.0 if count <= 0 else 1.0 - clopper_pearson(items - count, items, confidence)


def mean_bound(values: np.ndarray, confidence: float) -> float:
    """The upper bound of a mean by Student's t; of one value there is none."""
    if len(values) < 2:
        return math.inf
    return float(
        values.mean() + t_quantile(confidence, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    )


def bootstrap_interval(values: np.ndarray, confidence: float, seed: int = 0) -> tuple[float, float]:
    """The two-sided interval of a mean by resampling items (percentiles)."""
    if not len(values):
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    means = np.array([values[rng.integers(0, len(values), len(values))].mean() for _ in range(RESAMPLES)])
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def t_quantile(confidence: float, freedom: int) -> float:
    """The quantile of Student's t, for confidences of a half and more."""

    def cdf(t: float) -> float:
        return 1 - beta_cdf(freedom / (freedom + t * t), freedom / 2, 0.5) / 2

    return _solved(lambda t: cdf(t) - confidence, 0.0, 1e6)


def _solved(f: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a function that rises, to the last bit."""
    middle = (low + high) / 2
    while low < middle < high:  # then no float lies between
        if f(middle) < 0:
            low = middle
        else:
            high = middle
        middle = (low + high) / 2
    return middle


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x > 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away(1 + term * d, tiny)
            c = _away(1 + term / c, tiny)
            value *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return front * value / a


def _away(x: float, tiny: float) -> float:
    """x, but not 0."""
    return x if abs(x) > tiny else tiny
