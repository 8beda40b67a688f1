"""Panels of columns: whether a copy pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.cost.gemm.panels import ColumnReads, copies_columns, loops_around_groups
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


def test_images_stand_around_blocks_of_groups_where_all_of_a_group_stay_in_no_cache_of_a_core() -> None:
    target = parse_target("zen5")
    image, weights = 1 << 20, 1 << 20
    of_images = {n: loops_around_groups(n * image, weights, 4, 12, (n, 5), target) for n in (1, 8)}
    assert of_images == {1: 0, 8: 1}


def test_weights_that_are_much_more_than_the_rows_are_read_once() -> None:
    assert loops_around_groups(8 << 20, 512 << 20, 4, 12, (8,), parse_target("zen5")) == 0
