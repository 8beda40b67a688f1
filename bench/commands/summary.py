"""What the commands say of their results at the end."""

from __future__ import annotations

from collections.abc import Sequence

from bench import ratios
from bench.peers import OURS
from bench.ratios import Row

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
WORST = 10


def summary_of_ratios(rows: Sequence[Row]) -> str:
    """Geometric mean and quantiles of ours over the best peer, the worst rows, and what failed."""
    parts = []
    for threads in sorted({row.threads for row in rows}):
        chosen = [row for row in rows if row.threads == threads]
        values = ratios.ratios(chosen)
        mean = ratios.geometric_mean(values)
        if mean is None:
            parts.append(f"{threads} threads: no model ran on ours and on a peer")
            continue
        shares = ", ".join(
            f"{100 * share:.0f} % {value:.2f}"
            for share, value in zip(SHARES, ratios.quantiles(values, SHARES), strict=True)
        )
        parts.append(
            f"{threads} threads, {len(values)} models: ours over the best peer: geometric mean {mean:.3f}; {shares}"
        )
        parts += [_line(row) for row in ratios.worst(chosen, WORST)]
    return "\n".join(parts + _trouble(rows))


def _line(row: Row) -> str:
    best = row.best
    assert best is not None
    about = row.records[OURS].about
    times = f"{row.records[OURS].median_ms:.4g} ms, {best.engine} {best.median_ms:.4g} ms"
    return f"  {row.ratio:5.2f}  {row.model}: {times}{f' ({about})' if about else ''}"


def _trouble(rows: Sequence[Row]) -> list[str]:
    """Engines that failed, and ours where it is wrong."""
    failed = [
        f"  {record.engine} on {row.model}: {record.failure}"
        for row in rows
        for record in row.records.values()
        if record.failure
    ]
    wrong = [
        f"  {row.model}: {ours.relative_error}, peers {_errors(row)}"
        for row in rows
        if (ours := row.records.get(OURS)) is not None and not ours.failure and not ratios.counts(ours)
    ]
    return [
        *(["failed:", *failed] if failed else []),
        *(["relative error of ours above 0.001:", *wrong] if wrong else []),
    ]


def _errors(row: Row) -> str:
    """Those of the peers: stored references may be wrong themselves."""
    errors = [str(r.relative_error) for name, r in row.records.items() if name != OURS and not r.failure]
    return ", ".join(errors) or "failed"
