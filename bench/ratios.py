"""Which peer is the best, and how we stand to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.peers import OURS
from bench.records import Record, percentile

RIGHT = 1e-3
"""A peer counts as the best only when its relative error is below this."""
RIGHT_IN_FEW_BITS = 0.3
"""The same for networks in bytes: engines round differently, and a rounding more or less is worth that."""
IN_FEW_BITS = "in few bits"
"""What their kind ends with."""


@dataclass(frozen=True)
class Row:
    """A model with a number of threads: the record of each engine that was tried."""

    kind: str
    model: str
    threads: int
    records: Mapping[str, Record]

    @property
    def best(self) -> Record | None:
        """The fastest of the peers that compute the right thing."""
        peers = [r for name, r in self.records.items() if name != OURS and counts(r)]
        return min(peers, key=lambda r: r.median_ms or math.inf, default=None)

    @property
    def ratio(self) -> float | None:
        """Our median over that of the best peer; None where one is missing."""
        ours, best = self.records.get(OURS), self.best
        if ours is None or ours.median_ms is None or best is None or not best.median_ms:
            return None
        return ours.median_ms / best.median_ms


def counts(record: Record) -> bool:
    """Whether a record may be the best: it has a time, and the error is known and small."""
    limit = RIGHT_IN_FEW_BITS if record.kind.endswith(IN_FEW_BITS) else RIGHT
    return (
        record.median_ms is not None and record.relative_error is not None and record.relative_error < limit
    )


def rows(records: Iterable[Record]) -> list[Row]:
    """Records of the same model and threads together, in the order in which models were first met."""
    found: dict[tuple[str, str, int], dict[str, Record]] = {}
    for record in records:
        found.setdefault((record.kind, record.model, record.threads), {})[record.engine] = record
    return [Row(*key, engines) for key, engines in found.items()]


def ratios(found: Iterable[Row]) -> list[float]:
    """The ratios of all rows that have one."""
    return [row.ratio for row in found if row.ratio is not None]


def geometric_mean(values: Sequence[float]) -> float | None:
    """None without values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def quantiles(
    values: Sequence[float], shares: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
) -> list[float]:
    """The values at these shares; empty without values."""
    return [percentile(values, share) for share in shares] if values else []


def worst(found: Iterable[Row], count: int) -> list[Row]:
    """The rows with the largest ratios, the largest first."""
    measured = [row for row in found if row.ratio is not None]
    return sorted(measured, key=lambda row: row.ratio or 0.0, reverse=True)[:count]
