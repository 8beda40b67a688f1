"""Sequences that go through a model together: to the bit what each gives alone, and what forks of a decoder give."""

from __future__ import annotations

import copy
import gc
import mmap
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.frontends.decoders.checkpoints import cases, write_folder
from tests.llm.checkpoints import CONTEXT, ROWS, model_folder
from tilewright.cost.gemm.register_tile import MOST_FEW
from tilewright.frontends.decoders.source import MOST_LANES, DecoderSource
from tilewright.ir.diag import UnsupportedError
from tilewright.llm.decoder import CompiledDecoder
from tilewright.llm.sequences import CompiledSequences, ForkedSequences, SequenceError
from tilewright.llm.sequences.compiled import FEW
from tilewright.runtime.errors import ExecutionError, InputError, OptionError

LANES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@cache
def model(folder: Path, threads: int, **wanted: Any) -> tilewright.Model:
    return tilewright.compile(DecoderSource(folder, **wanted), cache=False, threads=threads)


def together(folder: Path, threads: int = 1, piece: int = 512, **wanted: Any) -> CompiledSequences:
    return CompiledSequences(model(folder, threads, **{"sequences": LANES, **wanted}), piece=piece)


def tokens(seed: int, count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, ROWS, count)]


@pytest.mark.sweep(1)
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("threads", [1, 2])
def test_any_order_of_calls_gives_what_each_gives_alone(folder: Path, fresh_seed: int, threads: int) -> None:
    """To the bit, and what forks of a decoder for one give, whose kernels are others."""
    rng = random.Random(fresh_seed)
    found, alone = together(folder, threads, piece=24), together(folder, 1, piece=24)
    forks = ForkedSequences(CompiledDecoder(copy.copy(model(folder, 1)), piece=24))
    own: dict[int, int] = {}
    twins: dict[int, int] = {}
    for _ in range(60):
        what = rng.choice(("open", "like", "close", "rewind", "feed", "feed", "feed", "feed"))
        if what in ("open", "like") and len(own) < 2 * LANES:
            like = rng.choice([*own]) if what == "like" and own else None
            handle = found.open(like)
            twins[handle] = alone.open(None if like is None else twins[like])
            own[handle] = forks.open(None if like is None else own[like])
        elif what == "close" and own:
            handle = rng.choice([*own])
            found.close(handle)
            alone.close(twins[handle])
            forks.close(own.pop(handle))
        elif what == "rewind" and own:
            handle = rng.choice([*own])
            length = rng.randint(0, found.length(handle))
            found.rewind(handle, length)
            alone.rewind(twins[handle], length)
            forks.rewind(own[handle], length)
        elif what == "feed":
            parts = []
            for handle in rng.sample([*own], rng.randint(0, len(own))):
                room = CONTEXT - found.length(handle)
                if room:
                    count = min(rng.choice((1, 1, 1, 3, 9, 30)), room)
                    parts.append((handle, [rng.randrange(ROWS) for _ in range(count)]))
            given = found.feed(parts)
            near = forks.feed([(own[handle], part) for handle, part in parts])
            for part, one, other in zip(parts, given, near, strict=True):
                np.testing.assert_array_equal(one, alone.feed([(twins[part[0]], part[1])])[0])
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        assert {handle: found.length(handle) for handle in own} == {h: forks.length(f) for h, f in own.items()}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8", "int4"])
def test_who_else_is_fed_changes_no_bit(folder: Path, weights: str) -> None:
    """One to eight rows of all sequences together, and pieces of prompts beside them."""
    found = together(folder, sequences=MOST_LANES, weights=weights)
    alone = found.open()
    wanted = [found.feed([(alone, part)])[0] for part in (tokens(0, 20), [5], [6, 7], [8])]
    for others in ([], [1], [1] * 7, [1, 2, 3], [30], [1, 40, 8, 9]):
        handles = [found.open() for _ in range(len(others) + 1)]
        one = handles[0]
        np.testing.assert_array_equal(found.feed([(one, tokens(0, 20))])[0], wanted[0])
        for part, logits in zip(([5], [6, 7], [8]), wanted[1:], strict=True):
            beside = [(handle, tokens(k, n)) for k, (handle, n) in enumerate(zip(handles[1:], others, strict=True))]
            place = len(beside) // 2
            results = found.feed([*beside[:place], (one, part), *beside[place:]])
            np.testing.assert_array_equal(results[place], logits)
        for handle in handles:
            found.close(handle)
    found.close(alone)


def test_few_rows_are_those_that_products_have_kernels_for() -> None:
    assert FEW == MOST_FEW >= MOST_LANES


