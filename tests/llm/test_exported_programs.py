"""Decoders that PyTorch exported answer as others do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.llm import exported_modules as modules
from tests.llm.exported_modules import Cache, Decoder, joined, static
from tests.llm.vocabularies import written_folder
from tilewright import llm
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.llm.decoder import CompiledDecoder
from tilewright.llm.loading import load_decoder
from tilewright.runtime.errors import InputError, OptionError

TOKENS = [5, 9, 30, 41, 7, 8, 2, 61, 33, 5]
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def wanted() -> np.ndarray:
    """Logits [tokens, vocabulary] of all at once, by PyTorch."""
    with torch.no_grad():
        found: np.ndarray = Decoder()(torch.tensor([TOKENS]))[0].numpy()
    return found


@pytest.fixture
def container() -> Iterator[type[Cache]]:
    modules.register()
    yield Cache
    modules.unregister()


def assert_answers(decoder: CompiledDecoder, wanted: np.ndarray) -> None:
    """In pieces of all kinds, and after going back."""
    for pieces in ((4, 1, 1, 3, 1), (10,), (1,) * 10):
        decoder.rewind(0)
        for part in np.split(np.array(TOKENS), np.cumsum(pieces)[:-1]):
            logits = decoder.feed(part)
            np.testing.assert_allclose(logits, wanted[decoder.length - 1], **CLOSE)
    decoder.rewind(3)
    np.testing.assert_allclose(decoder.feed(TOKENS[3:6]), wanted[5], **CLOSE)
    other = decoder.fork()
    np.testing.assert_allclose(other.feed(TOKENS[6:8]), wanted[7], **CLOSE)
    np.testing.assert_allclose(decoder.feed(TOKENS[6:7]), wanted[6], **CLOSE)


def saved(path: Path, program: torch.export.ExportedProgram) -> Path:
    torch.export.save(program, path)
    return path


def test_caches_that_come_and_go_become_states(tmp_path: Path, wanted: np.ndarray) -> None:
    found = load_decoder(saved(tmp_path / "m.pt2", joined()), threads=1, cache=False, context=12)
    assert [info.name for info in found.model.inputs] == ["input_ids"]
    assert [state.counter for state in found.model.states] == ["", *["past"] * 2 * modules.LAYERS]
    assert (found.context, found.vocabulary) == (12, modules.ROWS)
    assert_answers(found, wanted)
    with pytest.raises(InputError, match="more than the context of 12 positions"):
        found.feed([1] * 6)


def test_containers_of_packages_that_are_not_imported(
    tmp_path: Path, wanted: np.ndarray, container: type[Cache]
) -> None:
    program = joined(container)
    path = saved(tmp_path / "m.pt2", program)
    modules.unregister()
    try:
        found = load_decoder(path, threads=1, cache=False, context=12)
    finally:
        modules.register()
    np.testing.assert_allclose(found.feed(TOKENS), wanted[-1], **CLOSE)
    assert len(found.model.outputs) == 1


def test_objects_of_pytorch_with_a_vocabulary(tmp_path: Path, wanted: np.ndarray) -> None:
    written_folder(tmp_path, "bytes")
    program = joined()
    with pytest.raises(ModelError, match="vocabulary"):  # of more tokens than the model has
        llm.load(program, tokenizer=tmp_path, threads=1, cache=False, context=20)
    with pytest.raises(OptionError, match="a program has no vocabulary"):
        llm.load(program)
    with pytest.raises(OptionError, match=r"weights= needs a GGUF file .* a ExportedProgram says by itself"):
        load_decoder(program, weights="int8")
    with pytest.raises(OptionError, match="without examples"):
        load_decoder(Decoder())


@pytest.mark.parametrize("style", ["copy", "eager", "counts"])
def test_static_caches_become_states_that_grow(wanted: np.ndarray, style: str) -> None:
    found = load_decoder(static(style), threads=1, cache=False)
    assert [info.name for info in found.model.inputs] == ["input_ids"]
    assert [state.counter for state in found.model.states] == ["", *["past"] * 2 * modules.LAYERS]
    assert (found.context, found.vocabulary) == (modules.POSITIONS, modules.ROWS)
    assert_answers(found, wanted)
    with pytest.raises(InputError, match="more than the context of 24 positions"):
        found.feed([1] * 18)


def test_programs_for_one_token_are_fed_one_by_one(wanted: np.ndarray) -> None:
    assert_answers(load_decoder(static("put", 1), threads=1, cache=False, context=15), wanted)
    with pytest.raises(OptionError, match="takes 3 tokens in each call"):
        load_decoder(static("put", 3), threads=1, cache=False)


@pytest.mark.parametrize(
    ("style", "said"),
    [
        ("all", "the buffer 'b_.*' is no cache .*: it is looked for that attention masks what is not filled"),
        ("elsewhere", "'b_keys_0' is no cache .* calls put their rows behind those that are there"),
    ],
)
def test_buffers_that_are_no_caches_are_refused_with_what_was_looked_for(style: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        load_decoder(static(style), threads=1, cache=False)


def test_programs_that_are_no_decoders_are_refused_with_what_was_looked_for() -> None:
    floats = torch.export.export(torch.nn.Linear(2, 3).eval(), (torch.ones(1, 2),))
    with pytest.raises(OptionError, match=r"tokens are an input input_ids or .* its inputs are input f32\[1, 2\]"):
        load_decoder(floats)
    without = torch.export.export(torch.nn.Embedding(3, 2), (torch.ones(1, 2, dtype=torch.int64),))
    with pytest.raises(OptionError, match="tokens are an input input_ids"):
        load_decoder(without)
