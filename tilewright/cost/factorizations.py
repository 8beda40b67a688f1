"""Eigenvalues and singular values of matrices of the call: whether our kernels are used, or a library's."""

from __future__ import annotations

LARGEST_BY_ROTATIONS = 32
"""Rows up to which Jacobi's rotations, one after the other, are used: they take 3 to 4 ms for 64 rows, where LAPACK
takes 0.6 to 2.9, and 190 to 715 for 256 rows, where LAPACK takes 5 to 11 (Zen 3, one thread). The first grow with more
than the third power of the rows and the second with less, so that the number depends little on the machine."""


def rotations_are_faster(rows: int) -> bool:
    """Whether a matrix of so many rows is factorised by rotations in less time than by LAPACK."""
    return rows <= LARGEST_BY_ROTATIONS
