"""Moving outliers of activations into weights (Xiao et al., 2023: SmoothQuant).

A few channels of what transformers multiply are a hundred times as large as all others, and one step must serve all.
Each channel is divided by a factor, and the weights that it meets are multiplied by the same: the product is the same,
and both are easier to round. With `share` 0 all is left to the activations, with 1 all goes to the weights.
"""

from __future__ import annotations

import numpy as np

SHARES = (0.5, 0.75, 0.9, 1.0)
"""That are tried; the original takes 0.5, and more for large models with strong outliers. Where each output has a
scale of its own and rounding is reconstructed, weights take nearly all: 1.0 leaves half of the error of 0.5 in the
layers of a sentence encoder."""

LIMIT = 1e4
"""Factors are between its reciprocal and this: smoothing shall not make denormal numbers."""


def factors(activations: np.ndarray, weights: np.ndarray, share: float) -> np.ndarray:
    """What each channel is divided by, from the largest magnitudes of activations and weights in it. Channels that
    are zero on either side stay as they are."""
    both = (activations > 0) & (weights > 0)
    x = np.where(both, activations, 1.0).astype(np.float64)
    w = np.where(both, weights, 1.0).astype(np.float64)
    found = np.clip(x**share / w ** (1 - share), 1 / LIMIT, LIMIT)
    return np.asarray(np.where(both, found, 1.0), np.float32)
