"""Caches that are stored in fewer bits: texts are nearly those of float32, and all that caches can do they can, too."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright
from tests.frontends.decoders import encoded
from tests.frontends.decoders.checkpoints import IDS, SHOWN, VOCABULARY, cases, write_folder
from tests.llm.checkpoints import CONTEXT, LAYERS, ROWS, model_folder
from tilewright import llm
from tilewright.cli.app import commands
from tilewright.frontends.decoders.source import CACHES, DecoderSource
from tilewright.llm.decoder import CompiledDecoder, position_bytes
from tilewright.llm.reading.decoder import CompiledReader
from tilewright.llm.sequences import CompiledSequences
from tilewright.runtime.errors import OptionError

NARROW = CACHES[1:]
ERRORS = {"float16": 2e-3, "bfloat16": 2e-2, "int8": 5e-2}
"""Of the largest logit."""
BYTES = {"float16": 2 * 8, "int8": 8 + 4}
"""Of a row of a head: the model has heads of 8 elements, which is few beside a scale."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@cache
def model(folder: Path, caches: str, threads: int = 1, **wanted: Any) -> tilewright.Model:
    return tilewright.compile(DecoderSource(folder, caches=caches, **wanted), cache=False, threads=threads)


def decoder(folder: Path, caches: str, threads: int = 1, piece: int = 512, **wanted: Any) -> CompiledDecoder:
    return CompiledDecoder(copy.copy(model(folder, caches, threads, **wanted)), piece=piece)


TOKENS = np.random.default_rng(3).integers(0, ROWS, CONTEXT)


def fed(found: Any, count: int = 12) -> np.ndarray:
    """Logits behind a begin, and behind each of some tokens."""
    return np.array([found.feed(TOKENS[:70]), *(found.feed(TOKENS[n : n + 1]) for n in range(70, 70 + count))])


@pytest.mark.parametrize("caches", NARROW)
def test_logits_are_nearly_those_of_float32(folder: Path, caches: str) -> None:
    wanted, found = fed(decoder(folder, "float32")), fed(decoder(folder, caches))
    apart = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert 1e-6 < apart < ERRORS[caches]  # and it is not float32 that is computed with


@pytest.mark.sweep(1)
@pytest.mark.parametrize("caches", ["float16", "int8"])
def test_threads_pieces_and_capacities_change_no_bit(folder: Path, caches: str) -> None:
    wanted = fed(decoder(folder, caches))
    for other in (
        decoder(folder, caches, threads=2), decoder(folder, caches, piece=64), decoder(folder, caches, capacity=100)
    ):  # fmt: skip
        np.testing.assert_array_equal(fed(other), wanted)


def test_forks_files_and_going_back(folder: Path, tmp_path: Path) -> None:
    found = decoder(folder, "int8")
    wanted = fed(found)
    found.rewind(70)
    fork = found.fork()
    found.model.save_states(tmp_path / "past.npz")
    with np.load(tmp_path / "past.npz") as file:
        assert file["state keys.1"].shape == (1, 2, 70, 8)
        assert file["state keys.1"].dtype == np.int8
        assert file["state keys.1.scales"].shape == (1, 2, 70, 1)
    again = decoder(folder, "int8")
    again.model.load_states(tmp_path / "past.npz")
    pickled = pickle.loads(pickle.dumps(found.model))
    for continued in (found, fork, CompiledDecoder(again.model), CompiledDecoder(pickled)):
        assert continued.length == 70
        tokens = [continued.feed(TOKENS[n : n + 1]) for n in range(70, 82)]
        np.testing.assert_array_equal(tokens, wanted[1:])


def test_sequences_are_to_the_bit_what_each_is_alone(folder: Path) -> None:
    together = CompiledSequences(model(folder, "int8", sequences=3), 4)
    alone = CompiledSequences(model(folder, "int8", sequences=3), 4)
    first = together.open()
    together.feed([(first, TOKENS[:20])])
    own = [together.open(first), together.open(), together.open(first)]
    together.rewind(own[2], 15)
    tokens = [TOKENS[20:23], TOKENS[:1], TOKENS[40:60]]
    found = together.feed(list(zip(own, tokens, strict=True)))
    for logits, part, begin in zip(found, tokens, (20, 0, 15), strict=True):
        handle = alone.open()
        if begin:
            alone.feed([(handle, TOKENS[:20])])
            alone.rewind(handle, begin)
        np.testing.assert_array_equal(logits, alone.feed([(handle, part)])[0])
        alone.close(handle)


