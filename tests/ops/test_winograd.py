"""Winograd's algorithm: its matrices are exact, and transforms, products and inverse give the convolution."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tilewright.ir.diag import TypeRuleError
from tilewright.ops.cook_toom import POINTS, TAPS, interpolation
from tilewright.ops.interp import evaluate
from tilewright.ops.winograd import (
    transformed_filters,
    winograd_input,
    winograd_output,
    winograd_product,
)

RNG = np.random.default_rng(5)
BLOCK = 4


@pytest.mark.parametrize("m", POINTS)
def test_the_matrices_satisfy_the_identity_in_rational_arithmetic(m: int) -> None:
    """y[i] = sum over k of g[k] * d[i + k] holds for every pair of a tap and an element."""
    rule = interpolation(m)
    assert rule.size == m + 2
    for i in range(m):
        for k in range(TAPS):
            for at in range(rule.size):
                found = sum(
                    (rule.outputs[i][j] * rule.filters[j][k] * rule.inputs[j][at] for j in range(rule.size)),
                    start=Fraction(0),
                )
                assert found == (1 if at == i + k else 0), (i, k, at)


@pytest.mark.parametrize("m", POINTS)
def test_the_coefficients_of_data_are_exact_in_float32(m: int) -> None:
    rule = interpolation(m)
    for row in (*rule.inputs, *rule.outputs):
        assert all(Fraction(float(np.float32(float(c)))) == c for c in row)


@pytest.mark.parametrize("m", POINTS)
def test_rows_and_columns_of_opposite_points_are_neighbours(m: int) -> None:
    """What lets both transforms share sums: even terms are equal, odd ones opposite."""
    rule = interpolation(m)
    for k in range(1, rule.size - 1, 2):
        even_first = (-1) ** (rule.size % 2)  # the sign of a row follows from its highest power
        for at, (a, b) in enumerate(zip(rule.inputs[k], rule.inputs[k + 1], strict=True)):
            assert a == b * even_first * (-1) ** at
        for i, row in enumerate(rule.outputs):
            assert row[k] == row[k + 1] * (-1) ** i


@pytest.mark.parametrize(("m", "most"), [(2, 1.7), (4, 4.9)])
def test_points_keep_the_growth_of_rounding_errors_low(m: int, most: float) -> None:
    """An error in proportion to each sum of products, in that of the direct sum's: root mean square over a tile, for
    data and filters without structure. The classical points 0, 1, 2 of m = 4 have 10.8."""
    rule = interpolation(m)
    b, g, a = (np.array(matrix, float) for matrix in (rule.inputs, rule.filters, rule.outputs))
    variance = (a**2) @ ((b**2).sum(axis=1) * (g**2).sum(axis=1)) / TAPS
    assert variance.mean() <= most


def convolution(x: np.ndarray, w: np.ndarray, before: tuple[int, int], after: tuple[int, int]) -> np.ndarray:
    """Cross-correlation with 3x3 filters in float64, tap by tap."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (before[0], after[0]), (before[1], after[1])))
    height, width = x.shape[2] - 2, x.shape[3] - 2
    total = np.zeros((len(x), len(w), height, width))
    for i in range(3):
        for j in range(3):
            window = x[:, :, i : i + height, j : j + width]
            total += np.einsum("nchw,oc->nohw", window, w[:, :, i, j].astype(np.float64))
    return total


def blocked(x: np.ndarray) -> np.ndarray:
    n, c, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, c // BLOCK, BLOCK, h, w).transpose(0, 1, 3, 4, 2))


def plain(x: np.ndarray) -> np.ndarray:
    n, cb, h, w, b = x.shape
    return x.transpose(0, 1, 4, 2, 3).reshape(n, cb * b, h, w)


@pytest.mark.parametrize("m", POINTS)
@pytest.mark.parametrize(
    ("size", "before", "after"),
    [
        ((8, 8), (1, 1), (1, 1)),
        ((9, 7), (0, 0), (0, 0)),
        ((5, 12), (2, 0), (1, 3)),
        ((3, 3), (0, 0), (0, 0)),
        ((1, 2), (1, 1), (1, 1)),
    ],
)
def test_three_steps_are_the_convolution(
    m: int, size: tuple[int, int], before: tuple[int, int], after: tuple[int, int]
) -> None:
    x = RNG.standard_normal((2, 8, *size)).astype(np.float32)
    w = RNG.standard_normal((12, 8, 3, 3)).astype(np.float32)
    wanted = convolution(x, w, before, after)
    points = evaluate(winograd_input, blocked(x), m=m, pads_begin=before, pads_end=after)
    sums = evaluate(winograd_product, points, transformed_filters(w, m))
    height, width = wanted.shape[2:]
    found = plain(evaluate(winograd_output, sums, m=m, height=height, width=width))
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("m", POINTS)
def test_filters_are_rounded_once(m: int) -> None:
    w = RNG.standard_normal((40, 3, 3, 3)).astype(np.float32)
    g = [[Fraction(c) for c in row] for row in interpolation(m).filters]
    u = transformed_filters(w, m)
    size = m + 2
    assert u.shape == (size * size, 40, 3)
    for o, c in ((0, 0), (17, 2), (39, 1)):
        exact = [[Fraction(float(v)) for v in row] for row in w[o, c]]
        for j in range(size):
            for k in range(size):
                value = sum(
                    (g[j][a] * exact[a][b] * g[k][b] for a in range(3) for b in range(3)), start=Fraction(0)
                )
                assert u[j * size + k, o, c] == pytest.approx(float(value), rel=6.1e-8, abs=1e-12)


def test_what_does_not_fit_is_said() -> None:
    points, filters = np.zeros((1, 2, 36, 4, 4), np.float32), np.zeros((36, 8, 8), np.float32)
    with pytest.raises(TypeRuleError, match="the points of the filters and of the data"):
        evaluate(winograd_product, points, filters[:16])
    with pytest.raises(TypeRuleError, match="the channels of the filters and of the data"):
        evaluate(winograd_product, points, filters[:, :, :4])
    with pytest.raises(TypeRuleError, match="6 filters in blocks of 4"):
        evaluate(winograd_product, points, filters[:, :6])
    with pytest.raises(TypeRuleError, match="the tiles of the sums and of the image"):
        evaluate(winograd_output, points, m=4, height=12, width=8)
    with pytest.raises(TypeRuleError, match="the points of the sums and of the tiles"):
        evaluate(winograd_output, points, m=2, height=8, width=8)
