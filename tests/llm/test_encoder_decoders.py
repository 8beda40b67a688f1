"""Answers of models with an encoder: what is read is the prompt, and the answer begins as configurations say."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright
from tests.frontends.decoders.checkpoints import write_folder
from tests.frontends.decoders.encoded import cases
from tests.llm.checkpoints import model_folder
from tests.llm.encoder_checkpoints import BEGIN, END, START, reading_folder
from tilewright import llm
from tilewright.cli.app import commands
from tilewright.ir.diag import ModelError
from tilewright.llm.loading import load_decoder
from tilewright.llm.reading.decoder import CompiledReader, ReadingDecoder
from tilewright.runtime.errors import InputError, OptionError

TEXT = "the state of a model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reading_folder(tmp_path_factory.mktemp("models") / "t5")


@pytest.fixture(scope="module")
def model(folder: Path) -> llm.LanguageModel:
    return llm.load(folder, threads=1, cache=False)


@pytest.fixture(scope="module")
def decoder(model: llm.LanguageModel) -> CompiledReader:
    found = model._root.fork()
    assert isinstance(found, CompiledReader) and isinstance(found, ReadingDecoder)
    return found


def test_answers_follow_from_the_logits_of_all_that_is_before(model: llm.LanguageModel) -> None:
    read = model.tokens(TEXT)
    assert read[0] == BEGIN and read[-1] == END and read[1:-1] == model.tokenizer.encode(TEXT, begin=False)
    whole = copy.copy(model._root.model)
    answer = model.answer(TEXT, max_tokens=10, ends=False)
    past = [START]
    for token in answer.tokens:
        whole.reset()
        (logits,) = whole(np.array([past]), np.array([read]))
        assert token == int(logits[0, : model.tokenizer.size].argmax())
        past.append(token)
    assert answer.prompt_tokens == len(read)
    assert model.generate([TEXT, "Hello"], max_tokens=10, ends=False)[0] == answer.text
    assert model.generate(read, max_tokens=10, ends=False) == answer.text


def test_what_is_read_is_that_of_the_call(decoder: CompiledReader) -> None:
    """An array that is changed behind it changes nothing."""
    decoder, given = decoder.fork(), np.array([5, 9, 40, 7])
    decoder.read(given)
    wanted = decoder.feed([START])
    decoder.read(given)
    given[:] = 3
    np.testing.assert_array_equal(decoder.feed([START]), wanted)


def test_tokens_that_no_integer_of_the_model_holds_are_none(decoder: CompiledReader) -> None:
    with pytest.raises(InputError, match="there is no token 18446744073709551615"):
        decoder.fork().read(np.array([3, 2**64 - 1], np.uint64))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["bart", "marian, two vocabularies"])
def test_tokens_that_the_encoder_does_not_know_are_named_before_anything_is_fed(tmp_path: Path, name: str) -> None:
    """Encoder and decoder may have vocabularies of their own; a compiled file knows, too."""
    case = cases()[name]
    write_folder(tmp_path / "m", case["config"], case["tensors"])
    size = case["config"]["vocab_size"]
    made = load_decoder(tmp_path / "m", threads=1, cache=False)
    made.model.save(tmp_path / "m.tw")
    for decoder in (made, CompiledReader(tilewright.load(tmp_path / "m.tw"))):
        assert isinstance(decoder, CompiledReader)
        decoder.read([3, size - 1])
        wanted = decoder.feed([2])
        for wrong in (size, 2**40):
            with pytest.raises(InputError, match=f"there is no token {wrong}: the encoder's vocabulary has {size}"):
                decoder.read([3, wrong, 5])
        assert decoder.length == 1
        decoder.rewind(0)
        np.testing.assert_array_equal(decoder.feed([2]), wanted)


def test_prompts_with_tokens_that_the_encoder_does_not_know_are_refused(model: llm.LanguageModel) -> None:
    with pytest.raises(InputError, match="there is no token 704: the encoder's vocabulary has 704"):
        model.generate([5, 704], max_tokens=2)
    assert model.generate([5, 703], max_tokens=2) is not None


def test_texts_are_scored_by_decoders_alone(model: llm.LanguageModel) -> None:
    with pytest.raises(OptionError, match="a text is scored token by token"):
        model.score_text()


def test_beams_scores_and_logits(model: llm.LanguageModel) -> None:
    greedy = model.answer(TEXT, max_tokens=6, ends=False).tokens
    (one,) = model.beams(TEXT, 1, max_tokens=6)
    best = model.beams(TEXT, 4, max_tokens=6)
    assert len(best) == 4 and one.tokens == greedy[: len(one.tokens)]
    assert best[0].score(1) >= one.score(1)
    assert model.answer(TEXT, max_tokens=6, beams=4).tokens == best[0].tokens
    assert int(model.logits(TEXT).argmax()) == greedy[0]
    score = model.score(list(best[0].tokens), after=TEXT)
    if not best[0].ended:
        assert score.log_likelihood == pytest.approx(best[0].log_probability, abs=1e-4)
    with pytest.raises(OptionError, match=r"a text is scored as an answer: say to what \(after=\)"):
        model.score("Hello")


def test_answers_begin_as_configurations_and_callers_say(tmp_path: Path, model: llm.LanguageModel) -> None:
    forced = llm.load(reading_folder(tmp_path / "m", "bart", forced_bos_token_id=5), threads=1, cache=False)
    assert forced.tokenizer.special.forced == (5,)
    plain = reading_folder(tmp_path / "plain", "bart")
    (plain / "generation_config.json").write_text(json.dumps({"bad_words_ids": [[7], [8, 9]], "eos_token_id": [2, 1]}))
    other = llm.load(plain, threads=1, cache=False)
    assert other.tokenizer.special.never == {7} and other.tokenizer.special.ends == {0, 1, 2}
    name = other.tokenizer.name(5)
    assert name is not None
    how: dict[str, Any] = {"max_tokens": 8, "ends": False}
    assert forced.answer(TEXT, **how).tokens == other.answer(TEXT, begins=name, **how).tokens
    assert forced.answer(TEXT, begins="x", **how).tokens == other.answer(TEXT, begins="x", **how).tokens
    with pytest.raises(InputError, match="begins=3 is not allowed: give a text"):
        model.generate(TEXT, begins=3)


def test_tokens_that_are_in_no_answer_do_not_come(tmp_path: Path, model: llm.LanguageModel) -> None:
    usual = model.answer(TEXT, max_tokens=5, ends=False).tokens
    folder = reading_folder(tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps({"bad_words_ids": [[usual[0]], [usual[1]]]}))
    other = llm.load(folder, threads=1, cache=False)
    assert not {usual[0], usual[1]} & set(other.answer(TEXT, max_tokens=20, ends=False).tokens)
    assert all(not {usual[0], usual[1]} & set(beam.tokens) for beam in other.beams(TEXT, 3, max_tokens=8))
    assert usual[0] in other.answer(TEXT, max_tokens=5, ends=False, logit_bias={usual[0]: 0.0}).tokens


def test_what_the_answer_begins_with_goes_for_decoders_too(tmp_path: Path) -> None:
    model = llm.load(model_folder(tmp_path / "m"), threads=1, cache=False)
    tokens = [*model.tokens("the state"), *model.tokenizer.encode(" of", begin=False)]
    assert model.generate("the state", begins=" of", max_tokens=5) == model.generate(tokens, max_tokens=5)


def test_a_decoder_reads_forks_and_forgets(decoder: CompiledReader) -> None:
    with pytest.raises(InputError, match="the model has read nothing yet"):
        decoder.fork().feed([START])
    own = decoder.fork()
    own.read([5, 6, 7])
    pending = own.fork()
    first = own.feed([START, 9])
    np.testing.assert_array_equal(pending.feed([START, 9]), first)
    later = own.fork()
    np.testing.assert_array_equal(own.feed([11]), later.feed([11]))
    own.rewind(0)
    assert own.length == 0 and own.has_read
    np.testing.assert_array_equal(own.feed([START, 9]), first)
    own.rewind(1)
    np.testing.assert_allclose(own.feed([9]), first, rtol=1e-4, atol=1e-4)
    own.read([5, 6])
    assert own.length == 0 and np.abs(own.feed([START, 9]) - first).max() > 1e-3
    for wrong, said in (([], "not nothing"), ([[1, 2]], r"int64\[1, 2\]"), ([0.5], "float64"), ([-1], "no token -1")):
        with pytest.raises(InputError, match=said):
            own.read(wrong)
    with pytest.raises(InputError, match="513 tokens are more than there are positions to read them: 512"):
        own.read([3] * 513)
    assert own.length == 2


def test_a_call_that_fails_leaves_what_was_read_unread(decoder: CompiledReader, monkeypatch: Any) -> None:
    own = decoder.fork()
    own.piece = 2
    own.read([5, 6, 7])
    wanted = own.fork().feed([START, 9, 11])
    original, calls = own.model, []

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(original, name)

        def __call__(self, *args: Any) -> Any:
            calls.append(args)
            if len(calls) == 2:
                raise RuntimeError("no")
            return original(*args)

    own.model = Failing()  # type: ignore[assignment]
    with pytest.raises(RuntimeError):
        own.feed([START, 9, 11])
    own.model = original
    assert own.length == 0
    np.testing.assert_array_equal(own.feed([START, 9, 11]), wanted)


def test_what_a_model_with_an_encoder_cannot_do_is_said(tmp_path: Path, model: llm.LanguageModel) -> None:
    with pytest.raises(OptionError, match="a conversation goes on behind what was said"):
        model.conversation()
    with pytest.raises(OptionError, match="several sequences at once continue tokens"):
        model.sequences(4)
    folder = reading_folder(tmp_path / "m", decoder_start_token_id=None, bos_token_id=None)
    with pytest.raises(ModelError, match=r"no configuration says what answers begin with \(decoder_start_token_id\)"):
        llm.load(folder, threads=1, cache=False).generate(TEXT)


def test_the_command_reads_the_prompt(folder: Path, model: llm.LanguageModel) -> None:
    arguments = ["generate", str(folder), "--prompt", TEXT, "--max-tokens", "6", "--threads", "1", "--no-cache"]
    result = CliRunner().invoke(commands, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == model.generate(TEXT, max_tokens=6) + "\n"
    beams = CliRunner().invoke(commands, [*arguments, "--beams", "3", "--begins", "the"])
    assert beams.exit_code == 0 and beams.stdout == model.answer(TEXT, max_tokens=6, beams=3, begins="the").text + "\n"
