"""What clients are sent of answers: whole ones, and chunks as they come, in the forms of OpenAI."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tilewright.llm.generation import Reason
from tilewright.llm.sampling.sampler import Drawn
from tilewright.llm.serving.http.tools import HeldText, ToolCall, calls_of
from tilewright.llm.serving.requests import AnswerPart
from tilewright.llm.tokens.tokenizer import Tokenizer

_ENDS: dict[Reason, str | None] = {
    "": None,
    "end": "stop",
    "stop": "stop",
    "length": "length",
    "context": "length",
}
_LEAST = -9999.0
"""The logarithm of what is impossible: JSON has no infinity."""


@dataclass
class ToldAnswer:
    """One of the answers of a request, as far as it came."""

    index: int
    prompt_tokens: int
    begin: str = ""
    parts: list[str] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    reason: Reason = ""
    reused: int = 0
    offset: int = 0
    held: HeldText = field(default_factory=HeldText)

    def add(self, progress: AnswerPart) -> None:
        self.parts.append(progress.text)
        self.drawn += progress.drawn
        self.reason = progress.reason
        self.reused = max(self.reused, progress.reused)

    @property
    def text(self) -> str:
        return "".join(self.parts)


class AnswerForm(Protocol):
    """How answers are told. `choices` are those of all prompts of a request, `answers` for each."""

    choices: list[ToldAnswer]
    answers: int

    def begin(self) -> Iterator[dict[str, Any]]:
        """Chunks before all others."""

    def chunks(self, choice: ToldAnswer, progress: AnswerPart) -> Iterator[dict[str, Any]]:
        """Chunks for what has come, which the choice has been told."""

    def last(self) -> Iterator[dict[str, Any]]:
        """Chunks behind all others."""

    def whole(self) -> dict[str, Any]:
        """All at once."""


class _Form:
    """What both forms have."""

    kind = whole_kind = prefix = ""

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        prompts: Sequence[tuple[str, int]],
        answers: int,
        *,
        told: bool,
        usage: bool,
    ) -> None:
        """`prompts`: of each the text that its answers begin with, and its tokens. `told`: log probabilities were asked
        for; `usage`: the last chunk has the numbers of tokens."""
        self.answers = answers
        self.choices = [
            ToldAnswer(n * answers + k, tokens, begin)
            for n, (begin, tokens) in enumerate(prompts)
            for k in range(answers)
        ]
        self._tokenizer, self._told, self._usage = tokenizer, told, usage
        self._head = {
            "id": f"{self.prefix}-{secrets.token_hex(16)}",
            "object": self.kind,
            "created": int(time.time()),
            "model": model,
        }

    def begin(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def last(self) -> Iterator[dict[str, Any]]:
        if self._usage:
            yield {**self._head, "choices": [], "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Tokens of prompts, each once, and of answers."""
        prompts = self.choices[:: self.answers]
        read, written = sum(c.prompt_tokens for c in prompts), sum(len(c.drawn) for c in self.choices)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": sum(c.reused for c in prompts)},
        }

    def _chunk(
        self, choice: ToldAnswer, said: dict[str, Any], logprobs: Any, end: str | None
    ) -> dict[str, Any]:
        one = {"index": choice.index, **said, "logprobs": logprobs, "finish_reason": end}
        return {**self._head, "choices": [one], **({"usage": None} if self._usage else {})}

    def _name(self, token: int) -> bytes:
        return self._tokenizer.piece(token) or self._tokenizer.control_name(token)


