"""What a slow case is made of: its costliest kernels, and what was not done to it and why."""

from __future__ import annotations

import tilewright
from bench.cases import Case, read_arrays
from tilewright.runtime.errors import TilewrightError

RUNS = 5
KERNELS, REMARKS = 3, 6


def kernels_and_remarks(case: Case, threads: int) -> list[str]:
    """Lines for people: of each kernel its share of the time; remarks on what was missed, the most frequent first."""
    try:
        model = tilewright.compile(case.model, threads=threads, profile=True)
        times = model.profile(read_arrays(case.arrays)[0], RUNS)
    except TilewrightError as error:
        return [f"  {' '.join(str(error).split())}"]
    total = max(sum(time.seconds for time in times), 1e-12)
    costly = sorted(times, key=lambda time: -time.seconds)[:KERNELS]
    lines = [
        f"  {100 * t.seconds / total:3.0f} % {t.kernel}: {1e3 * t.seconds:.3f} ms ({t.node})" for t in costly
    ]
    missed = [r for r in model.report().remarks if r.kind in ("missed", "failed", "warning")]
    texts = [f"{r.stage}: {r.subject}: {r.message}" for r in missed]
    ordered = sorted(dict.fromkeys(texts), key=lambda text: -texts.count(text))
    return lines + [f"    {text}" for text in ordered[:REMARKS]]
