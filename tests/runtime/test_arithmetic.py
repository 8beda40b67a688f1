"""Arithmetic on sizes that the host does: as Python, and no more than it is told to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.staged.functions import bound

Program = Sequence[str | int | float]


def result(program: Program, sizes: Sequence[int], otherwise: int | None = None) -> int:
    (found,) = bound("arithmetic", {"program": program, "otherwise": otherwise})(np.array(sizes, np.int64))
    assert found.dtype == np.int64 and found.shape == ()
    return int(found)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (["size 1"], 5),
        (["size 0", "float", 1 / 3, "**", "floor"], 3),  # 64 ** (1 / 3) is 3.9999999999999996
        (["size 0", "size 1", "/", 1, "rounded to", 10, "*", "trunc"], 128),
        (["size 0", 80, "**", "size 1", 200, "**", "max", 7, "%"], 64**80 % 7),
        (["size 0", "size 1", "<", 1, 2, "select"], 2),
        (["size 0", "negative", "size 1", "//"], -13),
        ([2.5, "round", 3.5, "round", "+"], 6),
    ],
)
def test_numbers_are_those_of_python(program: Program, expected: int) -> None:
    assert result(program, [64, 5]) == expected


@pytest.mark.parametrize(
    "program",
    [
        ["size 0", 0, "/"],
        ["size 0", 0, "%"],
        [-1.5, 0.5, "**", 1, "<"],
        ["size 0", "negative", "sqrt"],
        [1e300, 1e300, "*", "floor"],
        [2, 100, "**"],  # no size
        [3, 10**9, "**", 7, "%"],  # would take memory without end
        [1, 10**12, "<<"],
        ["size 0", 1.5, "&"],
    ],
)
def test_errors_of_python_are_told_or_have_a_result_of_their_own(program: Program) -> None:
    assert result(program, [64], otherwise=-3) == -3
    with pytest.raises(ValueError, match="a size cannot be computed: "):
        result(program, [64])


@pytest.mark.parametrize("program", [["eval"], ["size x"], ["+"], [1, 2], [], ["size 0", "+"]])
def test_programs_of_damaged_files_are_refused(program: Program) -> None:
    with pytest.raises(ArtifactError, match="does not take its parameters"):
        bound("arithmetic", {"program": program, "otherwise": None})
