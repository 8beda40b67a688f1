"""`tilewright chat`: a conversation with a language model."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.cli.interrupt import interrupts_held
from tilewright.cli.language_models.options import (
    draft_option,
    messages_of,
    model_options,
    opened,
    sampling_fields,
    sampling_options,
    source_argument,
    stats_option,
)
from tilewright.cli.language_models.shown import Shown, say_stats
from tilewright.cli.output import say
from tilewright.runtime.errors import TilewrightError

if TYPE_CHECKING:
    from tilewright.llm.conversation import Conversation
    from tilewright.llm.generation import Wanted
    from tilewright.llm.model import LanguageModel

HELP = """Talk with the language model at PATH: a GGUF file, or a folder with config.json, weights as .safetensors and
tokenizer.json. Its own template makes prompts of what is said.

Each line is a message; answers go to the standard output as they come. Ctrl-C ends an answer, and at the prompt the
conversation, as Ctrl-D does; /clear begins anew, /exit ends. Lines of a pipe or a file are messages, too.

\b
Examples:
  tilewright chat model.gguf
  tilewright chat model.gguf --system "Answer in French." --temperature 0.7
  echo "What is the capital of France?" | tilewright chat model.gguf
"""


@click.command("chat", help=HELP, short_help="Talk with a language model.")
@source_argument
@click.option("--system", metavar="TEXT", help="A message of the system, before all others.")
@sampling_options
@draft_option
@stats_option
@model_options
def command(path: Path, system: str | None, stats: bool, **options: Any) -> None:
    how = sampling_fields(options)
    model = opened(path, options)
    wanted = model.wanted(**how)
    talk = _Talk(model, model.conversation(messages_of(system, [])), wanted, stats)
    interactive = sys.stdin is not None and sys.stdin.isatty()
    for line in _lines(interactive):
        if interactive and line == "/exit":
            return
        if interactive and line == "/clear":
            talk.conversation.forget(messages_of(system, []))
        elif line.strip():
            talk.answer(line, interactive)


class _Talk:
    def __init__(self, model: LanguageModel, conversation: Conversation, wanted: Wanted, stats: bool) -> None:
        self.conversation = conversation
        self._model, self._wanted, self._stats = model, wanted, stats

    def answer(self, text: str, interactive: bool) -> None:
        """Show the answer to a message. What is wrong with it ends no interactive conversation."""
        try:
            self._answer(text, interactive)
        except TilewrightError as error:
            if not interactive:
                raise
            say(f"error: {error}\n  /clear begins anew, /exit ends", err=True)

    def _answer(self, text: str, interactive: bool) -> None:
        stream = self.conversation.say(text, self._wanted)
        shown = Shown()
        with interrupts_held() as interrupted, stream:
            for part in stream:
                shown.part(part)
                if interrupted():
                    break
        shown.end()
        if self._stats:
            say_stats(stream.answer, self._model)
        if interrupted() and not interactive:
            signal.raise_signal(signal.SIGINT)


def _lines(interactive: bool) -> Iterator[str]:
    if not interactive:
        lines = () if sys.stdin is None else sys.stdin.buffer
        yield from (line.decode("utf-8", "surrogateescape").removesuffix("\n") for line in lines)
        return
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # what is no text is told as a message that is wrong
    with contextlib.suppress(ImportError):  # Windows has none
        import readline as readline  # lines can be edited, and come back
    while True:
        try:
            yield input("> ")
        except EOFError:
            click.echo(err=True)
            return
