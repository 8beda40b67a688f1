"""Who is served next, so that clients share evenly what there is.

Each client has a count of what it was given, and the one with the least is next (start-time fair queueing, Goyal et
al., 1996; over tokens of language models: Sheng et al., 2024, "Fairness in serving large language models"). Who comes
begins where the others are: nothing is saved up by staying away.
"""

from __future__ import annotations

from collections.abc import Iterable


class Shares:
    """Counts of clients by name. Those of clients who could begin anew without an advantage are forgotten."""

    def __init__(self) -> None:
        self._given: dict[str, float] = {}
        self._now = 0.0

    def given(self, client: str) -> float:
        """The count of a client, which orders them."""
        return max(self._given.get(client, 0.0), self._now)

    def charge(self, client: str, cost: float) -> None:
        """The client was given so much."""
        self._given[client] = self.given(client) + cost

    def settle(self, active: Iterable[str]) -> None:
        """These clients want something now, and no others."""
        clients = set(active)
        counts = [self.given(client) for client in clients] or list(self._given.values())
        if counts:
            self._now = max(self._now, min(counts) if clients else max(counts))
        self._given = {client: count for client, count in self._given.items() if count > self._now}

    def __len__(self) -> int:
        return len(self._given)
