"""Copies of states that grow share pages until somebody writes to them; nobody sees what another one has written."""

from __future__ import annotations

import mmap
import os
import random
from pathlib import Path

import numpy as np
import pytest

from tilewright.runtime.artifact import StateInfo, TensorInfo
from tilewright.runtime.errors import InputError
from tilewright.runtime.kept import shared_pages
from tilewright.runtime.kept.state_memory import StateMemory

GROUPS, CAPACITY, SIZE = 3, 600, 64
ROW = SIZE * 4


def infos(window: int = -1) -> list[StateInfo]:
    keys = TensorInfo("keys", "float32", (1, GROUPS, CAPACITY, SIZE))
    grown = StateInfo(keys, "next_keys", "in place", grows=2, counter="past", window=window)
    return [StateInfo(TensorInfo("past", "int64", ()), "next_past", "in place"), grown]


def memory(window: int = -1) -> StateMemory:
    return StateMemory(infos(window), [None, None])


class Twin:
    """Memory beside an array of its own, which shares nothing. Calls write behind the counter alone."""

    def __init__(self) -> None:
        self.memory, self.rows = memory(), np.zeros((GROUPS, 0, SIZE), np.float32)

    @property
    def count(self) -> int:
        return self.rows.shape[1]

    def feed(self, rows: np.ndarray) -> None:
        past, keys = self.memory.arrays
        begin, end = self.count, min(self.count + rows.shape[1], CAPACITY)
        keys[0, :, begin:end] = rows[:, : end - begin]
        past[...] = end
        self.rows = np.concatenate([self.rows, rows[:, : end - begin]], axis=1)

    def rewind(self, count: int) -> None:
        self.memory.set(0, count)
        self.rows = self.rows[:, :count]

    def copy(self, other: Twin) -> None:
        self.memory.copy_from(other.memory)
        self.rows = other.rows.copy()

    def check(self) -> None:
        assert int(self.memory.arrays[0]) == self.count
        np.testing.assert_array_equal(self.memory.filled(1)[0], self.rows)


