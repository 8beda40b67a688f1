"""Winograd's algorithm: its matrices are exact, and transforms, products and inverse give the convolution."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tilewright.ir.diag import TypeRuleError
from tilewright.ops import winograd
from tilewright.ops.cook_toom import growth, interpolation, tile_lengths
from tilewright.ops.define.interp import evaluate
from tilewright.ops.winograd import (
    transformed_filters,
    winograd_input,
    winograd_output,
    winograd_product,
)

RNG = np.random.default_rng(5)
BLOCK = 4


RULES = [(2, 3), (4, 3), (6, 3), (2, 5), (4, 5), (2, 7), (3, 2), (3, 4), (1, 1)]
"""Results of a tile and taps along one axis."""


@pytest.mark.parametrize(("m", "taps"), RULES)
def test_the_matrices_satisfy_the_identity_in_rational_arithmetic(m: int, taps: int) -> None:
    """y[i] = sum over k of g[k] * d[i + k] holds for every pair of a tap and an element."""
    rule = interpolation(m, taps)
    assert rule.size == m + taps - 1
    for i in range(m):
        for k in range(taps):
            for at in range(rule.size):
                found = sum(
                    (rule.outputs[i][j] * rule.filters[j][k] * rule.inputs[j][at] for j in range(rule.size)),
                    start=Fraction(0),
                )
                assert found == (1 if at == i + k else 0), (i, k, at)


@pytest.mark.parametrize(("m", "taps"), RULES)
def test_the_coefficients_of_data_are_exact_in_float32(m: int, taps: int) -> None:
    rule = interpolation(m, taps)
    for row in (*rule.inputs, *rule.outputs):
        assert all(Fraction(float(np.float32(float(c)))) == c for c in row)


@pytest.mark.parametrize(("m", "taps"), RULES)
def test_rows_and_columns_of_opposite_points_are_neighbours(m: int, taps: int) -> None:
    """What lets both transforms share sums: even terms are equal, odd ones opposite."""
    rule = interpolation(m, taps)
    for k in range(1, rule.size - 1, 2):
        even_first = (-1) ** (rule.size % 2)  # the sign of a row follows from its highest power
        for at, (a, b) in enumerate(zip(rule.inputs[k], rule.inputs[k + 1], strict=True)):
            assert a == b * even_first * (-1) ** at
        for i, row in enumerate(rule.outputs):
            assert row[k] == row[k + 1] * (-1) ** i


@pytest.mark.parametrize(
    ("m", "taps", "most"),
    [(2, 3, 1.3), (4, 3, 2.2), (6, 3, 4.6), (2, 5, 2.4), (4, 5, 4.4), (2, 7, 5.0), (1, 1, 1)],
)
def test_points_keep_the_growth_of_rounding_errors_low(m: int, taps: int, most: float) -> None:
    """An error in proportion to each sum of products, in that of the direct sum's: root mean square over a tile, for
    data and filters without structure, drawn here. The classical points 0, 1, 2 of F(4, 3) have 3.3."""
    rule = interpolation(m, taps)
    b, g, a = (np.array(matrix, float) for matrix in (rule.inputs, rule.filters, rule.outputs))
    rng = np.random.default_rng(1)
    data, filters, relative = rng.standard_normal((3, 20000, rule.size))
    products = (data @ b.T) * (filters[:, :taps] @ g.T)
    errors = (products * relative) @ a.T
    measured = (errors**2).mean() ** 0.5 / taps**0.5
    assert growth(m, taps) == pytest.approx(measured, rel=0.05)
    assert growth(m, taps) <= most


def test_tiles_are_those_whose_rounding_errors_stay_small() -> None:
    assert set(tile_lengths((3, 3), 5.0)) == {(2, 2), (2, 4), (4, 2), (4, 4)}
    assert set(tile_lengths((3,), 5.0)) == {(2,), (4,), (6,)}
    assert set(tile_lengths((1, 7), 5.0)) == {(1, 2)}
    assert set(tile_lengths((5, 1), 5.0)) == {(2, 1), (4, 1)}
    assert tile_lengths((5, 5), 5.0) == () == tile_lengths((1, 1), 5.0) == tile_lengths((1, 11), 5.0)


def convolution(x: np.ndarray, w: np.ndarray, before: tuple[int, ...], after: tuple[int, ...]) -> np.ndarray:
    """Cross-correlation in float64, tap by tap: x [n, c, *space], w [o, c, *taps]."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *zip(before, after, strict=True)))
    space = [d - t + 1 for d, t in zip(x.shape[2:], w.shape[2:], strict=True)]
    total = np.zeros((len(x), len(w), *space))
    for at in np.ndindex(*w.shape[2:]):
        window = x[(..., *(slice(k, k + d) for k, d in zip(at, space, strict=True)))]
        total += np.einsum("nc...,oc->no...", window, w[(..., *at)].astype(np.float64))
    return total


