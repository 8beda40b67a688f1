"""What commands print: tables for people, JSON data for programs, and one log for both."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from tilewright.runtime.errors import printable

WIDTH = 100_000
"""Of lines that no terminal limits: a program reads them."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON data, for programs; errors too.")


class SafeConsole(Console):
    """Prints texts with the names in them made `printable`, and no word of them as an emoji."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        found = super().render_str(text, **options)
        safe = printable(found.plain)
        if safe == found.plain:
            return found
        return Text(safe, found.style, justify=found.justify, overflow=found.overflow)


def console() -> Console:
    """The standard output, as wide as the terminal, or as its lines where there is none."""
    found = SafeConsole(soft_wrap=True)
    if not found.is_terminal:
        found.width = WIDTH
    return found


def error_console() -> Console:
    """The error stream."""
    return SafeConsole(stderr=True, soft_wrap=True)


def say(text: object, *, err: bool = False) -> None:
    """Print a text as it is, but for names in it that are not `printable`."""
    click.echo(printable(str(text)), err=err)


def print_json(record: Mapping[str, Any]) -> None:
    """One object, of what JSON has: numbers of NumPy become Python's, and all else texts."""
    click.echo(json.dumps(record, indent=1, default=_plain))


def _plain(value: Any) -> Any:
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "size", 1) == 1 else str(value)


def say_program(text: str) -> None:
    """Print the text of a program, with quotations of more than a thousand characters cut, and columns for tabs."""
    shorter = _QUOTED.sub(lambda m: m[0] if len(m[0]) <= 1000 else f"{m[0][:80]}...{m[0][-20:]}", text)
    say(shorter.removesuffix("\n").expandtabs())


_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_to_stderr(level: int) -> None:
    """Print what the package logs, from this level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines("%(name)s: %(message)s"))
    logger = logging.getLogger("tilewright")
    logger.setLevel(level)
    logger.handlers = [handler]

