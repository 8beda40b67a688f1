"""Packages that only parts of the room need: the extras `llm`, `grammars` and `serve`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tilewright.ir.diag import UnsupportedError

T = TypeVar("T")

_EXTRA = {"tokenizers": "llm", "jinja2": "llm", "llguidance": "grammars",
          "fastapi": "serve", "pydantic": "serve", "starlette": "serve", "uvicorn": "serve"}  # fmt: skip


def needing_extra(run: Callable[[], T]) -> T:
    """What `run` returns; UnsupportedError that names the extra where a package is not installed."""
    try:
        return run()
    except ModuleNotFoundError as error:
        extra = _EXTRA.get(error.name or "")
        if extra is None:
            raise
        raise UnsupportedError(
            f"the package {error.name} is not installed, which this needs",
            hint=f"pip install 'tilewright[{extra}]'",
        ) from None
