"""Rounding weights so that outputs are close, not each weight by itself (Frantar et al., 2022: GPTQ).

Weights are rounded one input after the other. What an input's rounding changes in the outputs is taken back, as well
as that can be done, by the weights of the inputs that are still to come; the moments of the inputs, E[x x'], say how.
"""

from __future__ import annotations

import numpy as np

from tilewright.quantization.methods.integers import IntegerType

DAMPING = 0.01
"""Of the mean diagonal, that is added to the moments: few samples leave directions in which they say nothing."""


def nearest(matrix: np.ndarray, scales: np.ndarray, zeros: np.ndarray, kind: IntegerType) -> np.ndarray:
    """Each weight by itself: `[inputs, outputs]`, with scales that broadcast to that."""
    return np.asarray(np.clip(np.rint(matrix / scales) + zeros, kind.low, kind.high), np.int32)


def reconstructed(
    matrix: np.ndarray, moments: np.ndarray, scales: np.ndarray, zeros: np.ndarray, kind: IntegerType
) -> np.ndarray:
    """The integers of `[inputs, outputs]` that keep the outputs close for inputs with these `moments`."""
    rest = matrix.astype(np.float64).copy()
    scales = np.broadcast_to(scales, matrix.shape).astype(np.float64)
    zeros = np.broadcast_to(zeros, matrix.shape)
    moments = moments.astype(np.float64).copy()
    silent = np.diag(moments) <= 0
    moments[silent, silent] = 1.0
    rest[silent] = matrix[silent]
    moments[np.diag_indices_from(moments)] += DAMPING * float(np.mean(np.diag(moments)))
    order = np.argsort(
        -np.diag(moments), kind="stable"
    )  # the strongest first: what comes last has nobody to correct it
    upper = np.linalg.cholesky(np.linalg.inv(moments[np.ix_(order, order)])).T
    rest = rest[order]
    found = np.zeros(matrix.shape, np.int32)
    for step, place in enumerate(order):
        scale, zero = scales[place], zeros[place]
        steps = np.clip(np.rint(rest[step] / scale) + zero, kind.low, kind.high)
        found[place] = steps
        error = (rest[step] - (steps - zero) * scale) / upper[step, step]
        rest[step + 1 :] -= np.outer(upper[step, step + 1 :], error)
    return found


def output_error(matrix: np.ndarray, rounded: np.ndarray, moments: np.ndarray) -> float:
    """The sum over outputs of the mean square of what rounding changes, for inputs with these moments."""
    left = (matrix - rounded).astype(np.float64)
    return float(np.einsum("io,ij,jo->", left, moments, left, optimize=True))
