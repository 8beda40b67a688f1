"""Rounding weights so that outputs are close, not each weight by itself (Frantar et al., 2022: GPTQ).

Weights are rounded one input after the other. What an input's rounding changes in the outputs is taken back, as well
as that can be done, by the weights of the inputs that are still to come; the moments of the inputs, E[x x'], say how.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.quantization.methods.integers import IntegerType

DAMPING = 0.01
"""Of the mean diagonal, that is added to the moments: few samples leave directions in which they say nothing."""

BLOCK = 64
"""Inputs whose corrections are added one by one; those of all later inputs are added once for a block."""


def nearest(matrix: np.ndarray, scales: np.ndarray, zeros: np.ndarray, kind: IntegerType) -> np.ndarray:
    """Each weight by itself: `[inputs, outputs]`, with scales that broadcast to that."""
    return np.asarray(np.clip(np.rint(matrix / scales) + zeros, kind.low, kind.high), np.int32)


@dataclass(frozen=True)
class Corrections:
    """How what rounding an input changes is taken back: inputs in the `order` in which they are rounded, and the rows
    of the upper factor of the moments' inverse, which say by how much of those that follow."""

    order: np.ndarray
    upper: np.ndarray

    @classmethod
    def of(cls, moments: np.ndarray) -> Corrections:
        """For inputs with these `moments`: the strongest first, as what comes last has nobody to correct it."""
        moments = moments.astype(np.float64)
        silent = np.diag(moments) <= 0
        moments[silent, silent] = 1.0
        moments[np.diag_indices_from(moments)] += DAMPING * float(np.mean(np.diag(moments)))
        order = np.argsort(-np.diag(moments), kind="stable")
        # H = R R' with an upper R makes the inverse of R the upper factor of the inverse of H
        backwards = np.linalg.cholesky(moments[np.ix_(order[::-1], order[::-1])])
        return cls(order, np.triu(np.linalg.inv(backwards[::-1, ::-1])))


def reconstructed(
    matrix: np.ndarray, corrections: Corrections, scales: np.ndarray, zeros: np.ndarray, kind: IntegerType
) -> np.ndarray:
    """The integers of `[inputs, outputs]` that keep the outputs close. Within a block of inputs each is corrected at
    once, and those after it by all of the block together, as a product of matrices."""
    order, upper = corrections.order, corrections.upper
    rest = matrix[order].astype(np.float64)
    scales = np.broadcast_to(scales, matrix.shape)[order].astype(np.float64)
    zeros = np.broadcast_to(zeros, matrix.shape)[order].astype(np.float64)
    found = np.zeros(matrix.shape, np.int32)
    for start in range(0, len(rest), BLOCK):
        end = min(start + BLOCK, len(rest))
        errors = np.zeros((end - start, rest.shape[1]))
        for step in range(start, end):
            scale, zero = scales[step], zeros[step]
            integers = np.clip(np.rint(rest[step] / scale) + zero, kind.low, kind.high)
            found[order[step]] = integers
            error = (rest[step] - (integers - zero) * scale) / upper[step, step]
            rest[step + 1 : end] -= np.outer(upper[step, step + 1 : end], error)
            errors[step - start] = error
        rest[end:] -= upper[start:end, end:].T @ errors
    return found
