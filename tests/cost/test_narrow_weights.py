"""Weights stay bytes, or halves of bytes, where rows are so few that they wait for what they read."""

from __future__ import annotations

import pytest

from tilewright.cost.narrow_weights import is_widened_when_read, lie_in_halves
from tilewright.target.dots import PMADDWD, VPDPBUSD
from tilewright.target.named import parse_target

TARGET = parse_target("zen3")
WEIGHTS = 1 << 20


def most_rows(all_weights: int) -> int:
    """The most rows that read bytes, of weights that are found where so many bytes are."""
    rows = [n for n in range(1, 129) if is_widened_when_read(n, WEIGHTS, 1, all_weights, PMADDWD, TARGET)]
    assert rows == list(range(1, len(rows) + 1))
    return len(rows)


def test_the_further_away_weights_are_the_more_rows_read_bytes() -> None:
    near, far, farthest = (most_rows(size) for size in (1 << 17, 1 << 22, 1 << 28))
    assert 1 <= near <= far < farthest < 16


def test_what_the_machine_multiplies_as_bytes_is_not_widened() -> None:
    assert not is_widened_when_read(1, WEIGHTS, 1, 1 << 28, VPDPBUSD, parse_target("cascadelake"))


FAR, NEAR = 1 << 30, 1 << 20
MACHINES = ("zen3", "zen4", "zen5", "skylake", "cascadelake", "sapphirerapids", "neoverse-n1", "apple-m1")


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("signed", [True, False])
def test_weights_from_memory_lie_in_halves_of_bytes(machine: str, signed: bool) -> None:
    target = parse_target(machine)
    converting = target.half_bytes.signed if signed else target.half_bytes.unsigned
    assert lie_in_halves(1, WEIGHTS, FAR, converting, target)
    assert lie_in_halves(64, WEIGHTS, FAR, converting, target)


def test_near_weights_stay_bytes_for_one_row_that_would_wait_for_more_instructions() -> None:
    for target in map(parse_target, ("zen3", "zen4", "zen5")):
        assert not lie_in_halves(1, WEIGHTS, NEAR, target.half_bytes.signed, target)
        assert lie_in_halves(512, WEIGHTS, NEAR, target.half_bytes.signed, target)


@pytest.mark.parametrize("machine", ["zen4", "zen5", "cascadelake", "sapphirerapids"])
def test_levels_lie_in_halves_of_bytes_where_instructions_look_up_floats(machine: str) -> None:
    target = parse_target(machine)
    assert lie_in_halves(1, WEIGHTS, FAR, target.half_bytes.levels, target)
