"""What states fill for the most part lies in huge pages; what they hardly fill does not, and nothing that is held
changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.runtime.arena import address_of
from tilewright.runtime.artifact import StateInfo, TensorInfo
from tilewright.runtime.kept.reserved import _COLLAPSE, HUGE_PAGE, Reserved
from tilewright.runtime.kept.shared_pages import PageFile
from tilewright.runtime.kept.state_memory import MemoryOfState
from tilewright.runtime.states import States

HUGE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
ENABLED = HUGE.parent / "enabled"
ALWAYS = ENABLED.exists() and "[always]" in ENABLED.read_text()
"""Whether Linux gives huge pages to whoever touches memory, so that what is hardly filled lies in some, too."""
WHOLE = 3 * HUGE_PAGE
"""Bytes of a part that grows."""


def filled(parts: int, count: int) -> tuple[Reserved, np.ndarray]:
    """Memory whose parts are filled by so many bytes each, and what it holds."""
    memory = Reserved(parts * WHOLE, "a test")
    wanted = np.zeros(parts * WHOLE, np.uint8)
    wanted.reshape(parts, WHOLE)[:, :count] = np.random.default_rng(1).integers(1, 256, (parts, count), np.uint8)
    memory.array.reshape(parts, WHOLE)[:, :count] = wanted.reshape(parts, WHOLE)[:, :count]
    return memory, wanted


def settle(memory: Reserved, count: int) -> int:
    """Until nothing is left; for how many pages."""
    return sum(1 for _ in iter(lambda: memory.lie_in_huge_page(WHOLE, count), False))


def bytes_in_huge_pages(array: np.ndarray) -> int:
    """Of the mappings that an array is within, as Linux tells it."""
    begin, found, inside = address_of(array), 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if "-" in name and not name.endswith(":"):
            first, last = (int(n, 16) for n in name.split("-"))
            inside = first < begin + array.nbytes and begin < last
        elif inside and name == "AnonHugePages:":
            found += int(rest[0]) << 10
    return found


def skip_where_memory_is_in_pieces(memory: Reserved) -> None:
    """Pages stay small where the system has no free memory of their size in one piece, which it says when asked."""
    assert memory._block is not None and _COLLAPSE is not None
    first = -address_of(memory._block.array) % HUGE_PAGE
    for page in range(first, memory._block.array.nbytes - HUGE_PAGE + 1, HUGE_PAGE):
        memory._block.array[page] = memory._block.array[page]
        try:
            memory._block.memory.madvise(_COLLAPSE, page, HUGE_PAGE)
        except OSError:
            pytest.skip("this system has no memory for huge pages now")


@pytest.mark.parametrize("count", [0, 4096, HUGE_PAGE // 4, HUGE_PAGE, 2 * HUGE_PAGE + HUGE_PAGE // 2, WHOLE])
def test_pages_are_huge_where_half_of_them_is_filled(count: int) -> None:
    memory, wanted = filled(2, count)
    settle(memory, count)
    np.testing.assert_array_equal(memory.array, wanted)
    found = bytes_in_huge_pages(memory.array) if HUGE.exists() else 0
    assert found <= 4 * count or ALWAYS, "twice what is filled, in two parts"
    if not HUGE.exists() or int(HUGE.read_text()) != HUGE_PAGE or count < WHOLE:
        return
    if found < 2 * WHOLE - 2 * HUGE_PAGE:
        skip_where_memory_is_in_pieces(memory)
    assert found >= 2 * WHOLE - 2 * HUGE_PAGE


def test_pages_that_will_be_filled_are_huge_before_they_are() -> None:
    """Where more rows come than there are, and as many as there is room for. What is there stays."""
    keys = TensorInfo("keys", "float32", (3, 1 << 14, 64))
    counter = StateInfo(TensorInfo("past", "int64", (1,)), "following", "in place")
    states = States([counter, StateInfo(keys, "next", "in place", grows=1, counter="past")], b"")
    held, past = states.current[1], 5000
    held[:, :past] = wanted = np.random.default_rng(0).random((3, past, 64), np.float32)
    states.current[0][...] = past
    for rows in (-past, 0, 4000, (1 << 14) - past + 1):
        states.expect(0, rows)
        assert not bytes_in_huge_pages(held) or ALWAYS
    states.expect(0, 9000)
    found = bytes_in_huge_pages(held)
    np.testing.assert_array_equal(held[:, :past], wanted)
    assert not held[:, past:].any()
    states.current[0][...] = past + 9000
    states._advance()
    assert bytes_in_huge_pages(held) == found, "calls have nothing left to do"
    assert found % HUGE_PAGE == 0
    if HUGE.exists() and int(HUGE.read_text()) == HUGE_PAGE:
        if found < held.nbytes - 2 * HUGE_PAGE:
            skip_where_memory_is_in_pieces(states._memory[1]._reserved)
        assert found >= held.nbytes - 2 * HUGE_PAGE


def test_what_is_given_back_is_zeros_and_may_become_huge_again() -> None:
    memory, wanted = filled(1, WHOLE)
    settle(memory, WHOLE)
    memory.forget(4096, WHOLE)
    wanted[4096:] = 0
    np.testing.assert_array_equal(memory.array, wanted)
    memory.array[...] = wanted[...] = 7
    settle(memory, WHOLE)
    np.testing.assert_array_equal(memory.array, wanted)


def test_what_is_shared_stays_so() -> None:
    memory, wanted = filled(1, WHOLE)
    other = Reserved(WHOLE, "a test")
    other.copy_from(memory, 0, WHOLE, PageFile())
    for one in (memory, other):
        settle(one, WHOLE)
        np.testing.assert_array_equal(one.array, wanted)
    other.array[...] = 1
    np.testing.assert_array_equal(memory.array, wanted)


@pytest.mark.fresh_seeds(2)
def test_parts_that_lie_side_by_side_leave_each_other_alone(fresh_seed: int) -> None:
    """Whatever is written to one, given back, made huge, or shared with what lies elsewhere."""
    rng, size, count = np.random.default_rng(fresh_seed), 160 * 4096, 5
    ours, theirs = (Reserved.side_by_side(size, count, "a test") for _ in range(2))
    held = {memory: np.zeros(size, np.uint8) for memory in (*ours, *theirs)}
    for _ in range(40):
        number = int(rng.integers(count))
        one, other = (ours, theirs) if rng.random() < 0.5 else (theirs, ours)
        begin, end = sorted(rng.integers(0, size + 1, 2).tolist())
        match rng.choice(["write", "forget", "huge", "share"]):
            case "write":
                one[number].written(begin, end)
                one[number].array[begin:end] = held[one[number]][begin:end] = rng.integers(1, 256)
            case "forget":
                one[number].forget(begin, end)
                held[one[number]][-(-begin // 4096) * 4096 : end // 4096 * 4096] = 0
            case "huge":
                one[number].lie_in_huge_page(size, int(rng.integers(size)))
            case "share":
                one[number].written(0, size)
                one[number].copy_from(other[number], begin, end, PageFile())
                held[one[number]][begin:end] = held[other[number]][begin:end]
        assert all(np.array_equal(memory.array, wanted) for memory, wanted in held.items())


def test_small_states_fill_huge_pages_together() -> None:
    """Twelve of half a huge page, of which a call makes one page huge at a time."""
    keys = [TensorInfo(f"keys {n}", "float32", (2, 2048, 64)) for n in range(12)]
    counter = StateInfo(TensorInfo("past", "int64", (1,)), "following", "in place")
    grown = [StateInfo(info, "next", "in place", grows=1, counter="past") for info in keys]
    states = States([counter, *grown], b"")
    held, rng = states.current[1:], np.random.default_rng(0)
    for past in (512, 1024):
        for array in held:
            array[:, :past] = rng.random((2, past, 64), np.float32)
        wanted = [array.copy() for array in held]
        states.current[0][...] = past
        for _ in range(20):
            states._advance()
        found = bytes_in_huge_pages(np.frombuffer(states._memory[1]._reserved._block.memory, np.uint8))
        for array, before in zip(held, wanted, strict=True):
            np.testing.assert_array_equal(array, before)
        assert ALWAYS or (found == 0 if past == 512 else found <= 12 * held[0].nbytes)
    if HUGE.exists() and int(HUGE.read_text()) == HUGE_PAGE:
        if found < 5 * held[0].nbytes:
            skip_where_memory_is_in_pieces(states._memory[1]._reserved)
        assert found >= 5 * held[0].nbytes


def test_systems_that_refuse_it_are_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Block:
        def madvise(self, option: int, begin: int, size: int) -> None:
            asked.append(begin)
            raise OSError("no such advice")

    memory, wanted = filled(1, WHOLE)
    monkeypatch.setattr(memory._block, "memory", Block())
    assert settle(memory, WHOLE) == len(asked) == len(set(asked)) <= 3
    assert settle(memory, WHOLE) == 0
    np.testing.assert_array_equal(memory.array, wanted)


def test_states_ask_for_them_as_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that a counter may have filled another half of a page, and not for windows, whose rows come and go."""
    asked: list[tuple[int, int]] = []
    left = [0]

    def one_page(self: Reserved, whole: int, count: int) -> bool:
        asked.append((whole, count))
        left[0] -= 1
        return left[0] >= 0

    monkeypatch.setattr(Reserved, "lie_in_huge_page", one_page)
    keys = TensorInfo("keys", "float32", (3, 1 << 14, 64))
    state = MemoryOfState(StateInfo(keys, "next", "in place", grows=1, counter="past"))
    for counter in (1, 64, 4095, 4096, 4160, 8191, 8192, 100, 8200, 16384):
        state.settle(counter)
    assert asked == [(1 << 22, 256 * n) for n in (4096, 8192, 16384)]
    window = MemoryOfState(StateInfo(keys, "next", "in place", grows=1, counter="past", window=64))
    window.settle(16384)
    assert len(asked) == 3
    left[0], again = 2, MemoryOfState(StateInfo(keys, "next", "in place", grows=1, counter="past"))
    assert [again.settle(9000) for _ in range(4)] == [True, True, False, False] and len(asked) == 6


