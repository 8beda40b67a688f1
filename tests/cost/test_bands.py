"""Bands of lines: computing lines twice against the way to L3."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.cost.conv.bands import WindowLines, cycles_of_bands, lines_of_windows
from tilewright.target.named import parse_target
from tilewright.target.target import Bandwidth

IMAGE = WindowLines(rows=112, one=3 * 28_672, two=4 * 28_672, element=4, depth=24, parts=4)
"""112 lines of 112 pixels in panels of 64 channels, each from three lines."""


def test_with_a_slow_l3_a_band_stays_in_l2() -> None:
    target = replace(parse_target("zen3"), bandwidth=Bandwidth(l3=0.1))
    assert IMAGE.read(lines_of_windows(IMAGE, target)) <= target.caches.l2 / 2


def test_with_a_fast_l3_no_line_is_computed_twice() -> None:
    target = replace(parse_target("zen3"), bandwidth=Bandwidth(l3=1000))
    assert lines_of_windows(IMAGE, target) == IMAGE.rows, "there are four panels for two threads"


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 16])
def test_every_core_has_a_band(cores: int) -> None:
    lines = lines_of_windows(replace(IMAGE, parts=1), parse_target(f"zen3,cores={cores}"))
    assert -(-IMAGE.rows // lines) >= cores


def test_more_work_for_a_line_asks_for_higher_bands() -> None:
    target = parse_target("cascadelake")
    heights = [lines_of_windows(replace(IMAGE, depth=depth), target) for depth in (1, 9, 24, 200)]
    assert heights == sorted(heights)


def test_cycles_grow_with_what_is_computed_twice() -> None:
    target = parse_target("zen3")
    low, high = (cycles_of_bands(IMAGE, lines, target) for lines in (2, 8))
    assert low > high
