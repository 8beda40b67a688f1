"""`tilewright serve`: answers of a language model over HTTP."""

from __future__ import annotations

import contextlib
import ipaddress
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from tilewright.cli.interrupt import interrupts_held
from tilewright.cli.language_models.options import model_options, opened, source_argument
from tilewright.cli.output import say
from tilewright.frontends.decoders import DecoderFrontEnd
from tilewright.frontends.decoders.source import MOST_LANES
from tilewright.ir.diag import UnsupportedError
from tilewright.llm.extras import needing_extra
from tilewright.llm.serving.requests import Limits

if TYPE_CHECKING:
    from tilewright.llm.model import LanguageModel

HELP = """Answer requests over HTTP with the language model at PATH, as OpenAI's interface has them: completions, chats,
embeddings, models; answers as they come, tools, JSON schemas.

Needs the extra `serve` (pip install 'tilewright[serve]'). Ctrl-C ends the server; who waits for an answer is told.

\b
Examples:
  tilewright serve model.gguf
  tilewright serve model.gguf --port 9000 --name my-model --api-key secret
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "model", "messages": [{"role": "user", "content": "Hello!"}]}'
"""
_DEFAULTS = Limits()


@click.command("serve", help=HELP, short_help="Answer requests over HTTP with a language model.")
@source_argument
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen at; 0.0.0.0: all."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any that is free."
)
@click.option("--name", metavar="NAME", help="What clients call the model  [default: PATH's name]")
@click.option(
    "--api-key", "keys", multiple=True, metavar="KEY", envvar="TILEWRIGHT_API_KEY", show_envvar=True,
    help="Answer those alone who send this key, or one of several. Each is a client of its own.",
)  # fmt: skip
@click.option("--parallel", type=click.IntRange(1, 1024), default=_DEFAULTS.parallel, show_default=True,
              help="The most answers that are computed at once.")  # fmt: skip
@click.option("--queue", type=click.IntRange(min=0), default=_DEFAULTS.waiting, show_default=True,
              help="The most that wait; others are refused.")  # fmt: skip
@click.option("--prefixes", type=click.IntRange(0, 1024), default=_DEFAULTS.kept, show_default=True,
              help="The most begins of prompts that are kept for later requests.")  # fmt: skip
@click.option("--piece", type=click.IntRange(min=1), default=_DEFAULTS.piece, show_default=True,
              help="Tokens of prompts that are read between two tokens of other answers.")  # fmt: skip
@click.option("--positions", type=click.IntRange(min=1), metavar="TOKENS",
              help="The most tokens in all caches together  [default: --parallel times the context]")  # fmt: skip
@model_options
def command(
    path: Path,
    host: str,
    port: int,
    name: str | None,
    keys: tuple[str, ...],
    parallel: int,
    queue: int,
    prefixes: int,
    piece: int,
    positions: int | None,
    **options: Any,
) -> None:
    if any(not key.strip() for key in keys):
        raise click.UsageError("--api-key: a key has at least one character")

    def imported() -> Any:
        from tilewright.llm.serving.http import running

        return running

    running = needing_extra(imported)
    limits = Limits(parallel, queue, piece, prefixes, positions)
    listener = running.listening(host, port)
    model = _opened(path, options, parallel)
    called = name or path.stem or str(path)
    address = listener.getsockname()
    place = f"[{address[0]}]" if ":" in address[0] else address[0]

    def started() -> None:
        say(f"{called} at http://{place}:{address[1]}/v1 (Ctrl-C ends it)")
        if not keys and not ipaddress.ip_address(address[0].partition("%")[0]).is_loopback:
            say("warning: others can reach this address, and there is no --api-key", err=True)

    with _ends() as ended:
        running.serve(model, called, listener, limits=limits, keys=keys, ended=ended, started=started)
    say("ended", err=True)


def _opened(path: Path, options: dict[str, Any], parallel: int) -> LanguageModel:
    """The model, for several sequences together where it has a form for them."""
    if parallel > 1 and DecoderFrontEnd().accepts(path):
        with contextlib.suppress(UnsupportedError):
            return opened(path, options, min(parallel, MOST_LANES))
    return opened(path, options)


@contextlib.contextmanager
def _ends() -> Iterator[Callable[[], bool]]:
    """Whether the server was asked to end: by Ctrl-C, or as services are. A second Ctrl-C does not wait."""
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    on_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, note) if on_main else None
    try:
        with interrupts_held() as interrupted:
            yield lambda: asked or interrupted()
    finally:
        if on_main:
            signal.signal(signal.SIGTERM, before)
