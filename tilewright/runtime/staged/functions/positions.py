"""The kinds of texts and of slices, which are as many as data say."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.staged.functions.registry import host_function


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
