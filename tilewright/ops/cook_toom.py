"""Short convolutions by interpolation: the matrices of the Cook-Toom algorithm F(m, r), in exact arithmetic.

m neighbouring results of a correlation with r taps are values of the coefficients of a product of polynomials,
which m + r - 1 products determine: y = A^T [(G g) * (B^T d)] for data d of m + r - 1 elements and taps g
(Winograd, "Arithmetic complexity of computations", 1980; Lavin and Gray, "Fast algorithms for convolutional neural
networks", 2016). In two dimensions the transforms are applied to rows and to columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import prod

Row = tuple[Fraction, ...]
Matrix = tuple[Row, ...]

POINTS: dict[int, tuple[Fraction, ...]] = {
    4: (Fraction(1),),
    6: (Fraction(11, 16), Fraction(3, 2)),
    8: (Fraction(1, 2), Fraction(1), Fraction(2)),
}
"""For each number of products the positive interpolation points; 0, their negatives and infinity belong to them.

The points decide how rounding errors grow (Barabasz, Anderson, Soodhalter and Gregg, "Error analysis and improving the
accuracy of Winograd convolution for deep neural networks", 2020, search such points). These are the best fractions of
16, or nearly: powers of two below, so that both transforms of data have exact coefficients. See `growth`.
"""


@dataclass(frozen=True)
class Interpolation:
    """The matrices of F(m, taps): `inputs` B^T, `outputs` A^T, `filters` G.

    Rows of B^T and columns of A^T 2k - 1 and 2k belong to points of opposite sign. F(1, 1) is the identity.
    `taps_of_filters` gives the taps back from their transform: it times G is the identity.
    """

    m: int
    taps: int
    inputs: Matrix
    outputs: Matrix
    filters: Matrix
    taps_of_filters: Matrix

    @property
    def size(self) -> int:
        """Elements of a tile of data, and products."""
        return self.m + self.taps - 1


@lru_cache
def interpolation(m: int, taps: int) -> Interpolation:
    """The algorithm F(m, taps). KeyError where no points are known for its number of products."""
    size = m + taps - 1
    points = [Fraction(0), *(sign * p for p in POINTS[size] for sign in (1, -1))] if size > 1 else []
    inputs, filters = [], []
    for j, p in enumerate(points):
        others = points[:j] + points[j + 1 :]
        norm = _value(others, p)
        inputs.append((*_from_roots(others), Fraction(0)))
        filters.append(tuple(p**k / norm for k in range(taps)))
    inputs.append(_from_roots(points))
    filters.append((*[Fraction(0)] * (taps - 1), Fraction(1)))
    outputs = tuple((*(p**i for p in points), Fraction(i == m - 1)) for i in range(m))
    return Interpolation(m, taps, tuple(inputs), outputs, tuple(filters), _left_inverse(filters))


@lru_cache
def growth(m: int, taps: int) -> float:
    """What an error in proportion to each sum of products becomes, in that of the direct sum: root mean square over a
    tile, for data and filters without structure. In two dimensions the factors of both axes multiply.

    1.3 for F(2, 3), 2.2 for F(4, 3) (3.3 with the classical points 1, 2), 4.5 for F(6, 3).
    """
    rule = interpolation(m, taps)
    sizes = [_squares(b) * _squares(g) for b, g in zip(rule.inputs, rule.filters, strict=True)]
    total = sum(a * a * size for row in rule.outputs for a, size in zip(row, sizes, strict=True))
    return float(total / (taps * m)) ** 0.5


@lru_cache
def tile_lengths(taps: tuple[int, ...], most_growth: float) -> tuple[tuple[int, ...], ...]:
    """The numbers of results along each axis that a tile may have, where rounding errors grow by no more than that; one
    result along axes of one tap. None where no axis would need fewer products."""
    if all(n == 1 for n in taps):
        return ()
    axes = [[1] if n == 1 else [size - n + 1 for size in POINTS if size > n] for n in taps]
    return tuple(
        m for m in product(*axes) if prod(growth(a, n) for a, n in zip(m, taps, strict=True)) <= most_growth
    )


def _left_inverse(filters: Sequence[Row]) -> Matrix:
    """A matrix H of few terms with H G = 1, for the rows of G in the order of `interpolation`.

    The first and the last tap are transforms themselves. The others follow from sums and differences of the transforms
    at points of opposite sign, which separate even taps from odd ones, so that a tap of zero comes back as zero.
    """
    size, taps = len(filters), len(filters[0])
    combinations = [_unit(size, 0), _unit(size, size - 1)]
    for k in range(1, size - 1, 2):
        scale = filters[k][0] / filters[k + 1][0]
        for sign in (-1, 1):
            combinations.append(tuple(_unit(size, k)[j] + sign * scale * _unit(size, k + 1)[j] for j in range(size)))
    reduced: list[tuple[int, list[Fraction], list[Fraction]]] = []  # tap, a row of the identity, and what gives it
    for combination in combinations:
        row = [sum((c * g[t] for c, g in zip(combination, filters, strict=True)), Fraction(0)) for t in range(taps)]
        terms = list(combination)
        for tap, other, others in reduced:
            row, terms = _less(row, row[tap], other), _less(terms, row[tap], others)
        if not any(row):
            continue
        tap = next(t for t, c in enumerate(row) if c != 0)
        row, terms = [c / row[tap] for c in row], [c / row[tap] for c in terms]
        reduced = [(t, _less(o, o[tap], row), _less(os, o[tap], terms)) for t, o, os in reduced]
        reduced.append((tap, row, terms))
    return tuple(tuple(terms) for _, _, terms in sorted(reduced))


def _unit(size: int, k: int) -> Row:
    return tuple(Fraction(j == k) for j in range(size))


def _less(row: Sequence[Fraction], factor: Fraction, other: Sequence[Fraction]) -> list[Fraction]:
    return [a - factor * b for a, b in zip(row, other, strict=True)]


def _squares(row: Row) -> Fraction:
    return sum((c * c for c in row), start=Fraction(0))


def _from_roots(roots: Sequence[Fraction]) -> Row:
    """Coefficients of the product of (x - root), the constant one first."""
    found = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *found], [-root * c for c in found]
        found = [a + b for a, b in zip(shifted, [*scaled, Fraction(0)], strict=True)]
    return tuple(found)


def _value(roots: Sequence[Fraction], x: Fraction) -> Fraction:
    """The product of (x - root)."""
    total = Fraction(1)
    for root in roots:
        total *= x - root
    return total
