"""Correcting the mean of what a layer computes (Nagel et al., 2019).

Errors of rounded weights do not cancel where the inputs have a mean: each output is off by a constant, which the bias
can take back. The mean error of a layer is known from the means of its inputs:

    E[W x - Wq xq] = W E[x] - Wq E[xq]
"""

from __future__ import annotations

import numpy as np

from tilewright.quantization.network import Layer


def mean_output(layer: Layer, weights: np.ndarray, means: np.ndarray) -> np.ndarray:
    """The mean of each output of a layer whose inputs have these means. At the borders of an image a convolution sees
    zeros, which this leaves out."""
    weights = weights.astype(np.float64)
    if layer.operator != "Conv":
        return np.asarray(means @ layer.matrix(weights))
    kernels = weights.reshape(*weights.shape[:2], -1).sum(axis=2)
    outputs, depth = kernels.shape
    grouped = means.reshape(layer.groups, depth)
    return np.einsum(
        "god,gd->go", kernels.reshape(layer.groups, outputs // layer.groups, depth), grouped
    ).reshape(-1)


def correction(
    layer: Layer, weights: np.ndarray, rounded: np.ndarray, means: np.ndarray, rounded_means: np.ndarray
) -> np.ndarray:
    """What is to be added to the outputs of the rounded layer, one number for each channel."""
    found = mean_output(layer, weights, means) - mean_output(layer, rounded, rounded_means)
    return np.asarray(found, np.float32)
