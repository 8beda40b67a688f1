"""Rates of a machine as cycles: in proportion to the fact that each names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.cost.core import (
    begin_cycles,
    copy_cycles,
    is_evicted,
    l1_room,
    lanes_of,
    pass_cycles,
    read_cycles,
    step_cycles,
)
from tilewright.cost.factorizations import rotations_are_faster
from tilewright.target.named import parse_target
from tilewright.target.target import Target

TARGET = parse_target("zen4,cores=2")


def slower(unit: str) -> Target:
    """A core of which one rate is half."""
    return replace(TARGET, pipes=replace(TARGET.pipes, **{unit: getattr(TARGET.pipes, unit) / 2}))


@pytest.mark.parametrize("unit", ["issue", "multiply_adds", "arithmetic", "loads", "stores"])
def test_half_the_units_take_twice_the_cycles(unit: str) -> None:
    assert begin_cycles(8, unit, slower(unit)) == 2 * begin_cycles(8, unit, TARGET) > 0  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["l2", "l3", "memory"])
def test_half_the_bandwidth_takes_twice_the_cycles(source: str) -> None:
    half = replace(TARGET.bandwidth, **{source: getattr(TARGET.bandwidth, source) / 2})
    slow = replace(TARGET, bandwidth=half)
    assert read_cycles(640, source, slow) == 2 * read_cycles(640, source, TARGET) > 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "unit"),
    [((64, 1, 1), "multiply_adds"), ((1, 64, 1), "loads"), ((1, 1, 640), "issue")],
)
def test_a_step_takes_as_long_as_its_tightest_bound(step: tuple[int, int, int], unit: str) -> None:
    assert step_cycles(*step, 1.0, slower(unit)) == 2 * step_cycles(*step, 1.0, TARGET)
    assert step_cycles(1, 1, 1, 1.25, TARGET) == 1.25 * TARGET.pipes.latency


def test_passes_lanes_and_rooms() -> None:
    assert pass_cycles(3, TARGET) == 3 * TARGET.calibration.exposed.passes
    assert lanes_of(32, TARGET) == TARGET.f32_lanes and lanes_of(1 << 20, TARGET) == 1
    assert l1_room(TARGET, "near_row") < l1_room(TARGET, "near_lines") < l1_room(TARGET, "near") <= TARGET.caches.l1d
    assert is_evicted(2 * TARGET.caches.l2 + 1, TARGET) and not is_evicted(2 * TARGET.caches.l2, TARGET)


def test_small_matrices_are_factorised_by_rotations() -> None:
    verdicts = [rotations_are_faster(rows) for rows in (0, 1, 32, 33, 256)]
    assert verdicts == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("name", "wanted"), [("zen3", (3, 2.5, 4.5)), ("zen4", (2.6, 2.6, 2.6)), ("neoverse-n1", (2.4, 2.4, 3.4))]
)
def test_instructions_of_halves_are_a_fact_of_the_machine(name: str, wanted: tuple[float, ...]) -> None:
    found = parse_target(name).half_bytes
    assert (found.signed, found.unsigned, found.levels) == wanted


@pytest.mark.parametrize("name", ["zen4", "zen3", "skylake-avx512"])
def test_single_elements_are_stored_one_in_a_cycle(name: str) -> None:
    """Also where a full vector takes two, as in Zen 4."""
    assert copy_cycles(1000, parse_target(name)) == 1000
