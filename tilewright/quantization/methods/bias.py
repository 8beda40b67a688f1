"""Correcting the mean of what a layer computes (Nagel et al., 2019).

Errors of rounded weights do not cancel where the inputs have a mean: each output is off by a constant, which the bias
can take back. The mean error of a layer is known from the means of its inputs:

    E[W x - Wq xq] = W E[x] - Wq E[xq]
"""

from __future__ import annotations

import numpy as np

from tilewright.quantization.methods.inputs import products


def correction(
    rows: np.ndarray, matrix: np.ndarray, rounded_rows: np.ndarray, rounded: np.ndarray, groups: int = 1
) -> np.ndarray:
    """What is to be added to the outputs of the rounded layer, one number for each channel. Rows are what the weights
    `[inputs, outputs]` meet."""
    means, rounded_means = (x.mean(axis=0, dtype=np.float64, keepdims=True) for x in (rows, rounded_rows))
    found = products(means, matrix.astype(np.float64), groups)
    return np.asarray((found - products(rounded_means, rounded.astype(np.float64), groups))[0], np.float32)
