"""Weights as small as a promise allows: chosen, certified on other text, kept in the cache, told by commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tilewright
from tests.llm.checkpoints import model_file
from tilewright import llm
from tilewright.cli.app import commands
from tilewright.llm.texts.promised import promised_weights
from tilewright.llm.texts.sample import SAMPLE
from tilewright.llm.texts.score import pieces_of
from tilewright.llm.texts.verified import verify_agreement
from tilewright.llm.vocabulary import read_vocabulary
from tilewright.quantization.decoders import promise as promises
from tilewright.quantization.decoders.agreement import Agreement, compared
from tilewright.quantization.decoders.certificate import KEY, AgreementCertificate
from tilewright.quantization.decoders.promise import (
    Choosing,
    Chosen,
    ComparedText,
    Promise,
    PromiseError,
    rounded_importance,
)
from tilewright.runtime import Artifact
from tilewright.runtime.errors import InputError, OptionError

MAX_DROP = 0.15
LENGTH = 800
"""Letters of the text that chooses and judges."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a text, and a cache."""
    folder = tmp_path_factory.mktemp("promised")
    model_file(folder / "m.gguf")
    (folder / "text.txt").write_text(SAMPLE[:LENGTH])
    return folder


@pytest.fixture(scope="module")
def loaded(place: Path) -> llm.LanguageModel:
    return llm.load(place / "m.gguf", **auto(place))


def auto(place: Path, **how: Any) -> dict[str, Any]:
    session = tilewright.Session(place / "cache")
    given = {"weights": "auto", "max_drop": MAX_DROP, "text": place / "text.txt", "threads": 1, "session": session}
    return {**given, **how}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def test_the_smallest_weights_that_keep_it_are_taken(place: Path, loaded: llm.LanguageModel) -> None:
    found = loaded.certificate
    assert found is not None and found.is_within and found.agreement.bound <= MAX_DROP == found.max_drop
    assert found.bytes_after < 0.4 * found.bytes_before
    assert sum(record.bytes for record in found.matrices) == found.bytes_after
    assert found.forms and "the promise is kept" in found.outcome
    by_form = {kind.form: kind for kind in found.kinds}
    assert by_form["int4"].agreement.bound > MAX_DROP  # so something had to become larger
    assert by_form["int4"].bytes < found.bytes_after
    assert [kind.bytes for kind in found.kinds] == sorted(kind.bytes for kind in found.kinds)
    pieces = pieces_of(SAMPLE[:LENGTH], loaded.tokenizer, 256)
    assert found.agreement.tokens + found.chosen_tokens == sum(map(len, pieces))


def test_what_the_certificate_says_is_what_the_model_does(place: Path, loaded: llm.LanguageModel) -> None:
    """Measured again, on the text that did not choose."""
    found = loaded.certificate
    assert found is not None
    pieces = pieces_of(SAMPLE[:LENGTH], loaded.tokenizer, 256)
    text = ComparedText.of(pieces, "", "")
    assert sum(map(len, text.choosing)) == found.chosen_tokens
    probe = promises.DecoderProbe(place / "m.gguf", 256, threads=1, session=tilewright.Session(place / "cache"))
    wanted = np.concatenate([probe.wide()(tokens) for tokens in text.judging])
    decoder = loaded._root.fork()
    logits = []
    for tokens in text.judging:
        decoder.rewind(0)
        logits += [decoder.feed([token]) for token in tokens]
    assert (np.array(logits).argmax(1) == wanted.argmax(1)).sum() == found.agreement.agreed


def test_it_is_chosen_once(place: Path, loaded: llm.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **how: object) -> None:
        raise AssertionError("it was chosen again")

    monkeypatch.setattr(Choosing, "chosen", never)
    again = llm.load(place / "m.gguf", **auto(place))
    assert again.certificate == loaded.certificate
    np.testing.assert_array_equal(again.logits("Once"), loaded.logits("Once"))
    with pytest.raises(AssertionError, match="chosen again"):
        llm.load(place / "m.gguf", **auto(place, max_drop=0.2))
    how = auto(place)
    del how["weights"]
    promised_weights(place / "m.gguf", loaded.tokenizer, **how)
    with monkeypatch.context() as damaged, pytest.raises(AssertionError, match="chosen again"):
        damaged.setattr(tilewright.Session, "recall", lambda session, about: b'{"importance": {"a": 1')
        promised_weights(place / "m.gguf", loaded.tokenizer, **how)
    with pytest.raises(AssertionError, match="chosen again"):  # other tokens
        promised_weights(place / "m.gguf", replace(loaded.tokenizer, segmenter=Bytes()), **how)


