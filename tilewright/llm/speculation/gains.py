"""Whether guessing pays, by the time that it takes: it stops where it does not, and is tried again later."""

from __future__ import annotations

from dataclasses import dataclass

_TRIED = 8
"""Calls with guesses before it is judged."""
_FADE = 0.9
"""What an earlier call counts beside the next one."""
_SHORTEST, _LONGEST = 32, 1024
"""Tokens for which nothing is guessed where it did not pay: twice as many each time."""


@dataclass
class Drafted:
    """What was guessed so far. A call is about the token that is certain and `proposed` ones behind it."""

    calls: int = 0
    proposed: int = 0
    accepted: int = 0
    plain: int = 0
    """Tokens that were fed without a guess, as there was none or it did not pay."""

    def __str__(self) -> str:
        share = f" ({self.accepted / self.proposed:.0%})" if self.proposed else ""
        per_call = f", {1 + self.accepted / self.calls:.2f} tokens a call" if self.calls else ""
        return f"drafts: {self.accepted} of {self.proposed} tokens accepted{share}{per_call}, {self.plain} without"


class Gains:
    """Seconds for a token with guesses and without, as they were lately."""

    def __init__(self) -> None:
        self._plain = 0.0
        self._seconds = self._tokens = 0.0
        self._tried = 0
        self._rest = 0
        self._pause = _SHORTEST

    def wanted(self) -> bool:
        """Whether the next token is worth a guess."""
        if self._rest:
            self._rest -= 1
            return False
        return True

    def plain(self, seconds: float) -> None:
        """A token without a guess took so long."""
        self._plain = seconds if not self._plain else _FADE * self._plain + (1 - _FADE) * seconds

    def guessed(self, seconds: float, tokens: int) -> None:
        """A call with guesses took so long, the guessing with it, and so many tokens came of it."""
        self._seconds = _FADE * self._seconds + seconds
        self._tokens = _FADE * self._tokens + tokens
        self._tried += 1
        if self._tried < _TRIED or not self._plain:
            return
        if self._seconds > self._tokens * self._plain:
            self._rest, self._pause = self._pause, min(2 * self._pause, _LONGEST)
            self._tried, self._seconds, self._tokens = 0, 0.0, 0.0
        else:
            self._pause = _SHORTEST
