"""How long plans are looked for is an option of users."""

from __future__ import annotations

import random

import pytest

from tests.memory.boxes import cut
from tilewright.options import MEMORY_EFFORTS, Options
from tilewright.program.memory.effort import EFFORTS, FAST, SEARCH
from tilewright.program.memory.packing.boxes import most_alive, overlapping
from tilewright.program.memory.packing.pack import pack
from tilewright.runtime.errors import OptionError


def test_each_effort_that_users_may_ask_for_is_known() -> None:
    assert tuple(EFFORTS) == MEMORY_EFFORTS
    assert FAST.order < SEARCH.order and FAST.offsets < SEARCH.offsets


@pytest.mark.parametrize("effort", ["slow", "", None, 3])
def test_others_are_refused(effort: object) -> None:
    with pytest.raises(OptionError, match=r"memory_effort=.* is not allowed: one of fast, search"):
        Options.of(None, memory_effort=effort)


def test_plans_of_another_effort_are_kept_apart() -> None:
    assert Options().fingerprint() == Options(memory_effort="fast").fingerprint()
    assert Options().fingerprint() != Options(memory_effort="search").fingerprint()


def test_more_effort_never_packs_higher() -> None:
    boxes = cut(random.Random(3), 4000, 24, 70)
    little, more = (pack(boxes, budget) for budget in (20_000, 2_000_000))
    assert overlapping(boxes, more) is None
    assert most_alive(boxes) <= more.total <= little.total