class Bytes:
    """A token for each byte."""

    def encode(self, text: str, *, control: bool, first: bool) -> list[int]:
        return list(text.encode())


def test_records_are_read_again(loaded: llm.LanguageModel) -> None:
    found = loaded.certificate
    assert found is not None
    record = json.loads(json.dumps(found.record()))
    assert AgreementCertificate.of(record, "here") == found
    for wrong in ({**record, "schema": 9}, {**record, "kinds": [1]}, {}, None, {**record, "extra": 1}):
        with pytest.raises(InputError, match="certificate cannot be read"):
            AgreementCertificate.of(wrong, "here")
    importance = {"a": rounded_importance(np.array([0.0, 1.0, 5.0, 1e9])), "b": rounded_importance(np.zeros(3))}
    chosen = Chosen.of(json.loads(json.dumps(Chosen(found, importance).record())))
    assert all(np.array_equal(chosen.importance[name], importance[name]) for name in importance)
    assert (importance["a"] > 0).all() and (importance["b"] == 1).all()


def test_what_cannot_be_promised_says_what_was_reached(place: Path, loaded: llm.LanguageModel) -> None:
    """A compiled model that is far off, whatever its weights are."""
    pieces = pieces_of(SAMPLE[:LENGTH], loaded.tokenizer, 256)
    rng = np.random.default_rng(0)

    def wrong(forms: dict[str, str], importance: object) -> Any:
        return lambda tokens: rng.standard_normal((len(tokens), 700)).astype(np.float32)

    session = tilewright.Session(place / "cache")
    choosing = Choosing(
        place / "m.gguf", ComparedText.of(pieces, "t", "d"), Promise(0.05), wrong, threads=1, session=session
    )
    said = r"a drop of 0.05 cannot be promised: .* tokens agree(.*\n)+.*allow a drop of"
    with pytest.raises(PromiseError, match=said) as told:
        choosing.chosen()
    best = told.value.certificate
    assert best is not None and not best.is_within and "is not kept" in best.outcome


@pytest.mark.parametrize("has_room", [True, False])
def test_logits_that_take_much_memory_are_kept_in_a_file(monkeypatch: pytest.MonkeyPatch, has_room: bool) -> None:
    """They are computed once where there is room for it, and are what they are in memory."""
    asked: list[int] = []

    class Probe:
        def wide(self) -> Any:
            def run(tokens: np.ndarray) -> np.ndarray:
                asked.append(len(tokens))
                return np.random.default_rng(len(tokens)).standard_normal((len(tokens), 50))

            return run

    pieces, probe = [np.arange(3), np.arange(5)], Probe()
    small = list(promises.Reference(probe, pieces))  # type: ignore[arg-type]
    monkeypatch.setattr(promises, "_MOST_KEPT", 10)
    if not has_room:
        monkeypatch.setattr(promises.tempfile, "TemporaryFile", no_room)
    large = promises.Reference(probe, pieces)  # type: ignore[arg-type]
    asked.clear()
    for _ in range(3):
        for wanted, found in zip(small, large, strict=True):
            np.testing.assert_array_equal(found.rows.astype(np.float32), wanted.rows)
            assert isinstance(found.rows, np.memmap) == has_room
            np.testing.assert_array_equal(found.greatest, wanted.greatest)
            here, there = (compared(known, -wanted.rows).divergences for known in (found, wanted))
            np.testing.assert_allclose(here, there, rtol=1e-5)
    assert asked == ([3, 5] if has_room else [3, 5] * 3)


def no_room(*arguments: Any) -> Any:
    raise OSError(28, "No space left on device")


def test_how_many_tokens_a_promise_needs() -> None:
    promise = Promise(0.02)
    assert promise.most_changes(100) == -1 and promise.most_changes(149) == 0 and promise.most_changes(2000) == 29
    with pytest.raises(InputError, match=r"by 100 tokens that judge it: at least 149 tokens can show that"):
        promise.check(100)
    for drop in (0.0, 5e-324, 1e-300, 1e-14):
        with pytest.raises(InputError, match=r"by 1000000000 tokens that judge it: no text can show that"):
            Promise(drop).check(10**9)
    for wrong in ({"max_drop": 1.0}, {"max_drop": -0.1}, {"max_drop": "2%"}, {"max_drop": 0.1, "confidence": 0.4}):
        with pytest.raises(OptionError, match="is not allowed: give a number from"):
            Promise(**wrong)  # type: ignore[arg-type]