class CompletionForm(_Form):
    """Texts."""

    kind = whole_kind = "text_completion"
    prefix = "cmpl"

    def begin(self) -> Iterator[dict[str, Any]]:
        for choice in self.choices:
            if choice.begin:
                choice.offset = len(choice.begin)
                yield self._chunk(choice, {"text": choice.begin}, None, None)

    def chunks(self, choice: ToldAnswer, progress: AnswerPart) -> Iterator[dict[str, Any]]:
        if progress.text or progress.reason or (self._told and progress.drawn):
            logprobs = self._logprobs(choice, progress.drawn)
            yield self._chunk(choice, {"text": progress.text}, logprobs, _ENDS[progress.reason])

    def whole(self) -> dict[str, Any]:
        found = [
            {
                "index": choice.index,
                "text": choice.begin + choice.text,
                "logprobs": self._logprobs(choice, choice.drawn),
                "finish_reason": _ENDS[choice.reason],
            }
            for choice in self.choices
        ]
        return {**self._head, "choices": found, "usage": self.usage()}

    def _logprobs(self, choice: ToldAnswer, drawn: Sequence[Drawn]) -> dict[str, Any] | None:
        if not self._told:
            return None
        texts = [self._text(one.token) for one in drawn]
        offsets = []
        for text in texts:
            offsets.append(choice.offset)
            choice.offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [_number(one.log_probability) for one in drawn],
            "top_logprobs": [self._likely(one.top) for one in drawn],
            "text_offset": offsets,
        }

    def _likely(self, top: Sequence[tuple[int, float]]) -> dict[str, float | None]:
        """By text; of tokens that look alike, such as single bytes of characters, the most likely one."""
        found: dict[str, float | None] = {}
        for token, log_probability in top:
            found.setdefault(self._text(token), _number(log_probability))
        return found

    def _text(self, token: int) -> str:
        return self._name(token).decode("utf-8", "replace")


class ChatForm(_Form):
    """Messages. `functions` are the names of those that the model may call, `forced`: it calls one."""

    kind, whole_kind, prefix = "chat.completion.chunk", "chat.completion", "chatcmpl"

    def __init__(self, *given: Any, functions: Collection[str] = (), **named: Any) -> None:
        super().__init__(*given, **named)
        self._functions = functions

    def begin(self) -> Iterator[dict[str, Any]]:
        for choice in self.choices:
            yield self._chunk(choice, {"delta": {"role": "assistant", "content": ""}}, None, None)

    def chunks(self, choice: ToldAnswer, progress: AnswerPart) -> Iterator[dict[str, Any]]:
        part = choice.held.push(progress.text) if self._functions else progress.text
        calls: list[ToolCall] = []
        if self._functions and progress.reason:
            content, calls = calls_of(choice.text, self._functions)
            part += choice.held.end(content)
        logprobs = self._logprobs(progress.drawn)
        if part or logprobs:
            yield self._chunk(choice, {"delta": {"content": part}}, logprobs, None)
        if calls:
            records = [{"index": n, **call.record()} for n, call in enumerate(calls)]
            yield self._chunk(choice, {"delta": {"tool_calls": records}}, None, None)
        if progress.reason:
            yield self._chunk(choice, {"delta": {}}, None, _end_of(progress.reason, calls))

    def whole(self) -> dict[str, Any]:
        return {
            **self._head,
            "object": self.whole_kind,
            "choices": [self._message(choice) for choice in self.choices],
            "usage": self.usage(),
        }

    def _message(self, choice: ToldAnswer) -> dict[str, Any]:
        content, calls = calls_of(choice.text, self._functions) if self._functions else (choice.text, [])
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message |= {"content": content or None, "tool_calls": [call.record() for call in calls]}
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice.drawn),
            "finish_reason": _end_of(choice.reason, calls),
        }

    def _logprobs(self, drawn: Sequence[Drawn]) -> dict[str, Any] | None:
        if not self._told or not drawn:
            return None
        return {
            "content": [
                {
                    **self._likely(one.token, one.log_probability),
                    "top_logprobs": [self._likely(*top) for top in one.top],
                }
                for one in drawn
            ],
            "refusal": None,
        }

    def _likely(self, token: int, log_probability: float | None) -> dict[str, Any]:
        name = self._name(token)
        return {
            "token": name.decode("utf-8", "replace"),
            "logprob": _number(log_probability),
            "bytes": list(name),
        }


def _end_of(reason: Reason, calls: Sequence[ToolCall]) -> str | None:
    return "tool_calls" if calls else _ENDS[reason]


def _number(log_probability: float | None) -> float | None:
    return None if log_probability is None else max(log_probability, _LEAST)
