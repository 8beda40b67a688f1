"""A model for several sequences answers one after the other, too, as a model for one does."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.llm.checkpoints import CONTEXT, ROWS, model_folder
from tilewright.cli.language_models import serve
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.ir.diag import UnsupportedError
from tilewright.llm import load
from tilewright.llm.decoder import CompiledDecoder, Decoder
from tilewright.llm.model import LanguageModel
from tilewright.llm.sequences import CompiledSequences, ForkedSequences, SequenceDecoder
from tilewright.runtime.errors import InputError, OptionError

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, ROWS, 40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def models(folder: Path) -> tuple[tilewright.Model, tilewright.Model]:
    one, several = (
        tilewright.compile(DecoderSource(folder, sequences=n), cache=False, threads=1) for n in (None, 2)
    )
    return one, several


Models = tuple[tilewright.Model, tilewright.Model]


def test_it_is_a_decoder(models: Models) -> None:
    plain, found = CompiledDecoder(models[0]), SequenceDecoder(models[1])
    decoders: list[Decoder] = [plain, found]
    for decoder in decoders:
        decoder.rewind(0)
    assert (found.vocabulary, found.context) == (ROWS, CONTEXT)
    for begin, end in ((0, 12), (12, 13), (13, 15)):
        np.testing.assert_allclose(*(decoder.feed(TOKENS[begin:end]) for decoder in decoders), **CLOSE)
    forks = [decoder.fork() for decoder in decoders]
    np.testing.assert_allclose(*(fork.feed([3]) for fork in forks), **CLOSE)
    for decoder in decoders:
        decoder.rewind(13)
    np.testing.assert_allclose(*(decoder.feed([7]) for decoder in decoders), **CLOSE)
    assert [decoder.length for decoder in (*decoders, *forks)] == [14, 14, 16, 16]


def test_errors_are_those_of_a_decoder(models: Models) -> None:
    found = SequenceDecoder(models[1])
    with pytest.raises(InputError, match=r"^there is no token 704"):
        found.feed([ROWS])
    with pytest.raises(InputError, match=r"^257 tokens behind 0 are more than the context"):
        found.feed([1] * (CONTEXT + 1))
    with pytest.raises(InputError, match=r"^cannot rewind to 1: the sequence has 0 positions"):
        found.rewind(1)
    with pytest.raises(OptionError, match="is not for several sequences"):
        SequenceDecoder(models[0])


@pytest.mark.usefixtures("own_garbage")
def test_forks_that_are_gone_leave_their_memory(models: Models) -> None:
    found = SequenceDecoder(models[1])
    for _ in range(5):
        found.fork().feed([1])
    gc.collect()
    found.feed([1])
    assert len(found._shared.sequences._open) == 1


def test_threads_take_turns(models: Models) -> None:
    found = SequenceDecoder(models[1])
    forks = [found.fork() for _ in range(4)]
    results: dict[int, np.ndarray] = {}

    def run(k: int) -> None:
        for token in TOKENS[k : k + 6]:
            results[k] = forks[k].feed([token])

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        found.rewind(0)
        for token in TOKENS[k : k + 6]:
            wanted = found.feed([token])
        np.testing.assert_array_equal(results[k], wanted)


def answer(model: LanguageModel) -> str:
    text = model.generate("ab ab", max_tokens=8)
    assert isinstance(text, str)
    return text


def test_a_language_model_for_several_answers_alike(folder: Path) -> None:
    one, several = (load(folder, cache=False, threads=1, sequences=n) for n in (None, 3))
    assert answer(one) == answer(several)
    together, apart = several.sequences(5), one.sequences(5)
    assert isinstance(together, CompiledSequences) and isinstance(apart, ForkedSequences)
    assert (together.slots, together.lanes, apart.lanes) == (5, 3, 1)
    parts = [[(found.open(), TOKENS[:9]), (found.open(), TOKENS[3:5])] for found in (together, apart)]
    for found, wanted in zip(together.feed(parts[0]), apart.feed(parts[1]), strict=True):
        np.testing.assert_allclose(found, wanted, **CLOSE)
    assert answer(one) == answer(several)


def test_a_saved_model_for_several_is_loaded_as_one(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "several.tw"
    tilewright.compile(DecoderSource(folder, sequences=2), cache=False).save(path)
    model = load(path, tokenizer=folder)
    assert isinstance(model.sequences(2), CompiledSequences)
    with pytest.raises(OptionError, match=r"sequences= needs a GGUF file or a folder with config\.json"):
        load(path, tokenizer=folder, sequences=2)


def test_a_server_takes_a_model_for_as_many_as_it_answers_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []

    def opened(path: Path, options: Any, sequences: int | None = None) -> Any:
        asked.append(sequences)
        if sequences == 3:
            raise UnsupportedError("no form for several")

    monkeypatch.setattr(serve, "opened", opened)
    for parallel in (1, 5, 50, 3):
        serve._opened(folder, {}, parallel)
    serve._opened(folder / "model.tw", {}, 5)
    assert asked == [None, 5, 8, 3, None, None]