def test_mistakes(place: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match='"auto" needs max_drop='):
        llm.load(place / "m.gguf", weights="auto")
    with pytest.raises(OptionError, match='max_drop= is that of weights="auto"'):
        llm.load(place / "m.gguf", max_drop=0.1)
    with pytest.raises(InputError, match="the text cannot be read"):
        llm.load(place / "m.gguf", **auto(place, text=tmp_path / "none.txt"))
    (tmp_path / "short.txt").write_text("a")
    with pytest.raises(InputError, match=r"cannot be promised|nothing to compare"):
        llm.load(place / "m.gguf", **auto(place, text=tmp_path / "short.txt"))
    with pytest.raises(OptionError, match="window=1 is not allowed"):
        pieces_of("text", read_vocabulary(place / "m.gguf").tokenizer, 256, window=1)
    with pytest.raises(InputError, match=r"nothing to compare: the text has .* and the context 1 positions"):
        llm.load(place / "m.gguf", context=1, threads=1, cache=False).score_text(place / "text.txt")


def test_commands_choose_tell_and_attach(
    place: Path, loaded: llm.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(place / "cache"))
    model, small = place / "m.gguf", place / "small.tw"
    how = ("--weights", "auto", "--max-drop", "15%", "--text", place / "text.txt")
    result = call("generate", model, "--prompt", "Once", "--max-tokens", 3, "--threads", 1, *how)
    assert result.exit_code == 0 and "the promise is kept" in result.stderr, result.output
    result = call("compile", model, "-o", small, *how)
    assert result.exit_code == 0 and "the promise is kept" in result.stderr, result.output
    record = Artifact.load(small).attached[KEY]
    assert AgreementCertificate.of(record, "small.tw").is_within
    result = call("inspect", small)
    assert result.exit_code == 0, result.output
    assert all(text in result.stdout for text in ("int4:min", "at most 15 % of tokens", "model.embed_tokens.weight"))
    assert json.loads(call("inspect", small, "--json").stdout)["matrices"]
    beside = ("--agreement", "--of", model, "--tokenizer", model, "--json")
    result = call("verify", small, "--json")
    verified = json.loads(result.stdout)
    assert result.exit_code == 0 and verified["holds"], result.output
    assert verified["agreement"]["agreed"] == record["agreement"]["agreed"]
    told = json.loads(call("score", small, place / "text.txt", *beside).stdout)
    assert told["agreement"]["share"] > 1 - MAX_DROP and told["perplexity"] > 1


def test_certificates_that_do_not_hold(place: Path, loaded: llm.LanguageModel, tmp_path: Path) -> None:
    """Of a model that promised more than it keeps, of another text, or made of what is not there any more."""
    found = loaded.certificate
    assert found is not None
    artifact = loaded._root.model.artifact  # type: ignore[attr-defined]

    def saved(**changed: Any) -> Path:
        record = replace(found, **changed).record()
        replace(artifact, attached={KEY: record}).save(tmp_path / "m.tw")
        return tmp_path / "m.tw"

    kept = {"session": tilewright.Session(place / "cache")}
    own = verify_agreement(saved(), threads=1, **kept)
    assert own.holds and own.agreement.agreed == found.agreement.agreed
    assert own.agreement.divergence == pytest.approx(found.agreement.divergence, rel=1e-4)
    low = replace(found.agreement, divergence_bound=0.0, tokens=99999)
    result = call("verify", saved(max_drop=1e-6, agreement=low))
    assert result.exit_code == 1 and "the certificate does not hold" in result.output
    for said in ("and 99999 when it was certified", "and at most 0.0001 % were promised", "certified was at most 0"):
        assert said in result.output
    with pytest.raises(InputError, match="the text is not that of the certificate"):
        verify_agreement(saved(text_digest="0"), **kept)
    with pytest.raises(InputError, match=r"the checkpoint .*gone that the model was made of is not there"):
        verify_agreement(saved(model=str(tmp_path / "gone")), **kept)
    for arguments, said in (
        ((saved(), "--data", "x.npz"), "--data is for other models than language models"),
        ((place / "m.gguf", "--text", "a"), "--text is for language models with a certificate"),
        ((place / "m.gguf",), "--data is needed"),
    ):
        result = call("verify", *arguments)
        assert result.exit_code == 2 and said in result.output
    replace(artifact, attached={}).save(tmp_path / "m.tw")
    with pytest.raises(InputError, match="the model has no certificate"):
        verify_agreement(tmp_path / "m.tw")


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_drop", "a"), ("model", 5), ("text", None), ("kinds", [[]]), ("matrices", {"a": 1}), ("agreement", []),
     ("judged", "x"), ("outcome", {}), ("more", 1), ("schema", 2)],
)  # fmt: skip
def test_certificates_with_fields_of_other_types_are_none(loaded: llm.LanguageModel, field: str, value: Any) -> None:
    assert loaded.certificate is not None
    record = json.loads(json.dumps(loaded.certificate.record()))
    assert AgreementCertificate.of(record, "m.tw") == loaded.certificate
    with pytest.raises(InputError, match="the certificate cannot be read"):
        AgreementCertificate.of({**record, field: value}, "m.tw")


