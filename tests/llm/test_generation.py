"""Answers of decoders: where they end, what they are made of, beams, scores and conversations."""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any

import numpy as np
import pytest

from tests.llm.decoders import Chance, Scripted
from tests.llm.vocabularies import byte_level_metadata
from tilewright.ir.diag import ModelError
from tilewright.llm.beams import Beam, beam_search
from tilewright.llm.conversation import common_prefix
from tilewright.llm.generation import Wanted
from tilewright.llm.model import LanguageModel
from tilewright.llm.sampling.settings import Sampling
from tilewright.llm.templates import ChatTemplate
from tilewright.llm.tokens.gguf import gguf_tokenizer
from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.runtime.errors import ExecutionError, InputError, OptionError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer() -> Tokenizer:
    return gguf_tokenizer(byte_level_metadata(), "x.gguf")


def template() -> ChatTemplate:
    return ChatTemplate(CHATML, {}, "x.gguf")


def says(*answers: str, end: bool = True, context: int = 4096) -> LanguageModel:
    """A model with these answers, one after the other."""
    words = tokenizer()
    tokens = [[*words.encode(answer), *([2] if end else [])] for answer in answers]
    return LanguageModel(Scripted(704, tokens, context), words, template())


def chance(vocabulary: int = 704, **given: Any) -> LanguageModel:
    return LanguageModel(Chance(vocabulary, **given), tokenizer(), template())


def test_an_answer_is_the_text_up_to_the_token_that_ends_it() -> None:
    model = says("Paris is in France. 🙂 日本")
    answer = model.answer("Where is Paris?")
    assert answer.text == "Paris is in France. 🙂 日本" and answer.reason == "end"
    assert answer.tokens == tuple(model.tokenizer.encode(answer.text))
    assert answer.prompt_tokens == len(model.tokenizer.encode("Where is Paris?"))
    assert 0 < answer.first_seconds <= answer.seconds
    parts = list(model.stream("Where is Paris?"))
    assert "".join(parts) == answer.text and len(parts) > 5 and "" not in parts


def test_an_answer_ends_where_it_should() -> None:
    text = "one two three four"
    model = says(text)
    tokens = model.tokenizer.encode(text)
    short = model.answer("a b", max_tokens=3)
    assert short.tokens == tuple(tokens[:3]) and short.reason == "length"
    assert model.answer("a b", max_tokens=0).tokens == ()
    stopped = model.answer("a b", stop="ee fo")
    assert (stopped.text, stopped.reason) == ("one two thr", "stop")
    assert model.answer("a b", stop=["three", "two"]).text == "one "
    assert model.answer("a b", stop=["fourteen"]).text == text  # what was held back comes
    endless = model.answer("a b", ends=False, max_tokens=len(tokens) + 3)
    assert endless.tokens == (*tokens, 2, 2, 2) and endless.text == text
    room = says(text, end=False, context=len(model.tokens("a b")) + 2)
    full = room.answer("a b")
    assert full.reason == "context" and len(full.tokens) == 3


def test_half_a_character_at_the_end_is_told_as_one() -> None:
    model = says("a🙂")
    answer = model.answer("b c", max_tokens=2)
    assert answer.text == "a\ufffd"


def test_a_stream_that_is_closed_computes_nothing_more() -> None:
    decoder = Scripted(704, [tokenizer().encode("one two three four")])
    model = LanguageModel(decoder, tokenizer())
    with model.stream("a b") as stream:
        first = next(stream)
    assert list(stream) == [] and stream.answer.text == first and stream.answer.reason == "closed"
    fed = len(stream.fed)
    assert fed == len(model.tokens("a b"))
    assert model.answer("a b").text.startswith(first)  # its decoder begins anew


def test_a_stream_that_another_thread_closes_keeps_its_decoder_until_its_call_is_over() -> None:
    class Waiting(Chance):
        begun, goes_on = threading.Event(), threading.Event()

        def feed(self, tokens: Any) -> np.ndarray:
            self.begun.set()
            assert self.goes_on.wait(60)
            return super().feed(tokens)

    model = LanguageModel(Waiting(704), tokenizer())
    stream = model.stream("the", max_tokens=50)
    thread = threading.Thread(target=lambda: list(stream))
    thread.start()
    assert Waiting.begun.wait(60)
    stream.close()
    idle = list(model._idle)
    Waiting.goes_on.set()
    thread.join(60)
    assert not idle and not thread.is_alive() and len(model._idle) == 1
    assert stream.answer.reason == "closed" and len(stream.answer.tokens) == 1
    assert model.answer("the", max_tokens=5).text == chance().answer("the", max_tokens=5).text


