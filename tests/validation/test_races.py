"""What is known of parallel loops: proved, tried on all iterations, refused, or left where that takes much memory."""

from __future__ import annotations

import pytest

from tilewright.loops.kernel_info import parse_kernel
from tilewright.validation.races import MOST_ELEMENTS, Races, races_of


@pytest.mark.parametrize(
    ("size", "index", "extent", "found"),
    [
        (8, "i", 8, Races(proved=1)),
        (8, "i//2", 1, Races(proved=1)),  # nobody to meet
        (8, "i//2", 0, Races(tried=1)),
        (64, "i*i", 8, Races(tried=1)),
        (8, "i//2", 8, Races("two iterations of the parallel loop 'i' meet in 'y'")),
        (8, "(i*i)%4", 8, Races("two iterations of the parallel loop 'i' meet in 'y'")),
        (MOST_ELEMENTS, "i*i", 8, Races(left=1)),
    ],
)
def test_what_is_known_of_a_loop(size: int, index: str, extent: int, found: Races) -> None:
    kernel = parse_kernel(
        f"kernel @k(x: &f32[{size}], y: &f32[{size}]) dims() with {{outputs=1}} {{\n"
        f"  for i in 0..{extent} parallel {{\n    y[{index}] = x[i]\n  }}\n  return\n}}\n"
    )
    assert races_of(kernel, {}) == found
