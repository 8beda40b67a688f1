"""What states fill comes to lie together in memory, in pieces, and nothing that is held changes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from tilewright.runtime.arena import address_of
from tilewright.runtime.artifact import StateInfo, TensorInfo
from tilewright.runtime.kept import contiguous
from tilewright.runtime.kept.contiguous import HUGE_PAGE, PIECES, UNIT, are_there
from tilewright.runtime.kept.reserved import Reserved
from tilewright.runtime.kept.shared_pages import PageFile
from tilewright.runtime.kept.state_memory import AHEAD, MemoryOfState
from tilewright.runtime.states import MOVED_BY_A_CALL, States

PAGE = os.sysconf("SC_PAGE_SIZE")
needs_pieces = pytest.mark.skipif(not are_there(), reason="this system has no huge pages to take pieces of")


def filled(parts: int, whole: int, count: int) -> tuple[Reserved, np.ndarray]:
    """Memory whose parts are filled by so many bytes each, and what these hold."""
    memory = Reserved(parts * whole, "a test")
    memory.array.reshape(parts, whole)[:, :count] = np.random.default_rng(1).integers(1, 256, (parts, count), np.uint8)
    return memory, memory.array.reshape(parts, whole)[:, :count].copy()


def settle(memory: Reserved, parts: int, whole: int, count: int) -> list[int]:
    """Bytes of all pieces, until all lies in some."""
    found = []
    for part in range(parts):
        begin = part * whole
        found += list(iter(lambda at=begin: memory.lie_together(at, at + count, whole, count), 0))  # type: ignore[misc]
    return found


def pages_of(array: np.ndarray) -> list[int]:
    """The numbers of an array's pages in the memory of the machine; 0 for those that are not there or not told."""
    first, last = address_of(array) // PAGE, -(-(address_of(array) + array.nbytes) // PAGE)
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(8 * first)
        found = struct.unpack(f"{last - first}Q", file.read(8 * (last - first)))
    return [entry & (1 << 55) - 1 if entry >> 63 else 0 for entry in found]