def blocked(x: np.ndarray) -> np.ndarray:
    n, c, *space = x.shape
    return np.ascontiguousarray(np.moveaxis(x.reshape(n, c // BLOCK, BLOCK, *space), 2, -1))


def plain(x: np.ndarray) -> np.ndarray:
    n, cb, *space, b = x.shape
    return np.moveaxis(x, -1, 2).reshape(n, cb * b, *space)


@pytest.mark.parametrize("m", [(2, 2), (4, 4), (2, 4)])
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
    m: tuple[int, ...], size: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    check((3, 3), m, size, before, after, 2e-6)


@pytest.mark.parametrize(
    ("taps", "m", "size", "before", "after"),
    [
        ((1, 3), (1, 6), (5, 13), (0, 1), (0, 1)),
        ((1, 7), (1, 2), (3, 17), (0, 3), (0, 3)),
        ((7, 1), (2, 1), (17, 3), (3, 0), (3, 0)),
        ((5, 1), (4, 1), (9, 2), (2, 0), (1, 1)),
        ((1, 3), (1, 4), (2, 5), (1, 0), (1, 2)),
        ((3,), (6,), (50,), (1,), (1,)),
        ((5,), (4,), (11,), (0,), (4,)),
        ((4,), (3,), (10,), (0,), (0,)),
        ((2, 2), (3, 3), (6, 7), (0, 1), (1, 0)),
    ],
)
def test_axes_may_differ_and_lines_have_one(taps, m, size, before, after) -> None:
    check(taps, m, size, before, after, 4e-6)


def check(taps, m, size, before, after, tolerance: float) -> None:
    x = RNG.standard_normal((2, 8, *size)).astype(np.float32)
    w = RNG.standard_normal((12, 8, *taps)).astype(np.float32)
    wanted = convolution(x, w, before, after)
    points = evaluate(winograd_input, blocked(x), m=m, taps=taps, pads_begin=before, pads_end=after)
    filters = transformed_filters(w, m)
    sums = evaluate(winograd_product, points, filters)
    attrs = {"m": m, "taps": taps, "space": wanted.shape[2:], "pads_begin": before}
    found = plain(evaluate(winograd_output, sums, blocked(x), filters, **attrs))
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize(("m", "taps"), [((2, 2), (3, 3)), ((4, 4), (3, 3)), ((1, 4), (1, 5))])
def test_filters_are_rounded_once(m: tuple[int, int], taps: tuple[int, int]) -> None:
    w = RNG.standard_normal((40, 3, *taps)).astype(np.float32)
    down, across = (
        [[Fraction(c) for c in row] for row in interpolation(*axis).filters]
        for axis in zip(m, taps, strict=True)
    )
    u = transformed_filters(w, m)
    assert u.shape == (len(down) * len(across), 40, 3)
    for o, c in ((0, 0), (17, 2), (39, 1)):
        exact = [[Fraction(float(v)) for v in row] for row in w[o, c]]
        for j, row in enumerate(down):
            for k, column in enumerate(across):
                terms = (row[a] * exact[a][b] * column[b] for a in range(taps[0]) for b in range(taps[1]))
                value = float(sum(terms, start=Fraction(0)))
                assert u[j * len(across) + k, o, c] == pytest.approx(value, rel=6.1e-8, abs=1e-12)


@pytest.mark.parametrize("shape", [(70, 30, 3, 3), (3, 1, 3, 3), (0, 4, 3, 3), (4, 0, 3, 3)])
@pytest.mark.parametrize("most", [1, 1 << 10, 1 << 30])
def test_filters_are_the_same_however_many_are_transformed_at_once(
    shape: tuple[int, ...], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = RNG.standard_normal(shape).astype(np.float32)
    wanted = transformed_filters(w, (4, 4))
    monkeypatch.setattr(winograd, "PRODUCT_AT_ONCE", most)
    found = transformed_filters(w, (4, 4))
    assert found.shape == (36, *shape[:2])
    np.testing.assert_allclose(found, wanted, rtol=1.2e-7, atol=1e-12)


def test_what_does_not_fit_is_said() -> None:
    points, filters = np.zeros((1, 2, 36, 4, 4), np.float32), np.zeros((36, 8, 8), np.float32)
    x = np.zeros((1, 2, 8, 8, 4), np.float32)
    with pytest.raises(TypeRuleError, match="the points of the filters and of the data"):
        evaluate(winograd_product, points, filters[:16])
    with pytest.raises(TypeRuleError, match="the channels of the filters and of the data"):
        evaluate(winograd_product, points, filters[:, :, :4])
    with pytest.raises(TypeRuleError, match="6 filters in blocks of 4"):
        evaluate(winograd_product, points, filters[:, :6])
    with pytest.raises(TypeRuleError, match="the tiles of the sums and of the image"):
        evaluate(winograd_output, points, x, filters, m=(4, 4), taps=(3, 3), space=(12, 8))
    with pytest.raises(TypeRuleError, match="the points of the sums and of the tiles"):
        evaluate(winograd_output, points, x, filters, m=(2, 2), taps=(3, 3), space=(8, 8))
    with pytest.raises(TypeRuleError, match="the channels of the filters and of the data"):
        evaluate(winograd_output, points, x[:, :1], filters, m=(4, 4), taps=(3, 3), space=(8, 8))
    with pytest.raises(TypeRuleError, match="the filters and the channels of the sums"):
        evaluate(winograd_output, points, x, filters[:, :4], m=(4, 4), taps=(3, 3), space=(8, 8))
