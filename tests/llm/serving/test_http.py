"""The server as clients see it: what it answers is what the model says, with the client of OpenAI and without."""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.llm.decoders import Chance
from tests.llm.serving.servers import CHAT, Server, chance, server, slow
from tests.llm.test_generation import says, template, tokenizer
from tests.llm.test_grammars import LESS_SPACE, SCHEMA
from tilewright.llm.model import LanguageModel
from tilewright.llm.serving.http.tools import calls_of
from tilewright.llm.templates import ChatTemplate


@pytest.fixture(scope="module")
def any_server() -> Iterator[Server]:
    with server(chance(context=300)) as found:
        yield found


def likely(**given: Any) -> dict[str, Any]:
    return {"temperature": 0, "max_tokens": 20, **given}


# what is answered


def test_completions_are_what_the_model_says(any_server: Server) -> None:
    model, client = chance(), any_server.openai()
    found = client.completions.create(model="m", prompt="the state of", temperature=0, max_tokens=20)
    answer = model.answer("the state of", max_tokens=20)
    assert found.choices[0].text == answer.text and found.object == "text_completion"
    assert found.choices[0].finish_reason == "length" and found.choices[0].logprobs is None
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (answer.prompt_tokens, 20)
    short = client.completions.create(model="m", prompt=model.tokens("the state of"), temperature=0)
    assert short.choices[0].text == model.generate("the state of", max_tokens=16)


def test_chats_are_what_the_model_says(any_server: Server) -> None:
    client = any_server.openai()
    found = client.chat.completions.create(model="m", messages=CHAT, **likely())
    assert found.choices[0].message.content == chance().chat("Hello", max_tokens=20)
    assert found.choices[0].message.role == "assistant" and found.object == "chat.completion"
    cut: Any = [{"role": "user", "content": [{"type": "text", "text": part} for part in ("Hel", "lo")]}]
    parts = client.chat.completions.create(
        model="m", messages=cut, **likely(max_completion_tokens=20, max_tokens=None)
    )
    assert parts.choices[0].message.content == found.choices[0].message.content
    full = client.chat.completions.create(model="m", messages=CHAT, seed=1)
    assert full.usage is not None and full.choices[0].finish_reason in ("length", "stop")


def test_streams_give_what_is_given_at_once(any_server: Server) -> None:
    client = any_server.openai()
    whole = client.chat.completions.create(model="m", messages=CHAT, n=2, seed=5, max_tokens=30)
    texts, ends, usages = ["", ""], ["", ""], []
    for chunk in client.chat.completions.create(
        model="m", messages=CHAT, n=2, seed=5, max_tokens=30, stream=True, stream_options={"include_usage": True}
    ):
        usages.append(chunk.usage)
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] += choice.finish_reason or ""
    assert texts == [choice.message.content for choice in whole.choices] and ends == ["length", "length"]
    assert texts[0] != texts[1] and usages[:-1] == [None] * (len(usages) - 1)
    assert usages[-1] == whole.usage
    lines = "".join(
        chunk.choices[0].text for chunk in client.completions.create(model="m", prompt="a", **likely(), stream=True)
    )
    assert lines == chance().generate("a", max_tokens=20)


def test_a_stream_is_made_of_events(any_server: Server) -> None:
    found = any_server.post("completions", prompt="a", stream=True, max_tokens=3, seed=1)
    assert found.headers["content-type"].startswith("text/event-stream")
    events = found.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""] and all(event.startswith("data: {") for event in events[:-2])
    records = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert len({record["id"] for record in records}) == 1 and "usage" not in records[0]


