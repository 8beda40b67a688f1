"""Objects that name the nearest attribute when they are asked for one that they lack."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import NoReturn


def nearest(name: str, known: Iterable[str]) -> str:
    """A question for the known name that is most like this one; "" where none is."""
    close = get_close_matches(name, [k for k in known if not k.startswith("_")], 1)
    return f"; did you mean '{close[0]}'?" if close and not name.startswith("_") else ""


class Suggesting:
    """What an attribute that does not exist was meant to be is part of the AttributeError."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r:.80}{nearest(name, dir(self))}")
