"""Which range of a tensor the integers shall cover, from the histogram of its elements.

- min-max: all that was seen. Nothing is clipped, and one outlier makes all steps larger.
- percentile: what is left when the same share of the elements is cut off at each end.
- entropy: the range whose quantised distribution diverges least from that of the elements (Kullback and Leibler).
- mean squared error: the range with the least mean of (x - quantised x)^2.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.quantization.methods.histogram import Histogram
from tilewright.quantization.methods.integers import (
    TYPES,
    IntegerType,
    QParameters,
    affine,
    rounded,
    symmetric,
)

Range = tuple[float, float]

PIECE = 1 << 16
"""Elements that are rounded at once."""

COARSE = 4
"""Every such share is tried of weights, of which there are many rows: the error is flat around its least."""

SHARE = 0.9999
"""Of the elements, that a percentile range covers."""

CANDIDATES = 80
"""Ranges that are tried: shares of the full one, in equal steps down to a fifth."""


def min_max(histogram: Histogram, kind: IntegerType) -> Range:
    return histogram.low, histogram.high


def percentile(histogram: Histogram, kind: IntegerType, share: float = SHARE) -> Range:
    """The range between the two quantiles that leave out `1 - share` of the elements together."""
    cumulative = np.cumsum(histogram.counts)
    total, outside = cumulative[-1], (1 - share) / 2
    first = int(np.searchsorted(cumulative, outside * total, side="right"))
    last = int(np.searchsorted(cumulative, (1 - outside) * total, side="left"))
    width = 2 * histogram.extent / len(cumulative)
    low, high = first * width - histogram.extent, (last + 1) * width - histogram.extent
    return max(low, histogram.low), min(high, histogram.high)


def entropy(histogram: Histogram, kind: IntegerType) -> Range:
    """Both ends are moved in by the same share; the divergence counts what is clipped at the ends."""
    used = histogram.counts > 0
    counts, centers = histogram.counts[used].astype(np.float64), histogram.centers[used]
    # an empty reference bin is no evidence; a smoothed one keeps the divergence finite
    best, found = np.inf, min_max(histogram, kind)
    for share in _shares():
        low, high = histogram.low * share, histogram.high * share
        parameters = affine(low, high, kind)
        scale, zero = float(parameters.scale), int(parameters.zero_point)
        steps = np.clip(np.rint(centers / scale) + zero, kind.low, kind.high).astype(np.int64) - kind.low
        inside = (centers >= low - scale / 2) & (centers <= high + scale / 2)
        # what the quantised tensor tells of the distribution: of each step the mean over the bins that are in it
        mass = np.bincount(steps, counts * inside, minlength=kind.steps + 1)
        bins = np.bincount(steps, inside, minlength=kind.steps + 1)
        model = np.where(inside, (mass / np.maximum(bins, 1))[steps], 0.0)
        reference = np.where(inside, counts, 0.0)
        clipped = counts * ~inside
        edges = np.flatnonzero(inside)
        if not len(edges):
            continue
        reference[edges[0]] += clipped[: edges[0]].sum()
        reference[edges[-1]] += clipped[edges[-1] :].sum()
        p, q = reference / reference.sum(), (model + _SMOOTH) / (model + _SMOOTH).sum()
        divergence = float(np.sum(p[p > 0] * np.log(p[p > 0] / q[p > 0])))
        if divergence < best:
            best, found = divergence, (low, high)
    return found


_SMOOTH = 1e-6


def mean_squared_error(histogram: Histogram, kind: IntegerType) -> Range:
    """Both ends are moved in alternately, until neither move makes the error smaller."""
    low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)
    used = histogram.counts > 0
    counts, centers = histogram.counts[used].astype(np.float64), histogram.centers[used]

    def error(range_: Range) -> float:
        left = centers - rounded(centers.astype(np.float32), affine(*range_, kind))
        return float(counts @ np.square(left))

    found: Range = (low, high)
    for _ in range(2):
        found = min(((low * share, found[1]) for share in _shares()), key=error)
        found = min(((found[0], high * share) for share in _shares()), key=error)
    return found


def _shares() -> np.ndarray:
    return np.linspace(1.0, 0.2, CANDIDATES)


METHODS: dict[str, Callable[[Histogram, IntegerType], Range]] = {
    "min-max": min_max,
    "percentile": percentile,
    "entropy": entropy,
    "mse": mean_squared_error,
}


def tensor_parameters(histogram: Histogram, kind: IntegerType, method: str) -> QParameters:
    """Parameters of a whole tensor by one of the methods; of a tensor that is 0 throughout, a scale of no effect."""
    if histogram.extent == 0:
        return affine(0.0, 1.0, kind)
    return affine(*METHODS[method](histogram, kind), kind)


def channel_parameters(weights: np.ndarray, axis: int | None, kind: IntegerType, method: str) -> QParameters:
    """Symmetric parameters of weights, one scale for each index of `axis` (None: one in all)."""
    rows = (
        weights.reshape(1, -1)
        if axis is None
        else np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1)
    )
    extents = np.abs(rows).max(axis=1, initial=0.0).astype(np.float64)
    if method == "mse":
        extents = _least_squares(rows, extents, kind)
    elif method != "min-max":
        extents = np.array(
            [_extent(row, extent, kind, method) for row, extent in zip(rows, extents, strict=True)]
        )
    found = symmetric(extents, kind)
    return found if axis is not None else QParameters(found.scale[0], found.zero_point[0], kind)


def _least_squares(rows: np.ndarray, extents: np.ndarray, kind: IntegerType) -> np.ndarray:
    """The magnitudes that cover rows with the least squares of what rounding leaves; few elements need no histogram.
    Rows are many where each is a block of weights: pieces of them stay in a cache."""
    found = extents.copy()
    count = max(1, PIECE // max(1, rows.shape[1]))
    for start in range(0, len(rows), count):
        piece, widest = rows[start : start + count], extents[start : start + count]
        least = np.full(len(piece), np.inf)
        for share in _shares()[::COARSE]:
            left = piece - rounded(piece, symmetric(widest * share, kind), 0)
            errors = np.square(left).sum(axis=1, dtype=np.float64)
            better = errors < least
            least[better] = errors[better]
            found[start : start + count][better] = (widest * share)[better]
    return found


def _extent(row: np.ndarray, extent: float, kind: IntegerType, method: str) -> float:
    """The magnitude that covers a row by a method."""
    if extent == 0:
        return 0.0
    histogram = Histogram()
    histogram.add(np.abs(row))
    return METHODS[method](histogram, TYPES["uint8"])[1]
