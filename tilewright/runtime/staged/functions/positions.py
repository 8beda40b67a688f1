"""Functions whose results are as long as data say: positions, kinds, and boxes that are kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.runtime.staged.functions.registry import host_function


@host_function
def nonzero(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Positions of the elements that are not zero, one row for each axis."""
    return (np.array(np.nonzero(np.atleast_1d(x)), np.int64),)


@host_function
def unique(x: np.ndarray, *, axis: int | None, in_order: bool) -> tuple[np.ndarray, ...]:
    """The different elements (or slices along `axis`), where each comes first, which one each element is, and how
    often each is there: sorted where they are `in_order`, else as they come. ONNX operator `Unique`."""
    kinds, first, which, often = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    which = which.reshape(-1)
    if not in_order:
        order = np.argsort(first)
        places = np.empty_like(order)
        places[order] = np.arange(order.size)
        kinds, first, often, which = np.take(kinds, order, axis=axis or 0), first[order], often[order], places[which]
    return kinds, *(a.astype(np.int64) for a in (first, which, often))


@host_function
def non_max_suppression(
    *given: np.ndarray, present: Sequence[bool], center_point_box: bool
) -> tuple[np.ndarray, ...]:
    """Rows (batch, class, box) of the boxes that are kept, the best first. ONNX operator `NonMaxSuppression`."""
    boxes, scores, *limits = given
    numbers = iter(limits)
    most, overlap, threshold = (
        next(numbers).reshape(-1)[0].item() if there else default
        for there, default in zip(present[2:], (0, 0.0, -np.inf), strict=True)
    )
    found = []
    for batch in range(scores.shape[0] if most > 0 else 0):
        corners = _corners(boxes[batch], center_point_box)
        for kind in range(scores.shape[1]):
            kept = _kept(corners, scores[batch, kind], int(most), overlap, threshold)
            found += [(batch, kind, box) for box in kept]
    return (np.array(found, np.int64).reshape(-1, 3),)


def _corners(boxes: np.ndarray, center_point_box: bool) -> np.ndarray:
    """Rows (low y, low x, high y, high x) of the boxes."""
    if center_point_box:
        centre, half = boxes[:, :2], boxes[:, 2:] / 2
        first, second = centre - half, centre + half
    else:
        first, second = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)


def _kept(corners: np.ndarray, scores: np.ndarray, most: int, overlap: float, threshold: float) -> list[int]:
    """The best boxes, without those that overlap a better one by more than the given share of their union."""
    candidates = np.flatnonzero(scores > threshold)
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    sides = corners[:, 2:] - corners[:, :2]
    areas = sides[:, 0] * sides[:, 1]
    kept: list[int] = []
    while order.size and len(kept) < most:
        best, others = order[0], order[1:]
        kept.append(int(best))
        low = np.maximum(corners[best, :2], corners[others, :2])
        high = np.minimum(corners[best, 2:], corners[others, 2:])
        common = np.prod(np.maximum(high - low, 0), axis=1)
        union = areas[best] + areas[others] - common
        order = others[~((union > 0) & (common > overlap * union))]
    return kept
