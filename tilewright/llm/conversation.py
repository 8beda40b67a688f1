"""A chat that goes on: what the decoder has been fed stays, and only what is new is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.llm.decoder import Decoder, rewound
from tilewright.llm.generation import Stream, Wanted, check_prompt
from tilewright.llm.prompts import Message, Template, chat_tokens
from tilewright.llm.tokens.tokenizer import Tokenizer


class Conversation:
    """`messages` are those of the chat so far. `fresh` gives a decoder that has been fed nothing."""

    def __init__(
        self,
        fresh: Callable[[], Decoder],
        tokenizer: Tokenizer,
        template: Template | None,
        messages: Sequence[Message] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.messages: list[Message] = list(messages)
        self._fresh, self._tokenizer, self._template = fresh, tokenizer, template
        self._variables = dict(variables or {})
        self._decoder: Decoder | None = None
        self._fed: list[int] = []

    def say(self, text: str, wanted: Wanted) -> Stream:
        """The answer to what a user says, in parts as they come. It becomes a message of the chat when it is over, as
        far as it came. InputError where the chat is longer than the context, or `wanted` names
        tokens that there are none of: the chat is as it was."""
        chat = [*self.messages, {"role": "user", "content": text}]
        tokens = chat_tokens(chat, self._tokenizer, self._template, self._variables)
        decoder = self._decoder or self._fresh()
        check_prompt(tokens, decoder)
        known = min(common_prefix(self._fed, tokens), len(tokens) - 1)
        known = rewound(decoder, known)
        # until the answer is over, and where it fails, nothing is known of the decoder
        self._decoder, self._fed = None, []
        stream: Stream

        def over() -> None:
            self.messages.append({"role": "assistant", "content": stream.answer.text})
            if not stream.failed:
                self._decoder, self._fed = decoder, stream.fed

        stream = Stream(decoder, self._tokenizer, tokens, wanted, known=known, done=over)
        self.messages = chat
        return stream

    def forget(self, kept: Sequence[Message] = ()) -> None:
        """Begin anew, with these messages."""
        self.messages = list(kept)


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens are the same at the begin of both."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
