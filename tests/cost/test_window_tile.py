"""Register tiles of windows."""

from __future__ import annotations

from tilewright.cost.conv.window_tile import choose_columns, lanes_of_short_line
from tilewright.target.named import NAMED


def test_columns_fill_the_units_and_fit_the_registers() -> None:
    assert choose_columns(56, 1, 32) == 14
    assert choose_columns(7, 1, 32) == 7
    assert choose_columns(1, 1, 32) == 1
    for target in NAMED.values():
        per_vector = 512 // target.vector_bits
        for count in (None, 3, 13, 56, 1000):
            columns = choose_columns(count, per_vector, target.vector_registers)
            assert (columns + 1) * per_vector < target.vector_registers


def test_short_lines_are_one_vector() -> None:
    assert [lanes_of_short_line(16, most) for most in (None, 1, 2, 5, 8, 9, 16, 17)] == [0, 0, 2, 8, 8, 16, 16, 0]