@pytest.mark.parametrize("changed", [{"tokens": 0, "agreed": 0}, {"agreed": -1}, {"agreed": 10**9}, {"tokens": "3"}])
def test_certificates_of_no_tokens_are_none(loaded: llm.LanguageModel, changed: dict[str, Any]) -> None:
    assert loaded.certificate is not None
    record = loaded.certificate.record()
    with pytest.raises(InputError, match="the certificate cannot be read"):
        AgreementCertificate.of({**record, "agreement": {**record["agreement"], **changed}}, "m.tw")


def test_what_is_not_finite_is_null_in_records() -> None:
    """The mean of one divergence has no bound, and that of a NaN is infinite."""
    one = Agreement.of(np.ones(1, bool), np.array([0.5]), 0.95)
    broken = compared(np.full((2, 3), np.nan), np.zeros((2, 3))).agreement(0.95)
    for found in (one, broken):
        text = json.dumps(found.record(), allow_nan=False)
        assert Agreement.from_record(json.loads(text)).divergence == found.divergence
    assert json.loads(json.dumps(one.record()))["divergence_bound"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "m.gguf", "--prompt", "a", "--weights", "auto"), "--weights auto needs --max-drop"),
        (("compile", "m.gguf", "--max-drop", "1%"), "--max-drop needs --weights auto"),
        (("compile", "m.gguf", "--text", "text.txt"), "--text needs --weights auto"),
        (("compile", "text.txt", "--weights", "int8"), "--weights needs a GGUF file or a folder"),
        (("score", "m.gguf", "--of", "m.gguf"), "--of needs --agreement"),
        (("generate", "m.gguf", "--prompt", "a", "--weights", "int3"), "there are float32, float16, bfloat16"),
        (("score", "m.gguf", "none.txt"), "the text cannot be read"),
    ],
)
def test_mistakes_of_commands(
    place: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(place / "cache"))
    result = call(*arguments)
    assert result.exit_code in (1, 2) and said in " ".join(result.output.split()), result.output


def test_a_model_that_says_by_itself_what_it_is_has_no_reference(place: Path, loaded: llm.LanguageModel) -> None:
    with pytest.raises(OptionError, match="there is no reference"):
        loaded.score_text(place / "text.txt", of=place / "text.txt")


def test_scores_of_texts(place: Path, loaded: llm.LanguageModel) -> None:
    """The perplexity is that of `score` piece by piece, and a model agrees with itself."""
    exact = llm.load(place / "m.gguf", threads=1, session=tilewright.Session(place / "cache"))
    text = place / "short.txt"
    text.write_text(SAMPLE[:300])
    found = exact.score_text(text, of=place / "m.gguf", window=40, threads=1)
    tokens = exact.tokenizer.encode(SAMPLE[:300])
    parts = [tokens[k : k + 40] for k in range(0, len(tokens), 40)]
    parts = parts if len(parts[-1]) > 1 else parts[:-1]
    likely = [p for part in parts for p in exact.score(part).log_probabilities]
    assert found.perplexity == pytest.approx(np.exp(-np.mean(likely)))
    assert found.perplexity == pytest.approx(found.reference_perplexity, rel=1e-5)
    assert (found.tokens, found.scored, found.window) == (sum(map(len, parts)), len(likely), 40)
    assert found.agreement is not None and found.agreement.share == 1 and found.agreement.divergence < 1e-9
    assert found.seconds_per_token > 0 and found.record()["agreement"]["share"] == 1
    assert loaded.score_text(text).agreement is None