def test_a_call_waits_for_one_page_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of states and lanes; the calls behind it bring the others."""
    left = {}

    def settle(self: MemoryOfState, counter: int) -> bool:
        left[self] = left.get(self, 3) - 1
        return left[self] >= 0

    monkeypatch.setattr(MemoryOfState, "settle", settle)
    infos = []
    for lane in "ab":
        infos.append(StateInfo(TensorInfo(f"{lane}.past", "int64", (1,)), "f", "in place"))
        keys = (TensorInfo(f"{lane}.{name}", "float32", (1, 1024, 4)) for name in ("keys", "values"))
        infos += [StateInfo(info, "n", "in place", grows=1, counter=f"{lane}.past") for info in keys]
    states = States(infos, b"")
    states.current[0][...] = states.current[3][...] = 200
    for done in range(1, 14):
        states._advance()
        assert sum(3 - max(n, 0) for n in left.values()) == min(done, 12)
    assert all(n < 0 for n in left.values()) and len(left) == 4
    before = dict(left)
    states._advance()
    assert left == before, "nothing is asked of what was looked at"


def test_states_are_looked_at_again_where_they_lie_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other memory, and memory that was given back, may be filled as far as that which was looked at last."""
    asked: list[MemoryOfState] = []
    monkeypatch.setattr(MemoryOfState, "settle", lambda self, counter: asked.append(self))
    keys = StateInfo(TensorInfo("keys", "float32", (1, 1024, 4)), "next", "in place", grows=1, counter="past")
    states = States([StateInfo(TensorInfo("past", "int64", (1,)), "following", "in place"), keys], b"")
    memory = [states.memory_for([0, 1]) for _ in range(2)]
    for lane in (memory[0], memory[0], memory[1], memory[0]):
        if lane is not memory[0] or not asked:
            states.use([0, 1], lane)
        states.current[0][...] = 200
        states._advance()
    assert len(asked) == 2 and asked[0] is not asked[1]
    states.use([0, 1], None)
    for _ in range(2):
        states.current[0][...] = 200
        states._advance()
        states.reset()
    assert len(asked) == 4 and asked[2] is asked[3]
