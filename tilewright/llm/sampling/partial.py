"""Partial orders of many numbers: the greatest few, and the greatest ones that together have some weight.

A vocabulary has up to 262,144 tokens, whose complete order takes 20 ms, and their partition 3. A few of them matter,
and these are found by the maxima of blocks: the n-th greatest of those is no greater than the n-th greatest of all.
"""

from __future__ import annotations

import numpy as np

_BLOCKS = 64
"""Numbers that share a maximum; numbers of a block are far apart, so that the maxima are those of whole rows."""
_FEW = (64, 1024)
"""How many numbers are tried before all are sorted into bins."""
_BINS = 65536


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` greatest of f32[n], the greatest first, the first of equal ones first."""
    if count == 0:  # nothing is ordered for nothing
        return np.empty(0, np.intp)
    if count >= values.size:
        return np.argsort(-values, kind="stable")
    width = values.size // _BLOCKS
    bounds = values
    if 2 * count <= width:
        bounds = values[: _BLOCKS * width].reshape(_BLOCKS, width).max(axis=0)
    bound = np.partition(bounds, bounds.size - count)[bounds.size - count]
    found = np.flatnonzero(values >= bound)
    return found[np.argsort(-values[found], kind="stable")[:count]]


def heaviest(values: np.ndarray, weights: np.ndarray, mass: float) -> np.ndarray:
    """The places of the greatest of f32[n] whose weights together reach `mass`, as few as possible and at least one."""
    for count in _FEW:
        if 2 * count > values.size:
            break
        found = largest(values, count)
        enough = _enough(weights[found], mass)
        if enough <= count:
            return found[:enough]
    above, within, rest = _bin_of(values, weights, mass)
    last = within[np.argsort(-values[within], kind="stable")]
    return np.concatenate([above, last[: _enough(weights[last], rest)]])


def _enough(weights: np.ndarray, mass: float) -> int:
    """How many of them, from the first, reach the mass; more than there are where all of them do not."""
    return int(np.searchsorted(np.cumsum(weights, dtype=np.float64), mass, side="left")) + 1


def _bin_of(values: np.ndarray, weights: np.ndarray, mass: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Places of what is above the bin in which the mass is reached, those within it, and the mass that is left for it.

    Bins are numbers with the same upper 16 bits, whose order is that of the numbers once the bits of negative ones are
    inverted.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.int32)
    keys = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> 16) + _BINS // 2
    sums = np.cumsum(np.bincount(keys, weights=weights, minlength=_BINS)[::-1])
    # sums of bins are rounded in another order: what they lack is taken from the last bin that has any
    step = min(int(np.searchsorted(sums, min(mass, float(sums[-1])), side="left")), _BINS - 1)
    rest = mass - (float(sums[step - 1]) if step else 0.0)
    crossed = _BINS - 1 - step
    return np.flatnonzero(keys > crossed), np.flatnonzero(keys == crossed), rest
