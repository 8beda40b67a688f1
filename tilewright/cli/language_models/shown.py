"""How answers are shown: as they come, as figures, and as JSON data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from tilewright.cli.output import say

if TYPE_CHECKING:
    from tilewright.llm.generation import Answer
    from tilewright.llm.model import LanguageModel


class Shown:
    """Writes parts of a text to the standard output as they come."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._last = ""

    def part(self, text: str) -> None:
        """On a terminal, characters that control it are shown as their codes: models write what they have read."""
        self._last = text or self._last
        click.echo(_harmless(text) if self._terminal else text, nl=False)
        sys.stdout.flush()

    def end(self) -> None:
        """Ends the line, where the text did not."""
        if not self._last.endswith("\n"):
            click.echo()
        self._last = ""


def _harmless(text: str) -> str:
    return "".join(c if c in "\n\t" or " " <= c < "\x7f" or c >= "\xa0" else f"\\x{ord(c):02x}" for c in text)


def say_stats(answer: Answer, model: LanguageModel, loaded_seconds: float | None = None) -> None:
    """Tokens and times of an answer, on the error stream, what caches take, and what was guessed until now."""
    loaded = [] if loaded_seconds is None else [f"loaded in {loaded_seconds:.2f} s"]
    speed = [f"{answer.tokens_per_second:.1f} tokens/s"] if answer.tokens_per_second else []
    parts = [
        *loaded,
        f"{answer.prompt_tokens} tokens of the prompt",
        f"first token after {answer.first_seconds:.3f} s",
        f"{len(answer.tokens)} tokens",
        *speed,
        f"ended by: {answer.reason}",
        f"seed {answer.seed}",
        *([f"caches of {model.position_bytes} bytes for a position"] if model.position_bytes else []),
        *([] if model.drafted is None else [str(model.drafted)]),
    ]
    say(", ".join(parts), err=True)


def record_of(answer: Answer, names: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    """An answer as JSON data."""
    told = answer.drawn and answer.drawn[0].log_probability is not None
    chances = [
        {
            "token": drawn.token,
            "text": names([drawn.token]),
            "log probability": drawn.log_probability,
            "top": [{"token": t, "text": names([t]), "log probability": p} for t, p in drawn.top],
        }
        for drawn in answer.drawn
    ]
    return {
        "text": answer.text,
        "reason": answer.reason,
        "tokens": list(answer.tokens),
        "prompt tokens": answer.prompt_tokens,
        "seed": answer.seed,
        "seconds": answer.seconds,
        "seconds to the first token": answer.first_seconds,
        "tokens per second": answer.tokens_per_second,
        **({"log probabilities": chances} if told else {}),
    }
