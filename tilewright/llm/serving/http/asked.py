"""From the fields of a request to what the scheduler takes: tokens of prompts, and how answers are made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.llm.generation import Wanted
from tilewright.llm.model import LanguageModel
from tilewright.llm.serving.http.fields import (
    AnswerFields,
    ChatFields,
    CompletionFields,
    NamedTool,
    ResponseFormat,
)
from tilewright.llm.serving.http.problems import RefusedError, refused
from tilewright.llm.serving.http.tools import schema_of
from tilewright.llm.serving.requests import AnswerRequest, wrong_size

_DEFAULT_TOKENS = 16
"""Of a completion, as OpenAI has it; a chat may go on to the end of the context."""
_SLACK = 4
"""By how much a normaliser of a vocabulary may shorten a text."""
_SETTINGS = (
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
)


@dataclass(frozen=True)
class RequestReader:
    """Makes requests for a model whose sequences have `context` positions."""

    model: LanguageModel
    context: int

    def completions(self, fields: CompletionFields, client: str) -> list[tuple[str, AnswerRequest]]:
        """A request for each prompt, with the text that its answers begin with."""
        if fields.suffix:
            raise RefusedError("'suffix' is not supported: this model continues texts", param="suffix")
        if fields.best_of not in (None, fields.n or 1):
            raise RefusedError("'best_of' is not supported beyond 'n'", param="best_of")
        if fields.echo and fields.logprobs is not None:
            raise RefusedError(
                "'echo' has no log probabilities of the prompt: leave 'logprobs' out", param="logprobs"
            )
        prompts = self.prompts(fields.prompt, "prompt")
        if len(prompts) * (fields.n or 1) > 128:
            raise RefusedError("a request has at most 128 answers together", param="prompt")
        most = _DEFAULT_TOKENS if fields.max_tokens is None else fields.max_tokens
        wanted = self._wanted(fields, most, fields.logprobs, {})
        echoed = [self._echoed(tokens) if fields.echo else "" for tokens in prompts]
        return [
            (text, AnswerRequest(tokens, wanted, client))
            for text, tokens in zip(echoed, prompts, strict=True)
        ]

    def chat(self, fields: ChatFields, client: str) -> AnswerRequest:
        """The request of a chat."""
        if fields.top_logprobs is not None and not fields.logprobs:
            raise RefusedError("'top_logprobs' needs 'logprobs': true", param="top_logprobs")
        told = (fields.top_logprobs or 0) if fields.logprobs else None
        most = fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens
        wanted = self._wanted(fields, most, told, _form(fields))
        variables = dict(fields.chat_template_kwargs or {})
        for name in ("messages", "written", "add_generation_prompt"):
            if name in variables:
                raise RefusedError(f"'{name}' is no variable for templates", param="chat_template_kwargs")
        if fields.tools and fields.tool_choice != "none":
            variables["tools"] = [tool.model_dump(exclude_none=True) for tool in fields.tools]
        messages = [_message(message, n) for n, message in enumerate(fields.messages)]
        self._check_size(sum(len(json.dumps(m, ensure_ascii=False)) for m in messages), "messages")
        try:
            tokens = self.model.tokens(messages, **variables)
        except Exception as error:
            raise refused(error, "messages") from error
        return AnswerRequest(self._checked(tokens, "messages"), wanted, client)

    def prompts(self, given: str | Sequence[Any], name: str) -> list[np.ndarray]:
        """The tokens of one text, of several, of one list of tokens, or of several."""
        if not given:
            raise RefusedError(f"'{name}' is empty: give at least one character", param=name)
        several: Sequence[Any] = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        return [self._prompt(prompt, name) for prompt in several]

    def _prompt(self, prompt: str | list[int], name: str) -> np.ndarray:
        if isinstance(prompt, str):
            self._check_size(len(prompt), name)
            try:
                prompt = self.model.tokens(prompt)
            except Exception as error:
                raise refused(error, name) from error
        size = self.model.tokenizer.size
        wrong = next((token for token in prompt if not 0 <= token < size), None)
        if wrong is not None:
            raise RefusedError(f"there is no token {wrong}: the vocabulary has {size}", param=name)
        return self._checked(prompt, name)

    def _checked(self, tokens: Sequence[int], name: str) -> np.ndarray:
        if not 0 < len(tokens) <= self.context:
            raise refused(wrong_size(len(tokens), self.context), name)
        return np.array(tokens, np.int64)

    def _check_size(self, characters: int, name: str) -> None:
        """A text that is far too long is refused before tokens are made of it."""
        least = characters // (self._longest * _SLACK)
        if least > self.context:
            raise refused(wrong_size(least, self.context, least=True), name)

    @cached_property
    def _longest(self) -> int:
        """Bytes of a token."""
        words = self.model.tokenizer
        return max((len(words.piece(n) or words.control_name(n)) for n in range(words.size)), default=1) or 1

    def _echoed(self, tokens: np.ndarray) -> str:
        return self.model.tokenizer.decode(tokens.tolist())

    def _wanted(
        self, fields: AnswerFields, max_tokens: int | None, told: int | None, form: Mapping[str, Any]
    ) -> tuple[Wanted, ...]:
        """How each of the answers is made; their seeds follow each other where one is given."""
        forms = {**form, **{name: value for name in ("grammar", "regex") if (value := getattr(fields, name))}}
        if len(forms) > 1:
            names = "' or '".join(forms)
            raise RefusedError(f"an answer has one form: '{names}'", param="response_format")
        how: dict[str, Any] = {name: getattr(fields, name) for name in _SETTINGS}
        how["temperature"] = 1.0 if fields.temperature is None else fields.temperature
        how["logit_bias"] = _bias(fields.logit_bias, self.model.tokenizer.size)
        how |= {
            "max_tokens": max_tokens,
            "stop": fields.stop,
            "log_probabilities": told,
            "ends": not fields.ignore_eos,
        }
        seeds = [None if fields.seed is None else (fields.seed + n) % 2**64 for n in range(fields.n or 1)]
        try:
            return tuple(self.model.wanted(**how, **forms, seed=seed) for seed in seeds)
        except Exception as error:
            raise refused(error, next(iter(form), None) and "response_format") from error


def _bias(given: Mapping[str, float] | None, size: int) -> dict[int, float] | None:
    found = {}
    for name, value in (given or {}).items():
        token = int(name) if name.isascii() and name.isdigit() and len(name) < 20 else -1
        if not 0 <= token < size or not abs(value) <= 100:
            raise RefusedError(
                f"Invalid value for 'logit_bias': give numbers of tokens below {size} with -100 to 100",
                param="logit_bias",
                code="invalid_value",
            )
        found[token] = value
    return found or None


def _form(fields: ChatFields) -> dict[str, Any]:
    """The schema that an answer keeps, if there is one."""
    choice = fields.tool_choice
    if choice not in (None, "none", "auto"):
        tools = [tool.function.model_dump() for tool in fields.tools or ()]
        if isinstance(choice, NamedTool):
            tools = [tool for tool in tools if tool["name"] == choice.function.name]
        if not tools:
            raise RefusedError("'tool_choice' names no function of 'tools'", param="tool_choice")
        return {"schema": schema_of(tools)}
    return _formatted(fields.response_format)


def _formatted(response: ResponseFormat | None) -> dict[str, Any]:
    if response is None or response.type == "text":
        return {}
    if response.type == "json_object":
        return {"schema": {"type": "object"}}
    if response.json_schema is None or response.json_schema.schema_ is None:
        raise RefusedError(
            "Missing required parameter: 'response_format.json_schema.schema'.",
            param="response_format.json_schema.schema",
            code="missing_required_parameter",
        )
    return {"schema": response.json_schema.schema_}


def _message(message: Mapping[str, Any], n: int) -> dict[str, Any]:
    """As templates have it: texts in place of parts, and arguments of calls as objects."""
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "developer", "user", "assistant", "tool", "function"):
        raise RefusedError(
            f"Invalid value for 'messages[{n}].role': it is system, developer, user, assistant or tool",
            param=f"messages[{n}].role",
            code="invalid_value",
        )
    if content is None and role != "assistant":
        raise RefusedError(
            f"Missing required parameter: 'messages[{n}].content'.",
            param=f"messages[{n}].content",
            code="missing_required_parameter",
        )
    found = {**message, "role": "system" if role == "developer" else role, "content": _text(content, n)}
    if message.get("tool_calls"):
        found["tool_calls"] = [
            _said_call(call, n) for call in _listed(message["tool_calls"], n, "tool_calls")
        ]
    return found


def _text(content: Any, n: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = _listed(content, n, "content")
    wrong = next(
        (p for p in parts if not (isinstance(p.get("text"), str) and p.get("type") in ("text", "refusal"))),
        None,
    )
    if wrong is not None:
        raise RefusedError(
            f'Invalid value for \'messages[{n}].content\': this model takes texts, {{"type": "text", "text": ...}}',
            param=f"messages[{n}].content",
            code="invalid_value",
        )
    return "".join(part["text"] for part in parts)


def _said_call(call: Mapping[str, Any], n: int) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RefusedError(
            f"Invalid value for 'messages[{n}].tool_calls': a call has a function with a name",
            param=f"messages[{n}].tool_calls",
            code="invalid_value",
        )
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # templates write what it is
            arguments = json.loads(arguments or "{}")
    return {**call, "function": {**function, "arguments": arguments}}


def _listed(value: Any, n: int, name: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise RefusedError(
            f"Invalid value for 'messages[{n}].{name}': it is a list of objects",
            param=f"messages[{n}].{name}",
            code="invalid_value",
        )
    return value
