"""Strings at which a text ends, wherever tokens begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.runtime.errors import OptionError


class StopStrings:
    """Takes a text in parts and gives it on up to the first stop string; what may be the begin of one is held back."""

    def __init__(self, stops: Sequence[str] | str | None) -> None:
        self._stops = checked_stops(stops)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """What can be given with this part; `found` is set when a stop string was, and nothing comes behind it."""
        if self.found is not None:
            return ""
        held = self._held + text
        places = [(place, stop) for stop in self._stops if (place := held.find(stop)) >= 0]
        if places:
            place, self.found = min(places)
            self._held = ""
            return held[:place]
        kept = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - kept :]
        return held[: len(held) - kept]

    def end(self) -> str:
        """What was held back, and was no stop string."""
        held, self._held = self._held, ""
        return held


def checked_stops(stops: Sequence[str] | str | None) -> tuple[str, ...]:
    """OptionError for what is no list of texts, or has an empty one."""
    given: Any = stops
    is_list = isinstance(stops, Sequence) and not isinstance(stops, str)
    found = () if stops is None else tuple(given) if is_list else (given,)
    if not all(isinstance(stop, str) and stop for stop in found):
        raise OptionError(
            f"stop={stops!r:.80} is not allowed: give a text, or a list of texts, none of them empty"
        )
    return found


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text are the begin of the stop string."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
