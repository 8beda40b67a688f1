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

Row = tuple[Fraction, ...]
Matrix = tuple[Row, ...]

TAPS = 3

POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(1),),
    4: (Fraction(11, 16), Fraction(3, 2)),
}
"""For each m the positive interpolation points; 0, their negatives and infinity belong to them.

The points decide how rounding errors grow (Barabasz, Anderson, Soodhalter and Gregg, "Error analysis and improving the
accuracy of Winograd convolution for deep neural networks", 2020, search such points). An error in proportion to each
sum of products becomes one of 1.7 times that of the direct sum for m = 2, of 4.8 times for m = 4 with these points and
of 10.8 times with the classical 1, 2 (root mean square over data and filters without structure). These are fractions
with powers of two below, so that both transforms of data have exact coefficients. The best for m = 6 are 1/2, 1, 2:
20.6 times; m = 6 is left out, as it is no faster either.
"""


@dataclass(frozen=True)
class Interpolation:
    """The matrices of F(m, 3): `inputs` B^T, `outputs` A^T, `filters` G.

    Rows of B^T and columns of A^T 2k - 1 and 2k belong to points of opposite sign.
    """

    m: int
    inputs: Matrix
    outputs: Matrix
    filters: Matrix

    @property
    def size(self) -> int:
        """m + 2: elements of a tile of data."""
        return self.m + TAPS - 1


@lru_cache
def interpolation(m: int) -> Interpolation:
    """The algorithm F(m, 3)."""
    points = [Fraction(0), *(sign * p for p in POINTS[m] for sign in (1, -1))]
    inputs, filters = [], []
    for j, p in enumerate(points):
        others = points[:j] + points[j + 1 :]
        norm = _value(others, p)
        inputs.append((*_from_roots(others), Fraction(0)))
        filters.append(tuple(p**k / norm for k in range(TAPS)))
    inputs.append(_from_roots(points))
    filters.append((*[Fraction(0)] * (TAPS - 1), Fraction(1)))
    outputs = tuple((*(p**i for p in points), Fraction(i == m - 1)) for i in range(m))
    return Interpolation(m, tuple(inputs), outputs, tuple(filters))


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