def test_templates_have_what_the_prompt_is_about() -> None:
    with pytest.raises(InputError, match="'messages' is no variable for templates"):
        LanguageModel(Chance(704), tokenizer(), template()).tokens([{"role": "user", "content": "a"}], messages=[])


def test_the_same_seed_gives_the_same_text_alone_in_lists_and_in_threads() -> None:
    model = chance()
    how: dict[str, Any] = {
        "temperature": 1.0,
        "seed": 7,
        "max_tokens": 20,
        "top_p": 0.9,
        "repetition_penalty": 1.2,
    }
    prompts = ["the", "state of", "Hello"]
    alone = [chance().generate(prompt, **how) for prompt in prompts]
    assert model.generate(prompts, **how) == alone
    assert len({*alone}) == 3
    found: dict[int, str] = {}

    def run(n: int) -> None:
        found[n] = model.generate(prompts[n], **how)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n] for n in range(3)] == alone
    fresh = model.answer("the", temperature=1.0, max_tokens=20)
    assert model.answer("the", temperature=1.0, max_tokens=20, seed=fresh.seed).tokens == fresh.tokens
    assert model.answer("the", temperature=1.0, max_tokens=20).tokens != fresh.tokens


def test_log_probabilities_come_with_the_tokens() -> None:
    model = chance()
    answer = model.answer("the", max_tokens=5, log_probabilities=2)
    past = model.tokens("the")
    for drawn in answer.drawn:
        logits = Chance(704).logits_behind(past)[:700].astype(np.float64)
        expected = logits - math.log(np.exp(logits).sum())
        assert drawn.log_probability == pytest.approx(expected[drawn.token], abs=1e-5)
        assert [token for token, _ in drawn.top] == np.argsort(-expected)[:2].tolist()
        past.append(drawn.token)
    assert model.answer("the", max_tokens=1).drawn[0].log_probability is None


def test_scores_are_sums_of_log_probabilities() -> None:
    model = chance()
    tokens = model.tokens("the state of the model")
    expected = []
    for n in range(1, len(tokens)):
        logits = Chance(704).logits_behind(tokens[:n])[:700].astype(np.float64)
        expected.append(logits[tokens[n]] - math.log(np.exp(logits).sum()))
    score = model.score("the state of the model")
    assert score.tokens == tuple(tokens[1:])
    assert score.log_probabilities == pytest.approx(expected, abs=1e-5)
    assert score.log_likelihood == pytest.approx(sum(expected), abs=1e-4)
    assert score.perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-5)
    whole = model.score([*model.tokens("the"), *model.tokens(" state")])
    behind = model.score(" state", after="the")
    assert behind.log_probabilities == whole.log_probabilities[-len(behind.tokens) :]
    with pytest.raises(InputError, match="no token to score"):
        model.score([5])
    with pytest.raises(InputError, match="there is no token 701: the vocabulary has 700"):
        model.score([5, 701])


def test_logits_are_those_of_the_named_tokens() -> None:
    model = chance()
    assert np.array_equal(model.logits("the"), Chance(704).logits_behind(model.tokens("the"))[:700])


def brute_force(
    decoder: Chance, prompt: list[int], length: int, end: int
) -> list[tuple[tuple[int, ...], float]]:
    """All texts of up to `length` tokens by the logarithm of their probability for each token, the best first."""
    found = []
    for size in range(length + 1):
        for tokens in itertools.product(range(decoder.vocabulary), repeat=size):
            ended = size < length
            if end in tokens or (ended and size == length):
                continue
            total, past = 0.0, list(prompt)
            for token in (*tokens, *([end] if ended else [])):
                logits = decoder.logits_behind(past).astype(np.float64)
                total += logits[token] - math.log(np.exp(logits).sum())
                past.append(token)
            found.append((tokens, total / max(size + ended, 1)))
    return sorted(found, key=lambda one: -one[1])


@pytest.mark.parametrize("seed", range(6))
def test_beams_that_are_wide_enough_find_the_best_text(seed: int) -> None:
    decoder = Chance(5, seed=seed)
    best = brute_force(Chance(5, seed=seed), [1, 2], 4, end=0)
    beams = beam_search(decoder, [1, 2], width=500, max_tokens=4, ends=frozenset({0}), size=5)
    assert beams[0].tokens == best[0][0]
    assert beams[0].score(1.0) == pytest.approx(best[0][1], abs=1e-5)
    assert [beam.score(1.0) for beam in beams[:20]] == pytest.approx(
        [score for _, score in best[:20]], abs=1e-5
    )


