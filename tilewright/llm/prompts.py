"""What an answer is asked for with: a text, tokens, the messages of a chat, or a list of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.runtime.errors import InputError

Message = Mapping[str, Any]
"""{"role": "user", "content": "..."}, and what else a template knows."""
Prompt = str | Sequence[int] | Sequence[Message]


class Template(Protocol):
    """Makes one text of the messages of a chat."""

    def render(self, messages: Sequence[Message], /, **variables: Any) -> str:
        """The text behind which the answer begins."""


def prompt_kind(prompt: Any) -> Literal["text", "tokens", "messages", "several"]:
    """InputError for what is none of them."""
    if isinstance(prompt, str):
        return "text"
    if isinstance(prompt, np.ndarray) and prompt.ndim == 1 and prompt.dtype.kind in "iu":
        return "tokens"
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray) and prompt:
        first = prompt[0]
        if isinstance(first, Mapping):
            return "messages"
        if isinstance(first, int | np.integer) and not isinstance(first, bool):
            return "tokens"
        if isinstance(first, str | Sequence | np.ndarray):
            return "several"
    what = "nothing" if isinstance(prompt, Sequence) and not prompt else type(prompt).__name__
    raise InputError(
        f"a prompt is a text, a list of tokens, or a list of messages, not {what}",
        hint='such as "Once", or [{"role": "user", "content": "Hello"}]',
    )


def tokens_of(
    prompt: Any, tokenizer: Tokenizer, template: Template | None, variables: Mapping[str, Any]
) -> list[int]:
    """The tokens of one prompt."""
    kind = prompt_kind(prompt)
    if kind == "several":
        raise InputError("several prompts were given where one is needed", hint="call it for each of them")
    if kind == "messages":
        return chat_tokens(prompt, tokenizer, template, variables)
    if variables:
        raise InputError(
            f"{next(iter(variables))}= is for the chat template, but the prompt is no list of messages"
        )
    if kind == "text":
        return tokenizer.encode(prompt)
    try:
        return [token.__index__() for token in prompt]
    except (AttributeError, TypeError):
        raise InputError("tokens are integers, but the prompt has something else among them") from None


def chat_tokens(
    messages: Sequence[Message], tokenizer: Tokenizer, template: Template | None, variables: Mapping[str, Any]
) -> list[int]:
    """The tokens of a chat; InputError where the model has no template for chats."""
    if template is None:
        raise InputError(
            "the model has no chat template: it was not trained for chats",
            hint="give a text as prompt, or a template of your own (load(..., template=...))",
        )
    for name in ("messages", "written"):
        if name in variables:
            raise InputError(f"'{name}' is no variable for templates: the prompt is what they are about")
    return tokenizer.encode_chat(template.render(messages, written=tokenizer.typed, **variables))