def test_a_seed_repeats_an_answer_and_others_do_not(any_server: Server) -> None:
    client = any_server.openai()

    def text(**given: Any) -> str:
        return client.completions.create(model="m", prompt="the", max_tokens=20, **given).choices[0].text

    assert text(seed=7) == text(seed=7) != text(seed=8)
    assert text(seed=7) == chance().generate("the", max_tokens=20, temperature=1.0, seed=7)
    assert text(seed=-1) == text(seed=-1)
    assert len({text() for _ in range(4)}) == 4  # a temperature of 1, as there
    how: dict[str, Any] = {"top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.25, "temperature": 0.7}
    more = {"top_k": 50, "min_p": 0.01, "typical_p": 0.95, "repetition_penalty": 1.1}
    found = text(seed=7, logit_bias={"300": -100, "7": 3.5}, stop=["e", "zz"], extra_body=more, **how)
    assert found == chance().generate(
        "the", max_tokens=20, seed=7, logit_bias={300: -100.0, 7: 3.5}, stop=["e", "zz"], **more, **how
    )


def test_prompts_and_answers_are_numbered(any_server: Server) -> None:
    found = any_server.openai().completions.create(model="m", prompt=["the", "of"], n=2, seed=3, max_tokens=6)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    for n, prompt in enumerate(["the", "of"]):
        for k in range(2):
            text = chance().generate(prompt, max_tokens=6, temperature=1.0, seed=3 + k)
            assert found.choices[2 * n + k].text == text
    assert found.usage is not None and found.usage.completion_tokens == 24
    assert found.usage.prompt_tokens == sum(len(chance().tokens(prompt)) for prompt in ("the", "of"))
    echoed = any_server.openai().completions.create(model="m", prompt="the", echo=True, **likely())
    assert echoed.choices[0].text == "the" + chance().generate("the", max_tokens=20)
    chunks = any_server.openai().completions.create(model="m", prompt="the", echo=True, stream=True, **likely())
    assert "".join(chunk.choices[0].text for chunk in chunks) == echoed.choices[0].text


def test_log_probabilities_are_those_of_the_model(any_server: Server) -> None:
    client = any_server.openai()
    answer = chance().answer("the", max_tokens=8, temperature=1.0, seed=2, log_probabilities=3)
    found = client.completions.create(model="m", prompt="the", max_tokens=8, seed=2, logprobs=3).choices[0].logprobs
    assert found is not None and found.tokens is not None and found.text_offset is not None
    assert found.token_logprobs == pytest.approx([drawn.log_probability for drawn in answer.drawn])
    assert found.top_logprobs is not None and len(found.top_logprobs[0]) == 3
    assert found.text_offset[1:] == [sum(map(len, found.tokens[:n])) for n in range(1, 8)]
    many = chance().answer("the", max_tokens=1, temperature=1.0, seed=2, log_probabilities=100).drawn[0].top
    texts = [(chance().tokenizer.piece(token) or b"?").decode("utf-8", "replace") for token, _ in many]
    (top,) = client.completions.create(
        model="m", prompt="the", max_tokens=1, seed=2, logprobs=100
    ).choices[0].logprobs.top_logprobs  # type: ignore[union-attr]
    assert texts.count("\ufffd") > 1  # bytes of characters look alike: the most likely one is told
    assert top["\ufffd"] == pytest.approx(many[texts.index("\ufffd")][1])
    tokens = chance().tokens(CHAT)
    told = chance().answer(tokens, max_tokens=8, temperature=1.0, seed=2, log_probabilities=1)
    chat = client.chat.completions.create(
        model="m", messages=CHAT, max_tokens=8, seed=2, logprobs=True, top_logprobs=1, stream=True
    )
    content = [one for chunk in chat if (said := chunk.choices[0].logprobs) for one in said.content or ()]
    assert [one.logprob for one in content] == pytest.approx([drawn.log_probability for drawn in told.drawn])
    pieces = [chance().tokenizer.piece(drawn.token) for drawn in told.drawn]
    assert [bytes(one.bytes or ()) for one in content] == pieces
    assert content[0].top_logprobs[0].logprob == pytest.approx(told.drawn[0].top[0][1])


def test_an_answer_keeps_a_schema(any_server: Server) -> None:
    client = any_server.openai()
    less = {str(token): bias for token, bias in LESS_SPACE.items()}
    form: Any = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        found = client.chat.completions.create(
            model="m", messages=CHAT, seed=seed, response_format=form, logit_bias=less  # type: ignore[arg-type]
        )  # fmt: skip
        assert set(json.loads(found.choices[0].message.content or "")) == {"city", "sunny", "days"}
    loose = client.chat.completions.create(
        model="m", messages=CHAT, seed=1, response_format={"type": "json_object"}, logit_bias=less, max_tokens=5  # type: ignore[arg-type]
    )  # fmt: skip
    assert (loose.choices[0].message.content or "").lstrip().startswith("{")
    plain = client.completions.create(model="m", prompt="a", seed=1, extra_body={"regex": "[ab]{4}c"})
    assert plain.choices[0].text[-1] == "c" and len(plain.choices[0].text) == 5


def test_there_is_one_model_and_health(any_server: Server) -> None:
    client = any_server.openai()
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").owned_by == "tilewright"
    with pytest.raises(openai.NotFoundError, match="does not exist: there is 'm'"):
        client.models.retrieve("o/p")
    assert any_server.http.get("/health").json() == {"status": "ok", "running": 0, "waiting": 0}


# tools

TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
        "additionalProperties": False}}},
    {"type": "function", "function": {"name": "time"}},
]  # fmt: skip
WITH_TOOLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}:{{ c.function.arguments.city }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_model_calls_is_told_as_calls(stream: bool) -> None:
    call = '{"name": "weather", "arguments": {"city": "Rome"}}'
    text = f"I look.\n<tool_call>\n{call}\n</tool_call>"
    with server(says(text)) as found:
        how: Any = {"model": "m", "messages": CHAT, "tools": TOOLS, "temperature": 0}
        client = found.openai()
        content, calls, ends = "", [], []
        if stream:
            for chunk in client.chat.completions.create(**how, stream=True):
                choice = chunk.choices[0]
                content += choice.delta.content or ""
                calls += choice.delta.tool_calls or []
                ends += [choice.finish_reason] if choice.finish_reason else []
        else:
            choice = client.chat.completions.create(**how).choices[0]
            content, calls, ends = choice.message.content, choice.message.tool_calls, [choice.finish_reason]
        assert content.strip() == "I look." and ends == ["tool_calls"]
        assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [("weather", {"city": "Rome"})]
        assert calls[0].id.startswith("call_")
        unknown = client.chat.completions.create(**{**how, "tools": TOOLS[1:]}).choices[0]
        assert unknown.message.content == text and unknown.message.tool_calls is None
        without = client.chat.completions.create(**{**how, "tool_choice": "none"}).choices[0]
        assert without.message.content == text and without.finish_reason == "stop"


@pytest.mark.parametrize("text", [
    '{"name": ["weather"], "arguments": {}}', '{"name": {}, "arguments": {}}', '[[]]', '{"name": "weather"}',
    '<tool_call>{"name": ["weather"], "arguments": {}}</tool_call>', '[{"name": "weather", "arguments": [1]}]',
])  # fmt: skip
def test_what_looks_like_a_call_and_is_none_is_a_text(text: str) -> None:
    assert calls_of(text, {"weather"}) == (text, [])


def test_templates_see_tools_and_calls() -> None:
    model = LanguageModel(Chance(704, context=4096), tokenizer(), ChatTemplate(WITH_TOOLS, {}, "x"))
    called = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages: Any = [*CHAT, {"role": "assistant", "content": None, "tool_calls": [called]},
                     {"role": "tool", "tool_call_id": "1", "content": "sunny"}]  # fmt: skip
    with server(model) as found:
        answer = found.openai().chat.completions.create(model="m", messages=messages, tools=TOOLS, **likely())
        text = json.dumps(TOOLS) + "[user]Hello[assistant]weather:Rome[tool]sunny"
        assert answer.usage is not None and answer.usage.prompt_tokens == len(model.tokenizer.encode_chat(text))
        none = found.openai().chat.completions.create(
            model="m", messages=CHAT, tools=TOOLS, tool_choice="none", **likely()
        )
        assert none.usage is not None
        assert none.usage.prompt_tokens == len(model.tokenizer.encode_chat("[user]Hello"))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_can_be_demanded(any_server: Server, choice: Any) -> None:
    less = {str(token): bias for token, bias in LESS_SPACE.items()}
    only = TOOLS if isinstance(choice, dict) else TOOLS[:1]
    found = any_server.openai().chat.completions.create(
        model="m", messages=CHAT, tools=only, tool_choice=choice, seed=1, logit_bias=less  # type: ignore[arg-type]
    )  # fmt: skip
    (call,) = found.choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert found.choices[0].message.content is None and found.choices[0].finish_reason == "tool_calls"


# embeddings


def test_embeddings_are_not_there_where_the_model_has_none(any_server: Server) -> None:
    found = any_server.post("embeddings", input="a")
    assert found.status_code in (400, 501) and "no embeddings" in found.json()["error"]["message"]


def test_embeddings_are_the_models() -> None:
    model = chance(context=50)
    model.embed = lambda tokens: np.array([len(tokens), sum(tokens)], np.float32)  # type: ignore[attr-defined]
    with server(model) as found:
        made = found.openai().embeddings.create(model="m", input=["the state", "of"])  # asks for base64
        expected = [[len(t), sum(t)] for t in (model.tokens("the state"), model.tokens("of"))]
        assert [one.embedding for one in made.data] == expected
        assert made.usage.prompt_tokens == expected[0][0] + expected[1][0]
        plain = found.post("embeddings", input=[[5, 6], [7]], encoding_format="float").json()
        assert [one["embedding"] for one in plain["data"]] == [[2, 11], [1, 7]]
        coded = found.post("embeddings", input=[5, 6], encoding_format="base64").json()["data"][0]["embedding"]
        assert np.frombuffer(base64.b64decode(coded), "<f4").tolist() == [2, 11]
        assert found.post("embeddings", input="a", dimensions=1).json()["error"]["param"] == "dimensions"
        assert found.post("embeddings", input="a" * 999).json()["error"]["code"] == "context_length_exceeded"
        assert found.post("embeddings", input=[]).status_code == 400
        assert found.post("embeddings", input=[[5]] * 2048).status_code == 200
        assert "at most 2048 texts" in found.post("embeddings", input=["a"] * 2049).json()["error"]["message"]
        model.embed = lambda tokens: 1 / 0  # type: ignore[attr-defined]
        assert found.post("embeddings", input="a").status_code == 500


TYPE = {"content-type": "application/json"}


def test_embeddings_end_when_the_client_leaves() -> None:
    model, begun, made = chance(context=50), threading.Event(), []

    def embed(tokens: list[int]) -> np.ndarray:
        begun.set()
        time.sleep(0.01)
        made.append(tokens)
        return np.ones(2, np.float32)

    model.embed = embed  # type: ignore[assignment]
    with server(model) as found:
        client = http.client.HTTPConnection(found.url.removeprefix("http://"))
        client.request("POST", "/v1/embeddings", json.dumps({"model": "m", "input": [[5]] * 1000}), TYPE)
        assert begun.wait(60)
        client.close()
        assert found.post("embeddings", input=[[6]]).status_code == 200  # whose turn comes when the other has ended
        count = len(made)
        time.sleep(0.1)
        assert len(made) == count < 500


# what is wrong

CHATS, TEXTS = "chat/completions", "completions"
WRONG: list[tuple[str, dict[str, Any], int, str | None, str]] = [
    (TEXTS, {"prompt": "a", "model": "gpt"}, 404, "model", "does not exist: there is 'm'"),
    (TEXTS, {"prompt": "a", "model": 5}, 400, "model", "valid string"),
    (TEXTS, {}, 400, "prompt", "Missing required parameter: 'prompt'."),
    (TEXTS, {"prompt": None}, 400, "prompt", "Invalid value"),
    (TEXTS, {"prompt": ""}, 400, "prompt", "is empty"),
    (TEXTS, {"prompt": []}, 400, "prompt", "is empty"),
    (TEXTS, {"prompt": [""]}, 400, "prompt", "0 tokens"),
    (TEXTS, {"prompt": [[1], "a"]}, 400, "prompt", "Invalid value"),
    (TEXTS, {"prompt": [704]}, 400, "prompt", "there is no token 704"),
    (TEXTS, {"prompt": [-1]}, 400, "prompt", "there is no token -1"),
    (TEXTS, {"prompt": "\ud800"}, 400, "prompt", "is no character"),
    (TEXTS, {"prompt": "the " * 400}, 400, "prompt", "but there is room for 1 to 300"),
    (TEXTS, {"prompt": "the " * 90000}, 400, "prompt", "has at least"),
    (TEXTS, {"prompt": [5] * 301}, 400, "prompt", "301 tokens"),
    (TEXTS, {"prompt": ["a"] * 129}, 400, "prompt", "at most 128 answers"),
    (TEXTS, {"prompt": "a", "suffix": "b"}, 400, "suffix", "not supported"),
    (TEXTS, {"prompt": "a", "best_of": 3}, 400, "best_of", "not supported"),
    (TEXTS, {"prompt": "a", "echo": True, "logprobs": 1}, 400, "logprobs", "leave 'logprobs' out"),
    (TEXTS, {"prompt": "a", "temperature": "1"}, 400, "temperature", "valid number"),
    (TEXTS, {"prompt": "a", "temperature": 2.5}, 400, "temperature", "less than or equal to 2"),
    (TEXTS, {"prompt": "a", "temperature": 1e999}, 400, None, "no number of JSON"),
    (TEXTS, {"prompt": "a", "top_p": 0}, 400, "top_p", "greater than 0"),
    (TEXTS, {"prompt": "a", "n": 129}, 400, "n", "less than or equal to 128"),
    (TEXTS, {"prompt": "a", "max_tokens": -1}, 400, "max_tokens", "greater than or equal to 0"),
    (TEXTS, {"prompt": "a", "max_tokens": True}, 400, "max_tokens", "valid integer"),
    (TEXTS, {"prompt": "a", "max_tokens": 1.5}, 400, "max_tokens", "valid integer"),
    (TEXTS, {"prompt": "a", "seed": 2**70}, 400, "seed", "less than"),
    (TEXTS, {"prompt": "a", "stop": ""}, 400, None, "stop='' is not allowed"),
    (TEXTS, {"prompt": "a", "stop": 5}, 400, "stop", "valid string"),
    (TEXTS, {"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias", "numbers of tokens below 700"),
    (TEXTS, {"prompt": "a", "logit_bias": {"9" * 30: 1}}, 400, "logit_bias", "numbers of tokens"),
    (TEXTS, {"prompt": "a", "logit_bias": {"5": 101}}, 400, "logit_bias", "-100 to 100"),
    (TEXTS, {"prompt": "a", "foo": 1}, 400, "foo", "Unrecognized request argument supplied: foo"),
    (TEXTS, {"prompt": "a", "stream_options": {}}, 400, "stream_options", "needs 'stream'"),
    (TEXTS, {"prompt": "a", "regex": "["}, 400, None, "the regular expression cannot be kept"),
    (TEXTS, {"prompt": "a", "regex": "a", "grammar": "b"}, 400, "response_format", "one form"),
    (CHATS, {}, 400, "messages", "Missing required"),
    (CHATS, {"messages": []}, 400, "messages", "at least 1 item"),
    (CHATS, {"messages": "Hello"}, 400, "messages", "valid list"),
    (CHATS, {"messages": [{"content": "a"}]}, 400, "messages[0].role", "Invalid value"),
    (CHATS, {"messages": [{"role": "king", "content": "a"}]}, 400, "messages[0].role", "Invalid value"),
    (CHATS, {"messages": [{"role": "user"}]}, 400, "messages[0].content", "Missing required"),
    (CHATS, {"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", "list of objects"),
    (CHATS, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, 400,
     "messages[0].content", "takes texts"),
    (CHATS, {"messages": [*CHAT, {"role": "assistant", "tool_calls": [5]}]}, 400, "messages[1].tool_calls",
     "list of objects"),
    (CHATS, {"messages": [*CHAT, {"role": "assistant", "tool_calls": [{}]}]}, 400, "messages[1].tool_calls",
     "a function with a name"),
    (CHATS, {"messages": [{"role": "user", "content": "the " * 400}]}, 400, "messages", "room for 1 to 300"),
    (CHATS, {"messages": CHAT, "top_logprobs": 2}, 400, "top_logprobs", "needs 'logprobs'"),
    (CHATS, {"messages": CHAT, "tool_choice": "required"}, 400, "tool_choice", "no function of 'tools'"),
    (CHATS, {"messages": CHAT, "tools": [{"type": "x"}]}, 400, "tools", "Invalid value"),
    (CHATS, {"messages": CHAT, "chat_template_kwargs": {"messages": 1}}, 400, "chat_template_kwargs", "no variable"),
    (CHATS, {"messages": CHAT, "response_format": {"type": "xml"}}, 400, "response_format", "Invalid value"),
    (CHATS, {"messages": CHAT, "response_format": {"type": "json_schema"}}, 400, "response_format.json_schema.schema",
     "Missing required"),
    (CHATS, {"messages": CHAT, "response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "object", "properties": {"a": False}, "required": ["a"]}}}}, 400,
     "response_format", "Unsatisfiable schema"),
    (CHATS, {"messages": CHAT, "response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "nonsense"}}}}, 400, "response_format", "schema"),
    (CHATS, {"messages": CHAT, "modalities": ["audio"]}, 400, "modalities", "Invalid value"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "status", "param", "message"), WRONG)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_requests_are_told_what_is_wrong(
    any_server: Server, path: str, fields: dict[str, Any], status: int, param: str | None, message: str, stream: bool
) -> None:
    given = {"model": "m", **({"stream": True} if stream and "stream_options" not in fields else {}), **fields}
    found = any_server.http.post(
        f"/v1/{path}", content=json.dumps(given), headers={"content-type": "application/json"}
    )
    error = found.json()["error"]
    assert (found.status_code, error["param"]) == (status, param) and message in error["message"], error
    assert error["type"] == "invalid_request_error" and set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "kind", "status", "message"),
    [
        (b"{", "application/json", 400, "We could not parse the JSON body"),
        (b"", "application/json", 400, "We could not parse the JSON body"),
        (b"\xff\xfe\xfa", "application/json", 400, "We could not parse the JSON body"),
        (b"[" * 100_000, "application/json", 400, "We could not parse the JSON body"),
        (b'{"model": "m", "prompt": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", "application/json", 400, "JSON"),
        (b'{"model": "m", "prompt": "a", "seed": ' + b"9" * 5000 + b"}", "application/json", 400, "JSON"),
        (b'{"model": "m", "prompt": "a", "top_p": NaN}', "application/json", 400, "NaN is no number of JSON"),
        (b'{"prompt": "a"}', "application/json; charset=utf-8", 400, "you must provide a model parameter"),
        (b"[1]", "application/json", 400, "no object"),
        (b'{"model": "m", "prompt": "a"}', "text/plain", 415, "Content-Type: application/json"),
        (b'{"model": "m", "prompt": "' + b"a" * (5 << 20) + b'"}', "application/json", 413, "more than 4194304 bytes"),
    ],
)
def test_bodies_that_are_none_are_refused(
    any_server: Server, body: bytes, kind: str, status: int, message: str
) -> None:
    found = any_server.http.post("/v1/completions", content=body, headers={"content-type": kind})
    assert found.status_code == status and message in found.json()["error"]["message"], found.text

    def parts() -> Iterator[bytes]:
        yield from (body[n : n + 65536] for n in range(0, len(body), 65536))

    chunked = httpx.Client(base_url=any_server.url).post(
        "/v1/completions", content=parts(), headers={"content-type": kind}
    )
    assert chunked.status_code == status and chunked.json() == found.json()


def test_there_is_nothing_elsewhere(any_server: Server) -> None:
    lost = any_server.http.get("/v1/nothing")
    assert lost.status_code == 404 and lost.json()["error"]["message"] == "Invalid URL (GET /v1/nothing)"
    assert any_server.http.get("/v1/completions").status_code == 405
    assert any_server.http.get("/openapi.json").status_code == 404


def test_a_chat_needs_a_template() -> None:
    with server(LanguageModel(Chance(704), tokenizer())) as found:
        error = found.post(CHATS, messages=CHAT).json()["error"]
        assert error["param"] == "messages" and "no chat template" in error["message"]


def test_variables_of_templates_have_any_names(any_server: Server) -> None:
    for name in ("prompt", "self", "messages_", "given", "variables"):
        found = any_server.post("chat/completions", messages=CHAT, max_tokens=1, chat_template_kwargs={name: 1})
        assert found.status_code == 200, found.text


def test_what_a_template_refuses_is_told() -> None:
    text = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}x"
    with server(LanguageModel(Chance(704), tokenizer(), ChatTemplate(text, {}, "x"))) as found:
        error = found.post(CHATS, messages=[{"role": "developer", "content": "a"}, *CHAT]).json()["error"]
        assert "no system here" in error["message"] and error["param"] == "messages"


def test_keys_are_asked_for() -> None:
    with server(chance(), keys=("first", "second ö")) as found:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic first"},
                        {"authorization": "Bearer"}):  # fmt: skip
            refused = found.http.get("/v1/models", headers=headers)
            assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
            assert found.http.post("/v1/completions", headers=headers, json={}).status_code == 401
        assert found.http.get("/health").status_code == 200
        with pytest.raises(openai.AuthenticationError):
            found.openai("third").models.list()
        assert found.openai("first").models.list().data[0].id == "m"
        for coding in ("utf-8", "latin-1"):
            head = [(b"authorization", "Bearer second ö".encode(coding))]
            assert found.http.get("/v1/models", headers=head).status_code == 200, coding


def test_a_model_that_fails_is_told_and_others_go_on() -> None:
    class Wrong(Chance):
        def feed(self, tokens: Any) -> np.ndarray:
            logits = super().feed(tokens)
            return logits * np.nan if self.past[0] == 7 and self.length > 5 else logits

    with server(LanguageModel(Wrong(704, 300), tokenizer(), template())) as found:
        failed = found.post(TEXTS, prompt=[7, 8], max_tokens=30, ignore_eos=True)
        assert failed.status_code == 500 and "logits are not finite" in failed.json()["error"]["message"]
        stream = found.post(TEXTS, prompt=[7, 8], max_tokens=30, ignore_eos=True, stream=True).text.split("\n\n")
        assert "not finite" in json.loads(stream[-3].removeprefix("data: "))["error"]["message"]
        assert stream[-2:] == ["data: [DONE]", ""] and len(stream) > 4
        with pytest.raises(openai.APIError, match="not finite"):
            for _ in found.openai().completions.create(
                model="m", prompt=[7, 8], max_tokens=30, stream=True, extra_body={"ignore_eos": True}
            ):
                pass
        assert found.post(TEXTS, prompt=[8, 8], max_tokens=30).status_code == 200


# clients that go, and too many of them


def test_a_client_that_goes_away_costs_nothing_more_and_changes_no_byte_of_others() -> None:
    model = slow()
    expected = chance().generate("the state of", max_tokens=60, temperature=1.0, seed=4)
    with server(model, parallel=3) as found:
        results: dict[int, str] = {}

        def ask(n: int) -> None:
            answer = found.openai().completions.create(model="m", prompt="the state of", max_tokens=60, seed=4)
            results[n] = answer.choices[0].text

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for stream in (True, False):
            body = {"model": "m", "prompt": "Hello", "max_tokens": 3000, "stream": stream, "ignore_eos": True}
            client = httpx.Client(base_url=found.url, timeout=60)
            if stream:
                with client.stream("POST", "/v1/completions", json=body) as response:
                    lines = response.iter_lines()
                    assert next(lines).startswith("data: {")
                client.close()
            else:
                with pytest.raises(httpx.ReadTimeout):
                    client.post("/v1/completions", json=body, timeout=0.3)
                client.close()
        for thread in threads:
            thread.join(60)
        assert results == {0: expected, 1: expected}
        found.wait(0)


def test_who_comes_when_the_queue_is_full_is_told_to_come_back() -> None:
    with server(slow(), parallel=1, waiting=1) as found:
        long = {"model": "m", "prompt": "Hello", "max_tokens": 3000, "stream": True, "ignore_eos": True}
        with found.http.stream("POST", "/v1/completions", json=long) as first:
            lines = first.iter_lines()
            next(lines)
            waits = threading.Thread(target=lambda: found.post(TEXTS, prompt="a", max_tokens=2))
            waits.start()
            found.wait(1, 1)
            for stream in (False, True):
                refused = found.post(TEXTS, prompt="b", stream=stream)
                assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
                assert refused.json()["error"]["code"] == "queue_full"
            with pytest.raises(openai.RateLimitError, match="too much is asked for at once"):
                found.openai().completions.create(model="m", prompt="b")
        waits.join(60)
        found.wait(0)
        assert found.post(TEXTS, prompt="b", max_tokens=2).status_code == 200


def test_whoever_is_answered_when_the_server_ends_is_told() -> None:
    with server(slow()) as found:
        body = {"model": "m", "prompt": "Hello", "max_tokens": 3000, "ignore_eos": True}
        late: list[httpx.Response] = []
        waits = threading.Thread(
            target=lambda: late.append(httpx.post(f"{found.url}/v1/completions", json=body, timeout=60))
        )
        waits.start()
        found.wait(1)
        with found.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            found.end()
            *_, last, done = [line for line in lines if line]
        waits.join(60)
        assert done == "data: [DONE]" and "the server ends" in last
        assert late[0].status_code == 503 and "the server ends" in late[0].json()["error"]["message"]
