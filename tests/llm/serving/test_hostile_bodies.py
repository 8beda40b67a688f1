"""Bodies with anything in any place: an answer, or an error that says what is wrong; never a defect."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from tests.llm.serving.servers import CHAT, chance, server
from tests.llm.serving.test_http import TOOLS

BODIES: list[tuple[str, dict[str, Any]]] = [
    ("completions", {
        "model": "m", "prompt": ["the", "of"], "max_tokens": 3, "n": 2, "stream": True, "logprobs": 2, "seed": 1,
        "stop": ["a"], "temperature": 0.5, "top_p": 0.5, "presence_penalty": 1, "frequency_penalty": 1.0,
        "logit_bias": {"5": 1}, "stream_options": {"include_usage": True}, "top_k": 5, "min_p": 0.1, "typical_p": 0.9,
        "repetition_penalty": 1.1, "ignore_eos": True, "echo": False, "best_of": 2, "user": "u",
    }),
    ("completions", {"model": "m", "prompt": [[5, 6], [7]], "max_tokens": 3, "regex": "[a-z]+"}),
    ("chat/completions", {
        "model": "m", "messages": [*CHAT, {"role": "assistant", "content": "x", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "x"}]}],
        "max_completion_tokens": 3, "tools": TOOLS, "tool_choice": "auto", "logprobs": True, "top_logprobs": 2,
        "parallel_tool_calls": True, "metadata": {"a": "b"}, "chat_template_kwargs": {"a": [1]}, "store": False,
    }),
    ("chat/completions", {
        "model": "m", "messages": CHAT, "max_tokens": 3, "stream": True, "response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {
                "type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}}},
    }),
    ("chat/completions", {"model": "m", "messages": CHAT, "max_tokens": 3, "tools": TOOLS, "tool_choice": {
        "type": "function", "function": {"name": "weather"}}}),
    ("embeddings", {"model": "m", "input": ["a", "b"], "encoding_format": "float"}),
]  # fmt: skip
JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2, 128, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, "", "a", "\x00", "\ud800",
    "\u202e\ufdd0", "<|im_end|>", "a" * 5000, [], {}, [[]], [None], [0], [-1, 699], [700], ["a", 1], {"a": 1}, {"": {}},
    [[[[[[]]]]]], {"type": "text"}, {"$ref": "#"}, {"role": "user"}, "{{ 7 * 7 }}", "(" * 2000, "(a{1,999}){1,999}",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places within a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, one in inner for found in places(one, (*path, key)))]


def changed(body: Any, rng: random.Random) -> Any:
    """A copy with junk in some places, or without them, or with more."""
    found = copy.deepcopy(body)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        *path, last = rng.choice(places(found)[1:] or [("model",)])
        at = found
        for key in path:
            at = at[key]
        what = rng.random()
        if what < 0.15:
            del at[last]
        elif what < 0.25 and isinstance(at, dict):
            at[rng.choice(["foo", "", "model", "\ud800", "n"])] = rng.choice(JUNK)
        else:
            at[last] = copy.deepcopy(rng.choice(JUNK))
    return found


@pytest.mark.fresh_seeds(2)
def test_whatever_is_sent_gets_an_answer_or_an_error(fresh_seed: int) -> None:
    rng = random.Random(fresh_seed)
    with server(chance(context=200)) as found:
        for _ in range(150):
            path, body = rng.choice(BODIES)
            given = json.dumps(changed(body, rng))
            head = {"content-type": "application/json"}
            with found.http.stream("POST", f"/v1/{path}", content=given, headers=head) as answer:
                text = answer.read().decode()
            assert answer.status_code in (200, 400, 404, 501), (given, text)
            if answer.status_code != 200:
                error = json.loads(text)["error"]
                assert set(error) == {"message", "type", "param", "code"} and error["message"], given
            assert "internal error" not in text, given
        found.wait(0)
        assert found.post("completions", prompt="the", max_tokens=2).status_code == 200