def calls_of(found: CompiledSequences, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The numbers of rows of each sequence in calls of the model from now on."""
    calls: list[list[int]] = []
    run = found._call

    def counted(pieces: Any) -> Any:
        calls.append([len(piece.tokens) for piece in pieces])
        return run(pieces)

    monkeypatch.setattr(found, "_call", counted)
    return calls


def test_what_goes_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = together(folder, piece=20)
    calls = calls_of(found, monkeypatch)
    one, two, three, four = (found.open() for _ in range(4))
    found.feed([(one, [1]), (two, [2]), (three, [3]), (four, [4])])
    assert calls == [[1, 1, 1], [1]]
    calls.clear()
    found.feed([(one, tokens(1, 50)), (two, [1]), (three, tokens(2, 10)), (four, tokens(3, 10))])
    assert calls == [[20], [20], [10, 10], [1], [10]]
    calls.clear()
    found.feed([(one, [1] * 5), (two, [1] * 4), (three, [1] * 3)])
    assert calls == [[5, 3], [4]]


def test_nothing_is_copied(folder: Path) -> None:
    """Neither where lanes go from one sequence to another, nor in a step."""
    found = together(folder)
    handles = [found.open() for _ in range(2 * LANES)]
    held = [array for handle in handles for array in found._open[handle].memory.arrays[1:]]
    places = [array.ctypes.data for array in held]
    for k in range(4):
        found.feed([(handle, [k]) for handle in handles[k % 2 :]])
    now = [array for handle in handles for array in found._open[handle].memory.arrays[1:]]
    assert [array.ctypes.data for array in now] == places
    assert all(state.way == "in place" for state in found.model.states if state.counter)


def test_a_full_sequence_fails_alone(folder: Path) -> None:
    found = together(folder)
    one, other = found.open(), found.open()
    wanted = found.feed([(one, tokens(1, CONTEXT)), (other, tokens(2, 3))])
    with pytest.raises(
        SequenceError, match=f"sequence {one}: 1 tokens behind {CONTEXT} are more than the context"
    ) as error:
        found.feed([(other, [7]), (one, [1])])
    assert error.value.handle == one
    assert (found.length(one), found.length(other)) == (CONTEXT, 3)
    third = found.open()
    np.testing.assert_array_equal(found.feed([(third, tokens(2, 3))])[0], wanted[1])
    (found_now,) = found.feed([(other, [7])])
    np.testing.assert_array_equal(found.feed([(third, [7])])[0], found_now)


def test_a_call_that_fails_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that does not exist is found by the embedding, in the second of two calls of the model."""
    found = together(folder, piece=16)
    handles = [found.open() for _ in range(LANES + 1)]
    found.feed([(handle, tokens(handle, 5)) for handle in handles])
    again = found.open(like=handles[0])
    (wanted,) = found.feed([(again, [3])])
    monkeypatch.setattr(found, "vocabulary", 1 << 40)
    for handle in handles:
        monkeypatch.setattr(found._open[handle], "vocabulary", 1 << 40)
    with pytest.raises(ExecutionError, match="out of range"):
        found.feed([(handles[1], tokens(7, 30)), (handles[2], [10**6])])
    assert [found.length(handle) for handle in handles] == [5] * len(handles)
    np.testing.assert_array_equal(found.feed([(handles[0], [3])])[0], wanted)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.without_zones
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no count of pages")
def test_memory_is_given_back(folder: Path) -> None:
    """Of a capacity for which each cache would take 64 MB."""
    found = together(folder, capacity=1 << 20)
    one = found.open()
    found.feed([(one, [1, 2, 3])])
    other = found.open(like=one)
    for array in found._open[other].memory.arrays[1:]:
        array[...] = 1.0
    del array
    full = _resident()
    found.close(other)
    gc.collect()
    assert full - _resident() > 3 * (1 << 26)
    third = found.open(like=one)
    for array in found._open[third].memory.arrays[1:]:
        array[:, :, 3:] = 1.0
    full = _resident()
    found.trim()
    assert full - _resident() > 3 * (1 << 26)
    np.testing.assert_array_equal(*found.feed([(one, [4]), (third, [4])]))


def test_models_for_one_sequence_are_refused(folder: Path) -> None:
    with pytest.raises(OptionError, match=r"is not for several sequences: its inputs are ids(.*\n)*.*sequences=8"):
        CompiledSequences(model(folder, 1))
    every = tilewright.compile(DecoderSource(folder, sequences=2, logits="all"), cache=False)
    with pytest.raises(OptionError, match=r"is not for several sequences: its inputs are sequence0\.ids"):
        CompiledSequences(every)
    with pytest.raises(OptionError, match="piece=0 is not allowed"):
        together(folder, piece=0)


def test_models_that_keep_sums_are_refused(tmp_path: Path) -> None:
    case = cases()["mamba"]
    write_folder(tmp_path, case["config"], case["tensors"])
    summing = tilewright.compile(DecoderSource(tmp_path, sequences=2, capacity=16), cache=False)
    with pytest.raises(UnsupportedError, match=r"keeps more of a sequence than rows of positions(.*\n)*.*forks"):
        CompiledSequences(summing)


def test_slots_and_numbers(folder: Path) -> None:
    found = CompiledSequences(model(folder, 1, sequences=LANES), slots=2)
    assert (found.lanes, found.slots, found.context, found.vocabulary) == (LANES, 2, CONTEXT, ROWS)
    one, other = found.open(), found.open()
    with pytest.raises(InputError, match="all 2 sequences are open"):
        found.open(like=one)
    found.close(one)
    with pytest.raises(SequenceError, match=f"sequence {one}: it is not open"):
        found.feed([(one, [1])])
    assert found.open() not in (one, other)
    with pytest.raises(SequenceError, match="in the call twice"):
        found.feed([(other, [1]), (other, [1])])
    with pytest.raises(SequenceError, match=f"sequence {other}: cannot rewind to 1: the sequence has 0 positions"):
        found.rewind(other, 1)


def test_memory_is_told_how_long_prompts_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is left of a prompt before its first piece, of the lane that it goes through."""
    found, told = together(folder, piece=24), []
    monkeypatch.setattr(tilewright.Model, "expect_rows", lambda self, counter, rows: told.append((counter, rows)))
    long, short, one = (found.open() for _ in range(3))
    found.feed([(long, tokens(0, 30)), (short, tokens(1, 20)), (one, tokens(2, 1))])
    names = [lane[0] for lane in found._lanes]
    assert [rows for _, rows in told if rows > 6] == [30, 20]
    assert {name for name, _ in told} <= set(names) and len({name for name, rows in told if rows > 6}) == 2
    told.clear()
    found.feed([(one, tokens(3, 1))])
    assert not told, "single tokens fill memory as they come"