@needs_pieces
@pytest.mark.parametrize("whole", [1 << 19, 1000 * 256, 5 * HUGE_PAGE // 2, 100_001])
@pytest.mark.parametrize("share", [0.001, 0.3, 1])
def test_what_is_filled_stays_and_lies_in_pieces(whole: int, share: float) -> None:
    """Parts need not begin at pages: a piece may hold the end of one and the begin of another."""
    parts, count = 5, max(int(whole * share), 1)
    memory, wanted = filled(parts, whole, count)
    sizes = settle(memory, parts, whole, count)
    np.testing.assert_array_equal(memory.array.reshape(parts, whole)[:, :count], wanted)
    assert sizes and set(sizes) <= {UNIT << k for k in range(7)}
    pieces = sum(size for size in sizes if size < HUGE_PAGE)
    assert pieces <= parts * (count + 2 * UNIT) and HUGE_PAGE * sizes.count(HUGE_PAGE) <= 2 * parts * count
    assert not settle(memory, parts, whole, count), "all of it lies in pieces"
    memory.array[...] = 9  # pages are there, and can be written to
    assert (memory.array == 9).all()


@needs_pieces
def test_pages_of_a_piece_are_neighbours_in_the_memory_of_the_machine() -> None:
    memory, _ = filled(4, 1 << 19, 1 << 17)
    settle(memory, 4, 1 << 19, 1 << 17)
    units = [memory.array[(-address_of(memory.array)) % UNIT + k * UNIT :][:UNIT] for k in range(3)]
    pages = [pages_of(unit) for unit in units]
    if not all(map(all, pages)):
        pytest.skip("this process is not told where its pages are")
    if any(b - a != 1 for a, b in zip(pages[0], pages[0][1:], strict=False)):
        pytest.skip("this system gave no huge page")
    for found in pages:
        assert found == list(range(found[0], found[0] + UNIT // PAGE))


@needs_pieces
def test_what_fills_half_of_a_huge_page_lies_in_one() -> None:
    """Also where it lies in smaller pieces already."""
    parts, whole = 16, 1 << 19
    memory, wanted = filled(parts, whole, whole)
    assert HUGE_PAGE not in settle(memory, parts, whole, whole // 2 - 4096)
    assert set(settle(memory, parts, whole, whole // 2)) <= {HUGE_PAGE, UNIT}
    assert memory._laid.count(b"\2") >= 3 * HUGE_PAGE // UNIT
    count = whole // 2 - 4096
    np.testing.assert_array_equal(memory.array.reshape(parts, whole)[:, :count], wanted[:, :count])
    assert not settle(memory, parts, whole, whole)


@needs_pieces
def test_what_is_given_back_is_zeros_and_may_lie_together_again() -> None:
    whole = 1 << 20
    memory, wanted = filled(1, whole, whole)
    settle(memory, 1, whole, whole)
    memory.forget(4096, whole)
    np.testing.assert_array_equal(memory.array[:4096], wanted[0, :4096])
    assert not memory.array[4096:].any()
    memory.array[...] = 7
    counted = PIECES._moved
    for _ in range(3):
        assert settle(memory, 1, whole, whole)
        assert (memory.array == 7).all()
        assert PIECES._moved <= counted + 1, "mappings that take the place of others"
        memory.forget(0, whole)
        memory.array[...] = 7
    del memory
    assert PIECES._moved < counted


@needs_pieces
def test_what_is_shared_stays_so() -> None:
    whole = 1 << 20
    memory, wanted = filled(1, whole, whole)
    settle(memory, 1, whole, whole)
    other = Reserved(whole, "a test")
    other.copy_from(memory, 0, whole, PageFile())
    for one in (memory, other):
        settle(one, 1, whole, whole)
        np.testing.assert_array_equal(one.array, wanted[0])
    other.array[...] = 1
    np.testing.assert_array_equal(memory.array, wanted[0])


@needs_pieces
@pytest.mark.parametrize("refused", ["mremap", "mmap", "count"])
def test_systems_that_refuse_it_are_not_asked_twice(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    native = contiguous._native()

    class Refusing:
        def __getattr__(self, name: str) -> object:
            return getattr(native, name)

        def mremap(self, source: int, size: int, count: int, flags: int, address: int) -> int:
            asked.append("mremap")
            native.munmap(address, size)  # as Linux may have done before it fails
            return (1 << 64) - 1

    whole = 1 << 19
    memory, wanted = filled(1, whole, whole)
    if refused == "count":
        monkeypatch.setattr(PIECES, "_moved", contiguous.MOST)
    elif refused == "mmap":
        monkeypatch.setattr(contiguous, "_huge_page", lambda: asked.append("mmap") or (0, 0))
        monkeypatch.setattr(PIECES, "_left", [])
    else:
        monkeypatch.setattr(contiguous, "_native", Refusing)
    for _ in range(2 * whole // UNIT):
        assert memory.lie_together(0, whole, whole, whole) == 0
    np.testing.assert_array_equal(memory.array, wanted[0])
    assert len(asked) <= whole // UNIT


def one_state(name: str, counter: str, window: int = -1) -> StateInfo:
    keys = TensorInfo(name, "float32", (3, 1 << 14, 64))
    return StateInfo(keys, "next", "in place", grows=1, counter=counter, window=window)


def test_states_ask_for_pieces_a_little_ahead_of_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for windows, whose rows come and go."""
    asked: list[tuple[int, int, int]] = []

    def none(self: Reserved, begin: int, end: int, whole: int, count: int) -> int:
        asked.append((begin >> 22, end - begin, count))
        return 0

    monkeypatch.setattr(Reserved, "lie_together", none)
    state = MemoryOfState(one_state("keys", "past"))
    assert state.settled == 0
    for counter in (1, 64, 97):
        state.settle(counter)
    assert asked == [(part, UNIT + 256, 256) for part in range(3)] and state.settled == (UNIT + 256 - AHEAD) // 256
    asked.clear()
    state.settle(1000)
    assert [end for _, end, _ in asked] == [1250 * 256] * 3
    state.settle(1200)
    state.settle(10)
    state.settle(1 << 14)
    assert len(asked) == 6 and state.settled > 1 << 14
    window = MemoryOfState(one_state("keys", "past", window=64))
    assert window.settle(1 << 14) == 0 and len(asked) == 6


@needs_pieces
def test_memory_that_is_expected_to_be_filled_lies_together_before_it_is() -> None:
    """Whatever is filled already stays; few rows are not worth it, and more than there is room for are for the call to
    refuse."""
    infos = [StateInfo(TensorInfo("past", "int64", (1,)), "f", "in place"), one_state("keys", "past")]
    states = States(infos, b"")
    keys = states.current[1]
    keys[:, :300] = wanted = np.random.default_rng(0).random((3, 300, 64), np.float32)
    states.current[0][...] = 300
    for rows, pieces in ((5, False), (1 << 14, False), (700, True), (700, False)):
        before = PIECES._moved
        states.expect(0, rows)
        assert (PIECES._moved > before) == pieces
    np.testing.assert_array_equal(keys[:, :300], wanted)
    keys[:, 300:1000] = 1
    states.current[0][...] = 1000
    before = PIECES._moved
    np.testing.assert_array_equal(keys[:, :300], wanted)
    for row in range(1000, 1100):
        states.current[0][...] = row
        states._advance()
    assert PIECES._moved > before, "what comes behind them"
    np.testing.assert_array_equal(keys[:, :300], wanted)
    assert (keys[:, 300:1000] == 1).all()


@needs_pieces
def test_a_call_moves_a_little_and_those_behind_it_the_others() -> None:
    infos = []
    for lane in "ab":
        infos.append(StateInfo(TensorInfo(f"{lane}.past", "int64", (1,)), "f", "in place"))
        infos += [one_state(f"{lane}.{name}", f"{lane}.past") for name in ("keys", "values")]
    states = States(infos, b"")
    rng = np.random.default_rng(0)
    for number in (1, 2, 4, 5):
        states.current[number][:, :9000] = rng.random((3, 9000, 64), np.float32)
    wanted = [states.current[number].copy() for number in (1, 2, 4, 5)]
    states.current[0][...] = states.current[3][...] = 9000
    held = 12 * 9000 * 256
    moved = []
    while min(states._settled.values()) < 9000:
        before = PIECES._moved
        states._advance()
        moved.append(PIECES._moved - before)
        assert len(moved) < 2 * held // MOVED_BY_A_CALL
    assert max(moved) <= MOVED_BY_A_CALL // UNIT and len(moved) >= held // (4 * MOVED_BY_A_CALL)
    for number, array in zip((1, 2, 4, 5), wanted, strict=True):
        np.testing.assert_array_equal(states.current[number][:, :9000], array[:, :9000])


def test_states_are_looked_at_again_where_they_lie_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other memory, and memory that was given back, may be filled as far as that which was looked at last."""
    asked: list[MemoryOfState] = []
    monkeypatch.setattr(MemoryOfState, "settle", lambda self, counter: asked.append(self) or 0)
    monkeypatch.setattr(MemoryOfState, "settled", 1024)
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
