"""The collector's thresholds and the turns of threads during compilations, and after the last."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from tests.models import mlp
from tilewright import cli
from tilewright import compile as compile_model
from tilewright.ir.process_settings import TURN, YOUNG_OBJECTS, rare_collections, short_turns
from tilewright.options import Progress


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_collections_are_rare_until_the_last_is_done() -> None:
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (YOUNG_OBJECTS, 10, 10)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


def test_an_error_brings_the_thresholds_back() -> None:
    with pytest.raises(ZeroDivisionError), rare_collections():
        raise ZeroDivisionError
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("given", [(0, 10, 10), (YOUNG_OBJECTS + 1, 1, 1)])
def test_a_collector_that_is_off_or_as_rare_stays_so(given: tuple[int, int, int]) -> None:
    gc.set_threshold(*given)
    with rare_collections():
        assert gc.get_threshold() == given
    assert gc.get_threshold() == given


def test_compilations_collect_rarely() -> None:
    seen: set[int] = set()

    def watch(progress: Progress) -> None:
        seen.add(gc.get_threshold()[0])

    compile_model(mlp().SerializeToString(), cache=False, progress=watch)
    assert seen == {YOUNG_OBJECTS}
    assert gc.get_threshold() == (700, 10, 10)


def test_the_command_line_collects_as_rarely() -> None:
    assert cli.YOUNG_OBJECTS == YOUNG_OBJECTS


@pytest.fixture
def interval() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.25)
    yield 0.25
    sys.setswitchinterval(before)


def test_turns_are_short_until_the_last_is_done(interval: float) -> None:
    with short_turns():
        with pytest.raises(ZeroDivisionError), short_turns():
            raise ZeroDivisionError
        assert sys.getswitchinterval() == pytest.approx(TURN)
    assert sys.getswitchinterval() == interval


def test_shorter_turns_stay_so() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN / 4)
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(TURN / 4)
    sys.setswitchinterval(before)


def test_compilations_take_short_turns(interval: float) -> None:
    seen: set[float] = set()
    compile_model(
        mlp().SerializeToString(), cache=False, progress=lambda _: seen.add(round(sys.getswitchinterval(), 6))
    )
    assert seen == {TURN}
    assert sys.getswitchinterval() == interval
