"""Sequences as decoders that come and go, rows that have the bits that they have one by one, and guesses on compiled
models."""

from __future__ import annotations

import copy
import gc
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.llm.checkpoints import CONTEXT, ROWS, model_file, model_folder
from tests.llm.vocabularies import written_folder
from tilewright import llm
from tilewright.cost.attention import KEYS_OF_A_PIECE
from tilewright.frontends.decoders.source import KEYS_ALIKE, DecoderSource
from tilewright.llm.sequences import CompiledSequences, SequenceDecoder
from tilewright.llm.sequences.decoder import rows_alike
from tilewright.llm.speculation.drafts import DraftModel
from tilewright.llm.speculation.speculating import SpeculatingDecoder
from tilewright.runtime.errors import InputError, OptionError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@cache
def model(folder: Path, sequences: int | None) -> tilewright.Model:
    return tilewright.compile(DecoderSource(folder, sequences=sequences), cache=False, threads=1)


def decoder(folder: Path, **given: Any) -> SequenceDecoder:
    return SequenceDecoder(copy.copy(model(folder, 2)), **given)


def tokens(seed: int, count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, ROWS, count)]


def test_sequences_of_decoders_that_are_gone_are_closed(folder: Path) -> None:
    found = decoder(folder)
    for _ in range(20):
        found.fork().feed([1, 2])
        gc.collect(0)
    assert len(found._shared.sequences._open) <= 2


def test_threads_feed_different_ones(folder: Path) -> None:
    root = decoder(folder)
    wanted = [root.fork().feed(tokens(n, 9)) for n in range(4)]
    wrong: list[int] = []

    def run(n: int) -> None:
        for _ in range(20):
            if not np.array_equal(root.fork().feed(tokens(n, 9)), wanted[n]):
                wrong.append(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# rows


def test_rows_have_the_bits_that_they_have_one_by_one(folder: Path) -> None:
    """Where `alike` says so, at lengths near boundaries and elsewhere; and often these are several."""
    one, many = decoder(folder), decoder(folder)
    text, numbers = tokens(1, CONTEXT), []
    for length in sorted({*range(0, CONTEXT - 1, 15), *range(56, 66), *range(122, 130), *range(250, CONTEXT - 1)}):
        for found in (one, many):
            if length > found.length:
                found.feed(text[found.length : length])
        count = many.alike(length)
        numbers.append(count)
        rows = many.feed_rows(text[length : length + count])
        for n in range(count):
            np.testing.assert_array_equal(rows[n], one.feed([text[length + n]]), err_msg=f"{length} {count} {n}")
        many.rewind(length + 1)
        np.testing.assert_array_equal(many.fork().feed([5]), _at(one, length + 1).feed([5]))
        one.rewind(length + 1)
    assert max(numbers) >= 3 and set(numbers) != {1}


def _at(found: SequenceDecoder, length: int) -> SequenceDecoder:
    fork = found.fork()
    fork.rewind(length)
    return fork


def test_the_boundary_is_that_of_the_kernels() -> None:
    assert KEYS_ALIKE == KEYS_OF_A_PIECE


def test_windows_end_what_is_alike(folder: Path) -> None:
    found = decoder(folder, window=20)
    assert found.alike(20) == found.alike(200) == 1 and 1 <= found.alike(18) <= 2 < found.alike(0)


def test_few_tokens_have_rows(folder: Path) -> None:
    found = decoder(folder)
    with pytest.raises(InputError, match="9 tokens were given"):
        found.feed_rows(tokens(1, 9))
    with pytest.raises(InputError, match="there is no token"):
        found.feed_rows([ROWS])
    assert found.length == 0
    assert rows_alike(CompiledSequences(copy.copy(model(folder, 2))), CONTEXT - 1) == 1


# guesses


@pytest.mark.parametrize("how", [{}, {"temperature": 0.8, "seed": 3}])
def test_guesses_change_no_text(tmp_path: Path, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    path = model_file(tmp_path / "model.gguf")
    plain = llm.load(path, threads=1, sequences=1)
    for draft in ("lookup", path):
        found = llm.load(path, threads=1, draft=draft)
        for prompt in ("the state of the state of the", "Hello"):
            expected = plain.answer(prompt, max_tokens=60, ends=False, log_probabilities=1, **how)
            answer = found.answer(prompt, max_tokens=60, ends=False, log_probabilities=1, **how)
            assert answer.drawn == expected.drawn
        assert found.drafted is not None and found.drafted.plain + found.drafted.calls + found.drafted.accepted > 50
        assert found.drafted.accepted > 0 or draft == "lookup"
    assert plain.drafted is None


def test_drafts_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    path, folder = model_file(tmp_path / "model.gguf"), model_folder(tmp_path / "folder")
    written_folder(folder, "sentencepiece")
    with pytest.raises(OptionError, match="has another vocabulary"):
        llm.load(path, draft=folder)
    compiled = tmp_path / "model.tw"
    tilewright.compile(path).save(compiled)
    with pytest.raises(OptionError, match="draft= needs a GGUF file"):
        llm.load(compiled, tokenizer=path, draft="lookup")


def test_a_model_for_several_serves_them_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    path = model_file(tmp_path / "model.gguf")
    found, plain = llm.load(path, sequences=3, threads=1), llm.load(path, threads=1)
    assert found.generate("Once", max_tokens=20) == plain.generate("Once", max_tokens=20)
    assert found.sequences(5).lanes == 3 and found.sequences(5).slots == 5
    assert isinstance(found._root, SequenceDecoder) and not isinstance(found._root, SpeculatingDecoder)
    assert DraftModel(found._root.fork(), 700).propose([1, 2], 2)
