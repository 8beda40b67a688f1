"""What is known of parallel loops: proved, tried on all iterations, refused, or left where that takes much memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.ir.core import Func
from tilewright.loops.kernel_info import parse_kernel
from tilewright.validation import races
from tilewright.validation.races import MOST_ELEMENTS, Races, races_of


@pytest.fixture(autouse=True)
def there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection of garbage may take seconds."""
    monkeypatch.setattr(races, "SECONDS", 600.0)


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
    assert races_of(kernel(size, extent, f"y[{index}] = x[i]"), {}) == found


@pytest.mark.parametrize(
    ("store", "is_race"),
    [
        ("y[e + min(3*i, 7)] = x[e + min(3*i, 7)]", False),  # the last three begin early, and write the same
        ("y[e + min(3*i, 7)] = x[e + 3*i]", True),
        ("y[e + min(3*i, 7)] = y[e + min(3*i, 7)] + x[0]", True),
        ("y[e + min(3*i, 7)] = y[e + min(3*i, 7)]", True),  # what is read may be another iteration's
        ("y[i + e] = x[0]", False),
    ],
)
def test_iterations_that_overlap_write_the_same(store: str, is_race: bool) -> None:
    found = races_of(kernel(12, 4, f"for e in 0..3 {{\n      {store}\n    }}", " with {overlap=true}"), {})
    assert found == (Races("two iterations of the parallel loop 'i' meet in 'y'") if is_race else Races(tried=1))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((), Races(left=1)),  # whatever is drawn
        (([0, 1, 3], [1, 1, 1]), Races(tried=1)),
        (([0, 2, 3], [1, 1, 1]), Races("two iterations of the parallel loop 'i' meet in 'y'")),
        (([0, 2, 3],), Races(left=1)),
    ],
)
def test_places_that_data_say_are_those_of_a_call(given: Sequence[list[int]], found: Races) -> None:
    """Two elements after one another each, from positions that another kernel has counted."""
    func = parse_kernel(
        "kernel @k(at: &i64[3], x: &f32[3], y: &f32[5]) dims() with {outputs=1} {\n  for i in 0..3 parallel {\n"
        "    bind b = max(min(at[i], 3), 0)\n    y[b] = x[i]\n    y[b + min(i, 1)] = x[i]\n  }\n  return\n}\n"
    )
    types = (np.int64, np.float32)
    assert races_of(func, {}, [np.array(a, t) for a, t in zip(given, types, strict=False)]) == found


def test_operands_may_be_views() -> None:
    """The interpreter of graphs gives views of what only moves elements."""
    func = parse_kernel(
        "kernel @k(x: &f32[3, 2], y: &f32[16]) dims() with {outputs=1} {\n  for i in 0..3 parallel {\n"
        "    y[i*i] = x[i, 0]\n  }\n  return\n}\n"
    )
    assert races_of(func, {}, [np.ones((2, 3), np.float32).T]) == Races(tried=1)


def kernel(size: int, extent: int, store: str, attrs: str = "") -> Func:
    return parse_kernel(
        f"kernel @k(x: &f32[{size}], y: &f32[{size}]) dims() with {{outputs=1}} {{\n"
        f"  for i in 0..{extent} parallel{attrs} {{\n    {store}\n  }}\n  return\n}}\n"
    )