def test_one_beam_is_the_greedy_text_and_several_are_in_order() -> None:
    prompt = tokenizer().encode("the")
    for seed in range(8):
        greedy = LanguageModel(Chance(704, seed=seed), tokenizer()).answer("the", max_tokens=6, ends=False)
        how: dict[str, Any] = {"max_tokens": 6, "ends": frozenset(), "size": 700}
        (one,) = beam_search(Chance(704, seed=seed), prompt, width=1, **how)
        assert one.tokens == greedy.tokens
        several = beam_search(Chance(704, seed=seed), prompt, width=9, **how)
        scores = [beam.score(1.0) for beam in several]
        assert len({beam.tokens for beam in several}) == 9 and scores == sorted(scores, reverse=True)


def test_beams_share_what_they_have_in_common() -> None:
    decoder = Chance(704)
    beam_search(
        decoder, tokenizer().encode("the state of"), width=4, max_tokens=6, ends=frozenset(), size=700
    )
    assert decoder.fed[:3] == tokenizer().encode("the state of")[:3]
    assert decoder.forks <= 3 * 6


def test_an_answer_may_be_the_best_of_beams() -> None:
    model = says("one two")
    assert model.answer("a b", beams=3).text == "one two"
    assert model.generate("a b", beams=3, stop=" ") == "one"
    with pytest.raises(OptionError, match="beams= takes the most likely text"):
        model.answer("a b", beams=3, temperature=1.0)
    with pytest.raises(OptionError, match="beams=0 is not allowed"):
        model.answer("a b", beams=0)
    assert chance().beams("the", 3, max_tokens=2)[0].log_probability < 0


def test_beams_of_no_tokens_and_beams_that_nothing_ends() -> None:
    model = chance()
    assert model.beams("the state", 3, max_tokens=0) == [Beam((), 0.0, False)]
    answer = model.answer("the state", beams=2, max_tokens=0)
    assert (answer.text, answer.tokens, answer.reason) == ("", (), "length")
    ends = says("one")
    assert ends.answer("the state", beams=1, max_tokens=6).reason == "end"
    endless = ends.answer("the state", beams=1, max_tokens=6, ends=False)
    assert endless.tokens == ends.answer("the state", max_tokens=6, ends=False).tokens and len(endless.tokens) == 6


@pytest.mark.parametrize("wrong", [-1, 2.5, "3", True])
def test_lengths_of_beams_that_are_none_are_told(wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"max_tokens=.* is not allowed: give an integer of at least 0"):
        chance().beams("the state", 2, max_tokens=wrong)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e308, -31, "1", None, True])
def test_penalties_of_lengths_that_are_none_are_told(wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"length_penalty=.* is not allowed: give a number from -30 to 30"):
        chance().beams("the state", 2, max_tokens=3, length_penalty=wrong)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_told_by_beams_and_scores(value: float) -> None:
    class Damaged(Chance):
        def feed(self, tokens: Any) -> np.ndarray:
            found = super().feed(tokens)
            found[3] = value
            return found

    model = LanguageModel(Damaged(704), tokenizer(), template())
    for ask in (lambda: model.answer("the state", beams=2, max_tokens=3), lambda: model.score("the state")):
        with pytest.raises(ExecutionError, match="the model's logits are not finite"):
            ask()


@pytest.mark.parametrize("token", [704, -1, 2**70])
def test_tokens_that_do_not_exist_are_told_whatever_is_asked(token: int) -> None:
    with pytest.raises(InputError, match=f"there is no token {token}: the vocabulary has 704"):
        chance().generate([5, token], repetition_penalty=1.5, max_tokens=2)


def test_chats_are_written_by_the_template_and_answered() -> None:
    model = says("Hello!", "Hello again!")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert model.chat(messages) == "Hello!"
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert model.tokens(messages) == model.tokenizer.encode(text)
    assert model.chat("Hi") == "Hello again!"
    with pytest.raises(InputError, match="has no chat template"):
        LanguageModel(Chance(704), tokenizer()).chat("Hi")
    with pytest.raises(InputError, match="a chat is a list of messages"):
        model.chat([1, 2])  # type: ignore[list-item]


def test_a_conversation_feeds_only_what_is_new() -> None:
    model = says("Paris.", "France.", "Anything.")
    chat = model.conversation([{"role": "system", "content": "Be brief."}])
    wanted = model.wanted(max_tokens=50)
    assert chat.say("Where?", wanted).rest().text == "Paris."
    decoder = chat._decoder
    assert isinstance(decoder, Scripted)
    fed = len(decoder.fed)
    assert chat.say("And that?", wanted).rest().text == "France."
    expected = model.tokens(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Where?"},
            {"role": "assistant", "content": "Paris."},
            {"role": "user", "content": "And that?"},
        ]
    )
    assert decoder.past[: len(expected)] == expected
    # the token that ended the first answer was not fed, nor was what is behind it
    assert len(decoder.fed) - fed == len(expected) - common_prefix(expected, decoder.fed[:fed]) + len(
        model.tokenizer.encode("France.")
    )
    assert [m["content"] for m in chat.messages] == ["Be brief.", "Where?", "Paris.", "And that?", "France."]
    chat.forget()
    assert chat.say("Hi", wanted).rest().text == "Anything." and len(chat.messages) == 2