def test_layers_with_a_window_give_pages_of_scales_back_too(tmp_path: Path) -> None:
    case = cases()["mistral"]
    write_folder(tmp_path, case["config"], case["tensors"])
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 1500)
    logits = []
    for caches in ("float32", "int8"):
        found = tilewright.compile(DecoderSource(tmp_path, capacity=2048, caches=caches), cache=False, threads=1)
        one = CompiledDecoder(found)
        logits.append(last_logits(one, tokens))
        one.rewind(len(tokens) - 2)
        one.feed(tokens[-1:])  # what was stored here is not read again
        one.rewind(len(tokens) - 2)
        np.testing.assert_array_equal([one.feed(tokens[-2:-1]), one.feed(tokens[-1:])], logits[-1][1:])
        states = {state.info.name: found._states.first(n) for n, state in enumerate(found.states)}
        rows = {first for name, first in states.items() if name != "past"}
        assert len(rows) == 1
        assert rows.pop() > 500
    assert_near(logits[1], logits[0])


@pytest.mark.parametrize("case", ["gemma2", "gpt2", "t5"])
def test_caps_and_encoders(case: str, tmp_path: Path) -> None:
    """Scores are capped behind scales; crossing caches are kept in fewer bits. Logits are near those that Transformers
    computes."""
    is_reader = case == "t5"
    found = (encoded.cases() if is_reader else cases())[case]
    write_folder(tmp_path, found["config"], found["tensors"])
    model = tilewright.compile(DecoderSource(tmp_path, capacity=40, caches="int8"), cache=False, threads=1)
    one = CompiledReader(model) if is_reader else CompiledDecoder(model)
    if isinstance(one, CompiledReader):
        one.read(encoded.READ)
    logits = last_logits(one, encoded.IDS if is_reader else IDS)
    assert_near(logits[:, ::SHOWN], np.array(found["logits"][-3:]))


def last_logits(decoder: Any, tokens: Any) -> np.ndarray:
    """Those behind all but two tokens, and behind each of the two."""
    return np.array([decoder.feed(tokens[:-2]), decoder.feed(tokens[-2:-1]), decoder.feed(tokens[-1:])])


def assert_near(found: np.ndarray, wanted: np.ndarray) -> None:
    apart = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert 1e-4 < apart < 0.08  # and caches have fewer bits


@pytest.mark.parametrize("caches", [pytest.param("float16", marks=pytest.mark.sweep(0)), "int8"])
def test_bytes_are_told(folder: Path, caches: str) -> None:
    bytes_ = LAYERS * 2 * 2 * BYTES[caches]  # keys and values of 2 heads
    assert position_bytes(model(folder, caches)) == bytes_
    assert position_bytes(model(folder, caches, sequences=3)) == bytes_
    if caches != "int8":
        return
    generate = ["generate", "--prompt", "a", "--max-tokens", "2", "--stats", "--no-cache"]
    for command in (["cost", "--prompt", "8", "--new", "8"], generate):
        run = CliRunner().invoke(commands, [command[0], str(folder), "--caches", caches, *command[1:]])
        assert f"caches of {bytes_} bytes for a position" in run.output, run.output


def test_nothing_is_copied(folder: Path) -> None:
    """All caches and their scales are written where they are."""
    states = model(folder, "int8").states
    assert {state.way for state in states if state.counter} == {"in place"}
    assert sum(state.info.name.endswith(".scales") for state in states) == 2 * LAYERS


def test_another_type_is_refused(folder: Path, tmp_path: Path) -> None:
    for wrong in ("int4", None, 8, "Float16"):
        with pytest.raises(OptionError, match=r"caches=.* is not allowed: one of float32, float16, bfloat16, int8"):
            DecoderSource(folder, caches=wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="cache='int8' is not allowed") as caught:
        llm.load(folder, cache="int8")
    assert "caches= is what keys and values are stored in" in str(caught.value)
    decoder(folder, "int8").model.save(tmp_path / "decoder.tw")
    with pytest.raises(OptionError, match="caches= needs a GGUF file or a folder"):
        llm.load(tmp_path / "decoder.tw", tokenizer=folder, caches="float16")
    assert llm.load(tmp_path / "decoder.tw", tokenizer=folder).generate("a", max_tokens=2)


def test_compiled_files_have_the_caches_that_were_asked_for(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.tw"
    run = CliRunner().invoke(commands, ["compile", str(folder), "-o", str(out), "--caches", "float16"])
    assert not run.exit_code, run.output
    assert {state.info.dtype for state in tilewright.load(out).states if state.counter} == {"float16"}
    run = CliRunner().invoke(commands, ["compile", str(out), "-o", str(tmp_path / "x.tw"), "--caches", "float16"])
    assert run.exit_code == 2, run.output
