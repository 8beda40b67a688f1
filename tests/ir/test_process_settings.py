"""The collector's thresholds and the turns of threads during compilations, and after the last."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import ref

import pytest

from tests.models import mlp
from tilewright import cli
from tilewright import compile as compile_model
from tilewright.ir import process_settings
from tilewright.ir.process_settings import (
    TURN,
    YOUNG_OBJECTS,
    rare_collections,
    rarely_collected,
    short_turns,
    with_room_for_frames,
)
from tilewright.options import Progress

T = TypeVar("T")


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


class Cyclic:
    """What only a collection frees."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def collections(own_garbage: None) -> Iterator[list[int]]:
    """The generations that are collected meanwhile. What is older is kept apart until a test says otherwise."""
    gc.collect()
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def test_what_a_compilation_leaves_is_old_afterwards(collections: list[int]) -> None:
    gc.unfreeze()
    with rarely_collected():
        kept = ref(Cyclic())
        others = [[] for _ in range(10_000)]
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_count()[0] < 700
    assert not collections
    assert len(others) == 10_000
    gc.collect()
    assert kept() is None


def test_much_that_was_left_is_collected(collections: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_settings, "YOUNG_OBJECTS", 25_000)
    monkeypatch.setattr(process_settings, "_AGED", process_settings._Aged())
    gc.unfreeze()
    kept = []
    for _ in range(3):
        with rarely_collected():
            kept.append([[] for _ in range(10_000)])
    assert collections == [2]


def test_what_a_program_keeps_apart_stays_so() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with rarely_collected():
            pass
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()


def test_a_collector_that_is_off_ages_nothing(collections: list[int]) -> None:
    gc.disable()
    try:
        with rarely_collected():
            others = [[] for _ in range(1_000)]
        assert gc.get_count()[0] >= len(others)
        assert not collections
    finally:
        gc.enable()


def test_only_the_outermost_ages(collections: list[int]) -> None:
    with rare_collections():
        with rarely_collected():
            others = [[] for _ in range(1_000)]
        assert gc.get_count()[0] >= len(others)
    assert set(collections) <= {0}


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


def _nothing() -> None:
    pass


def _faults_at(depth: int, calls: int = 50) -> int:
    """Pages that the system gave for some calls of a function, so many calls deep."""
    if depth:
        return _faults_at(depth - 1)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(calls):
        _nothing()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def _most_faults() -> int:
    return max(map(_faults_at, range(200)))


def test_frames_get_their_memory_once() -> None:
    if _in_a_thread(_most_faults) < 50:
        pytest.skip("this Python takes no memory for a call, wherever it is")
    assert _in_a_thread(with_room_for_frames(_most_faults)) < 50


def test_so_do_those_of_a_compilation() -> None:
    found: list[int] = []

    def look(progress: Progress) -> None:
        found.append(_most_faults())

    _in_a_thread(lambda: compile_model(mlp().SerializeToString(), cache=False, progress=look))
    assert found and max(found) < 50


def _in_a_thread(function: Callable[[], T]) -> T:
    """The result of a function in a thread of its own, whose frames begin a chunk of memory."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()