def test_a_conversation_goes_on_behind_an_answer_that_was_closed_or_failed() -> None:
    model = says("one two three", "four", "five")
    chat = model.conversation()
    with chat.say("a", model.wanted()) as stream:
        part = next(stream)
    assert chat.messages[-1] == {"role": "assistant", "content": part}
    assert chat.say("b", model.wanted()).rest().text == "four"
    broken = chat.say("c", model.wanted())
    chat_decoder = broken._decoder
    chat_decoder.feed = None  # type: ignore[assignment,method-assign]
    with pytest.raises(TypeError):
        next(broken)
    assert chat.messages[-1] == {"role": "assistant", "content": ""}
    assert chat.say("d", model.wanted()).rest().text == "five"


def test_a_conversation_is_as_it_was_where_an_answer_cannot_begin() -> None:
    chat = (model := says("one", "two")).conversation()
    with pytest.raises(InputError, match="logit_bias names the token"):
        chat.say("a", model.wanted(logit_bias={1 << 40: 1.0}))
    assert chat.messages == []
    assert chat.say("b", model.wanted()).rest().text == "one"
    assert [message["content"] for message in chat.messages] == ["b", "one"]


def test_a_conversation_that_is_too_long_is_as_it_was() -> None:
    model = says("ok", context=40)
    chat = model.conversation()
    assert chat.say("a", model.wanted(max_tokens=3)).rest().text == "ok"
    before = list(chat.messages)
    with pytest.raises(InputError, match="but the context has 40 positions"):
        chat.say("far too many words " * 20, model.wanted())
    assert chat.messages == before
    assert chat.say("b", model.wanted(max_tokens=3)).rest().text == "ok"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt has no tokens"),
        ([], "not nothing"),
        (b"text", "not bytes"),
        (5, "not int"),
        (None, "not NoneType"),
        ([1.5], "a prompt is a text"),
        ([1, "a"], "tokens are integers"),
        ("many words " * 40, r"the prompt has \d+ tokens, but the context has 64 positions"),
        ([704], "there is no token 704"),
        ([-1], "there is no token -1"),
        ([{"content": "a"}], 'message 0 has no "role"'),
    ],
)
def test_prompts_that_are_wrong_are_told(prompt: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        chance().answer(prompt)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"max_tokens": -1}, "max_tokens=-1 is not allowed"),
        ({"max_tokens": 1.5}, "max_tokens=1.5 is not allowed"),
        ({"log_probabilities": 101}, "log_probabilities=101 is not allowed"),
        ({"stop": [""]}, "none of them empty"),
        ({"temprature": 1}, "temprature= is no setting of sampling"),
        ({"sampling": 3}, "give a Sampling"),
    ],
)
def test_options_that_are_wrong_are_told(how: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        chance().answer("the", **how)


def test_what_is_no_mapping_of_variables_and_no_function_is_told() -> None:
    with pytest.raises(OptionError, match="template=5 is not allowed"):
        chance().generate("the state", template=5)
    with pytest.raises(OptionError, match="constraint=5 is not allowed"):
        chance().generate("the state", constraint=5)


def test_settings_may_come_as_a_record_or_by_name() -> None:
    model = chance()
    record = Sampling(temperature=1.0, seed=3)
    assert model.generate("the", sampling=record, max_tokens=9) == model.generate(
        "the", temperature=1.0, seed=3, max_tokens=9
    )
    assert model.wanted(sampling=record, seed=4).sampling == Sampling(temperature=1.0, seed=4)
    assert model.wanted() == Wanted()
    with pytest.raises(InputError, match="tools= is for the chat template"):
        model.generate("the", template={"tools": []})
    assert model.generate([[5, 6], [7]], max_tokens=2) == [model.generate([5, 6], max_tokens=2),
                                                          model.generate([7], max_tokens=2)]  # fmt: skip
    assert model.generate(np.array([5, 6]), max_tokens=2) == model.generate([5, 6], max_tokens=2)


def test_a_vocabulary_that_is_too_large_for_the_model_is_told() -> None:
    with pytest.raises(ModelError, match="700 tokens, but the model's embedding has 12 rows"):
        LanguageModel(Chance(12), tokenizer())
