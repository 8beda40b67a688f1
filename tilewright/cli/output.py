"""What commands print: tables for people, JSON data for programs, and one log for both."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

WIDTH = 100_000
"""Of lines that no terminal limits: a program reads them."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON data, for programs.")


def console() -> Console:
    """The standard output, as wide as the terminal, or as its lines where there is none."""
    found = Console(highlight=False, soft_wrap=True)
    if not found.is_terminal:
        found.width = WIDTH
    return found


def print_json(record: Mapping[str, Any]) -> None:
    """One object, of what JSON has: numbers of NumPy become Python's, and all else texts."""
    click.echo(json.dumps(record, indent=1, default=_plain))


def _plain(value: Any) -> Any:
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "size", 1) == 1 else str(value)


def log_to_stderr(level: int) -> None:
    """Print what the package logs, from this level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger = logging.getLogger("tilewright")
    logger.setLevel(level)
    logger.handlers = [handler]

