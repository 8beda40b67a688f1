"""Panels of columns: whether a copy pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.cost.gemm.panels import ColumnReads, copies_columns
from tilewright.target.named import parse_target

PLAIN = ColumnReads(
    reads=40, steps=64, step=1600, vectors=5, lanes=16, element=4, conditions=0, conditions_move=False
)


def test_columns_that_stay_in_l1_are_read_where_they_are() -> None:
    assert not copies_columns(PLAIN, parse_target("zen5"))


@pytest.mark.parametrize("step", [4096, 8192, None])
def test_steps_that_share_sets_of_l1_are_copied_if_read_often(step: int | None) -> None:
    far = replace(PLAIN, step=step)
    assert copies_columns(far, parse_target("zen5"))
    assert not copies_columns(replace(far, reads=1), parse_target("zen5"))


@pytest.mark.parametrize("name, copied", [("zen5", False), ("zen3", True), ("neoverse-n1", True)])
def test_conditions_are_free_in_mask_registers_alone(name: str, copied: bool) -> None:
    assert copies_columns(replace(PLAIN, conditions=1), parse_target(name)) == copied


def test_conditions_that_steps_change_are_not_free() -> None:
    assert copies_columns(replace(PLAIN, conditions=2, conditions_move=True), parse_target("zen5"))
