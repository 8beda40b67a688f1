"""Caches of layers with a window keep the window: memory before it is given back, and all else is as it was."""

from __future__ import annotations

import copy
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.frontends.decoders.checkpoints import VOCABULARY, cases, write_folder
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.llm.decoder import CompiledDecoder, rewound
from tilewright.llm.sequences import CompiledSequences
from tilewright.runtime import Model
from tilewright.runtime.errors import ArtifactError, ExecutionError, InputError
from tilewright.runtime.kept import state_memory
from tilewright.runtime.kept.state_memory import SLACK

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
CAPACITY, LENGTH = 4096, 2600
TOKENS = np.random.default_rng(5).integers(0, VOCABULARY, LENGTH)


@pytest.fixture(scope="module", params=["mistral", "gemma3"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """All layers of one have a window of 4, and of the other all but the last."""
    case, folder = cases()[request.param], tmp_path_factory.mktemp("model")
    write_folder(folder, case["config"], case["tensors"])
    return tilewright.compile(DecoderSource(folder, capacity=CAPACITY), cache=False, threads=1)


@pytest.fixture
def decoder(loaded: Model) -> Iterator[CompiledDecoder]:
    loaded.reset()
    yield CompiledDecoder(loaded, piece=200)
    loaded.reset()


def kept(model: Model) -> dict[str, int]:
    """The first rows that are kept."""
    states = model._states
    return {state.info.name: states.first(n) for n, state in enumerate(model.states)}


def whole(loaded: Model, monkeypatch: pytest.MonkeyPatch, tokens: np.ndarray) -> np.ndarray:
    """Logits where nothing is given back."""
    other = copy.copy(loaded)
    other.reset()
    with monkeypatch.context() as patch:
        patch.setattr(state_memory, "PIECE", 1 << 40)
        return CompiledDecoder(other, piece=200).feed(tokens)


def test_memory_before_the_window_is_given_back(
    decoder: CompiledDecoder, loaded: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = {state.info.name: state.window for state in loaded.states if state.counter}
    assert {3} <= set(windows.values()) <= {3, -1}
    np.testing.assert_allclose(decoder.feed(TOKENS), whole(loaded, monkeypatch, TOKENS), **CLOSE)
    for name, first in kept(loaded).items():
        if windows.get(name, -1) < 0:
            assert first == 0
            continue
        assert LENGTH - 1000 < first <= LENGTH - 3 - SLACK


@pytest.mark.without_zones
def test_pages_are_those_of_the_window(loaded: Model) -> None:
    other = copy.copy(loaded)
    CompiledDecoder(other, piece=200).feed(TOKENS)
    for number, state in enumerate(other.states):
        if state.window >= 0:
            array, first = other._states.current[number], other._states.first(number)
            row = array.strides[2]
            for head in array[0]:
                assert not head[: first - 2 * mmap.PAGESIZE // row].any()
                assert head[first:LENGTH].any(axis=-1).all()


def test_token_by_token(decoder: CompiledDecoder, loaded: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder.feed(TOKENS[:1200])
    for n in range(1200, 1240):
        found = decoder.feed(TOKENS[n : n + 1])
    np.testing.assert_allclose(found, whole(loaded, monkeypatch, TOKENS[:1240]), **CLOSE)


def test_going_back(decoder: CompiledDecoder, loaded: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder.feed(TOKENS)
    decoder.rewind(LENGTH - SLACK)
    np.testing.assert_allclose(decoder.feed(TOKENS[LENGTH - SLACK :]), whole(loaded, monkeypatch, TOKENS), **CLOSE)
    with pytest.raises(InputError, match=r"cannot go back to 100 positions: .* rows before \d+, which are not kept"):
        decoder.rewind(100)
    assert decoder.length == LENGTH
    assert rewound(decoder, 100) == 0
    np.testing.assert_allclose(decoder.feed(TOKENS[:50]), whole(loaded, monkeypatch, TOKENS[:50]), **CLOSE)
    assert not any(kept(loaded).values())


def test_forks_and_files(
    decoder: CompiledDecoder, loaded: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = LENGTH // 2
    decoder.feed(TOKENS[:half])
    wanted = whole(loaded, monkeypatch, TOKENS)
    other = decoder.fork()
    assert kept(other.model) == kept(loaded)
    np.testing.assert_allclose(other.feed(TOKENS[half:]), wanted, **CLOSE)
    loaded.save_states(tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as file:
        rows = {name: file[name].shape for name in file.files}
    assert any(len(shape) == 4 and shape[2] < half - 500 for shape in rows.values()), rows
    loaded.reset()
    loaded.load_states(tmp_path / "s.npz")
    again = CompiledDecoder(loaded)
    assert again.length == half
    np.testing.assert_allclose(again.feed(TOKENS[half:]), wanted, **CLOSE)


def test_memory_apart(decoder: CompiledDecoder, loaded: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """As several sequences have it."""
    names = [state.info.name for state in loaded.states]
    one, two = (loaded.new_state_memory(names) for _ in range(2))
    loaded.use_state_memory(names, one)
    try:
        CompiledDecoder(loaded, piece=200).feed(TOKENS[:1500])
        two.copy_from(one)
        with pytest.raises(InputError, match="cannot go back to 10 positions"):
            one.set(names.index("past"), 10)
        loaded.use_state_memory(names, two)
        found = CompiledDecoder(loaded, piece=200).feed(TOKENS[1500:])
        np.testing.assert_allclose(found, whole(loaded, monkeypatch, TOKENS), **CLOSE)
    finally:
        loaded.use_state_memory(names, None)


def test_the_report_counts_what_is_moved(loaded: Model) -> None:
    report = loaded.report()
    told = {state.state: state.grows for state in report.states}
    windows = {state.info.name for state in loaded.states if state.window >= 0}
    assert {name for name, grows in told.items() if grows.endswith(", the last 3 rows are read")} == windows
    puts = [call for call in report.calls if call.kernel.endswith("_put")]
    assert puts and all(call.bytes == puts[0].bytes and call.bytes.endswith("*s") for call in puts), puts


def test_states_are_told_in_their_places(decoder: CompiledDecoder, loaded: Model) -> None:
    decoder.feed(TOKENS)
    name = next(state.info.name for state in loaded.states if state.window >= 0)
    found, first = loaded.state(name), kept(loaded)[name]
    assert found.shape == (1, found.shape[1], CAPACITY, found.shape[3])
    assert not found[:, :, :first].any() and not found[:, :, LENGTH:].any() and found[:, :, first:LENGTH].any()


def test_a_call_of_several_that_fails_far_on_leaves_none_half_fed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be taken back is; where a window has moved on, the sequence is empty, and all go on."""
    case = cases()["mistral"]
    write_folder(tmp_path, case["config"], case["tensors"])
    model = tilewright.compile(DecoderSource(tmp_path, capacity=CAPACITY, sequences=2), cache=False, threads=1)
    found = CompiledSequences(model, piece=200)
    handles = [found.open() for _ in range(3)]
    found.feed([(handle, TOKENS[: 5 + n]) for n, handle in enumerate(handles)])
    (wanted,) = found.feed([(found.open(like=handles[1]), [3])])
    for handle in handles:
        monkeypatch.setattr(found._open[handle], "vocabulary", 1 << 40)
    with pytest.raises(ExecutionError, match="out of range"):
        found.feed([(handles[0], [*TOKENS[:1500], 10**6]), (handles[1], [2])])
    assert [found.length(handle) for handle in handles] == [0, 6, 7]
    np.testing.assert_array_equal(found.feed([(handles[1], [3])])[0], wanted)
    fresh = found.open()
    again = found.feed([(handles[0], TOKENS[:30]), (fresh, TOKENS[:30])])
    np.testing.assert_array_equal(*again)


def test_files_whose_counter_does_not_fit_change_nothing(decoder: CompiledDecoder, tmp_path: Path) -> None:
    """Rows that calls would read must be in the file."""
    decoder.feed(TOKENS[:LENGTH])
    decoder.model.save_states(tmp_path / "good.npz")
    with np.load(tmp_path / "good.npz") as file:
        good = dict(file)
    decoder.rewind(LENGTH - 7)
    rows = good["state keys.0"]
    for name, value in (
        ("past", np.array(10**18)), ("past", np.array(CAPACITY + 1)), ("past", np.array(-7)), ("past", np.array(5)),
        ("keys.0", rows[:, :, :2]), ("keys.0", rows[:, :, :0]),
    ):  # fmt: skip
        np.savez(tmp_path / "bad.npz", **{**good, f"state {name}": value})
        with pytest.raises(ArtifactError, match="rows there, and its counter 'past' says"):
            decoder.model.load_states(tmp_path / "bad.npz")
        assert int(decoder.model.state("past")) == LENGTH - 7
    wanted = decoder.feed(TOKENS[LENGTH - 7 : LENGTH])
    decoder.model.load_states(tmp_path / "good.npz")
    decoder.rewind(LENGTH - 7)
    np.testing.assert_array_equal(decoder.feed(TOKENS[LENGTH - 7 : LENGTH]), wanted)
