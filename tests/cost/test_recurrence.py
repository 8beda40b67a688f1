"""Whether threads share steps of a recurrent network or groups of its entries."""

from __future__ import annotations

from dataclasses import replace

from tilewright.cost.recurrence import StepProduct, entries_together, why_entries_are_shared
from tilewright.target.named import parse_target

TARGET = parse_target("zen5,cores=2")
STEP = StepProduct(entries=6, gates=4, units=128, terms=128)


def test_groups_are_shared_unless_their_shares_are_less_equal_than_an_exchange_of_states_is_dear() -> None:
    assert why_entries_are_shared([STEP], (2,), TARGET)
    assert why_entries_are_shared([STEP], (3,), TARGET)
    calibration = replace(TARGET.calibration, exchange=0)
    assert not why_entries_are_shared([STEP], (3,), replace(TARGET, calibration=calibration))
    assert not why_entries_are_shared([replace(STEP, units=1024, terms=1024)], (3,), TARGET)


def test_one_group_is_no_work_for_two_threads() -> None:
    assert not why_entries_are_shared([STEP], (1,), TARGET)


def test_of_several_loops_over_groups_the_most_equal_counts() -> None:
    assert "2 groups" in why_entries_are_shared([STEP], (3, 2), TARGET)


def test_entries_go_together_where_groups_would_push_weights_out_of_l2() -> None:
    fits = TARGET.calibration.recurrent_weights // 4  # weights of float32
    small = replace(TARGET, calibration=replace(TARGET.calibration, recurrent_weights=fits))
    assert entries_together(12, fits, TARGET) == 6 and entries_together(12, fits + 1, TARGET) == 12
    assert entries_together(12, fits // 4, small) == 6 and entries_together(12, fits // 4 + 1, small) == 12
    assert entries_together(12, None, TARGET) == 6 and entries_together(0, fits + 1, TARGET) == 1


def test_entries_go_together_sooner_where_groups_would_compute_some_twice() -> None:
    waking = 2 * TARGET.calibration.fork_work
    assert entries_together(5, waking, TARGET) == 3 and entries_together(5, waking + 1, TARGET) == 5
    slow = replace(TARGET, calibration=replace(TARGET.calibration, fork_work=TARGET.calibration.fork_work * 2))
    assert entries_together(5, waking + 1, slow) == 3