@pytest.mark.fresh_seeds(2)
@pytest.mark.parametrize("most", [shared_pages.MOST, 5, 0])
def test_nobody_sees_what_another_has_written(fresh_seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random copies, calls, and steps back; also where no more, or only a few, parts may be shared."""
    monkeypatch.setattr(shared_pages, "MOST", min(most, shared_pages._COUNT.now + most))
    rng, draw = np.random.default_rng(fresh_seed), random.Random(fresh_seed)
    twins = [Twin()]
    for _ in range(150):
        one = draw.choice(twins)
        what = draw.choice(("feed", "feed", "rewind", "fork", "copy", "trim", "close"))
        if what == "feed":
            one.feed(rng.standard_normal((GROUPS, draw.choice((1, 3, 50, 300)), SIZE)).astype(np.float32))
        elif what == "rewind":
            one.rewind(draw.randint(0, one.count))
        elif what == "trim":
            one.memory.forget_behind()
            page = mmap.PAGESIZE // ROW
            assert not one.memory.arrays[1][:, :, one.count + page : CAPACITY - page].any()
        elif what == "close" and len(twins) > 1:
            twins.remove(one)
        elif what == "copy":
            if (other := draw.choice(twins)) is not one:
                other.copy(one)
        elif what == "fork" and len(twins) < 8:
            twins.append(Twin())
            twins[-1].copy(one)
        for twin in twins:
            twin.check()


def filled(rows: int) -> Twin:
    found = Twin()
    found.feed(np.random.default_rng(0).standard_normal((GROUPS, rows, SIZE)).astype(np.float32))
    return found


def _own_bytes() -> int:
    """Of this process; what is shared counts once."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


@pytest.mark.without_zones
@pytest.mark.skipif(not shared_pages._IS_THERE or not Path("/proc/self/smaps_rollup").exists(), reason="no such files")
def test_copies_take_no_memory() -> None:
    one = filled(500)
    forks = [memory() for _ in range(50)]
    before = _own_bytes()
    for fork in forks:
        fork.copy_from(one.memory)
        assert np.array_equal(fork.filled(1)[0, 0], one.rows[0])
    assert _own_bytes() - before < 10 * 500 * GROUPS * ROW  # and not 50 times


@pytest.mark.skipif(not shared_pages._IS_THERE, reason="there are no such files")
def test_what_is_shared_is_written_once() -> None:
    """A second copy makes no file, nor does a copy of a copy; what came since goes to another one."""
    one, made = filled(300), len(os.listdir("/proc/self/fd"))
    forks = [Twin(), Twin(), Twin()]
    forks[0].copy(one)
    forks[1].copy(one)
    forks[2].copy(forks[1])
    assert len(os.listdir("/proc/self/fd")) == made + 1
    one.feed(np.ones((GROUPS, 200, SIZE), np.float32))
    forks[0].copy(one)
    assert len(os.listdir("/proc/self/fd")) == made + 2
    for twin in (one, *forks):
        twin.check()
    count = shared_pages._COUNT.now
    del one, twin
    forks.clear()
    assert len(os.listdir("/proc/self/fd")) == made
    assert shared_pages._COUNT.now < count


@pytest.mark.skipif(not shared_pages._IS_THERE, reason="there are no such files")
def test_mappings_count_until_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that goes back to its begin, or is written anew, shares nothing, but its mappings stay: a process is not
    to come to the end of those that it may have."""
    one = filled(500)
    before = shared_pages._COUNT.now
    monkeypatch.setattr(shared_pages, "MOST", before + 10 * GROUPS)
    forks = []
    for _ in range(30):
        forks.append(Twin())
        forks[-1].copy(one)
        forks[-1].rewind(0)
        assert shared_pages._COUNT.now <= shared_pages.MOST
    assert shared_pages._COUNT.now == shared_pages.MOST
    forks[0].memory.forget_behind()
    assert shared_pages._COUNT.now < shared_pages.MOST
    for twin in (one, *forks):
        twin.check()
    del twin
    forks.clear()
    assert shared_pages._COUNT.now == before + GROUPS  # those of the first


@pytest.mark.skipif(not shared_pages._IS_THERE, reason="there are no such files")
def test_files_are_left_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has so many for shared pages at most; beyond that all is copied."""
    before, made = shared_pages._FILES.now, len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(shared_pages, "MOST_FILES", before + 3)
    pairs = [(filled(300), Twin()) for _ in range(6)]
    for one, other in pairs:
        other.copy(one)
    assert len(os.listdir("/proc/self/fd")) == made + 3
    for one, other in pairs:
        other.check()
        one.check()
    del one, other
    pairs.clear()
    assert len(os.listdir("/proc/self/fd")) == made and shared_pages._FILES.now == before


def test_no_room_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then all is copied, as it is where the operating system has no such files, and where it maps no more."""

    def refuse(*given: object) -> int:
        raise OSError(24, "Too many open files")

    one = filled(300)
    for name, value in (("_IS_THERE", False), ("_map", lambda *given: False)):
        with monkeypatch.context() as patch:
            patch.setattr(shared_pages, name, value)
            fork = Twin()
            fork.copy(one)
            fork.check()
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", refuse)
        fork = Twin()
        fork.copy(one)
        fork.check()


def test_windows_keep_what_they_read() -> None:
    one = memory(window=4)
    past, keys = one.arrays
    keys[...] = np.arange(CAPACITY)[:, None]
    past[...] = CAPACITY
    other = memory(window=4)
    other.copy_from(one)
    inner = one.memory_of(1)
    assert inner is not None
    inner.advance(CAPACITY)
    assert inner.first == CAPACITY - 4 - 256
    third = memory(window=4)
    third.copy_from(one)
    with pytest.raises(InputError, match="cannot go back to 10"):
        third.set(0, 10)
    for found, first in ((one, inner.first), (other, 0), (third, inner.first)):
        np.testing.assert_array_equal(found.arrays[1][0, 0, first:, 0], np.arange(first, CAPACITY))
    assert not third.arrays[1][0, 0, : inner.first - 16].any()
