"""All engines on one model: start, load, check, take turns, and a record of each."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import machine, records
from bench.cases import Case
from bench.engine import Engine, Timing
from bench.records import Record
from bench.turns import ContestantLost, Rules, take_turns


@dataclass(frozen=True)
class Plan:
    """How to measure: the engines with the Python that runs each, turns, and where engines may cache.

    With `cold` each engine also loads the model with an empty cache before. `lock` is a file that is held while
    engines take turns, so that several measurements on one machine wait for each other. Engines in `checkouts` are ours
    as they are in these folders.
    """

    pythons: Mapping[str, str]
    cache: Path
    rules: Rules = field(default_factory=Rules)
    timing: Timing = field(default_factory=Timing)
    cold: bool = False
    load_timeout_s: float = 900.0
    lock: Path | None = None
    checkouts: Mapping[str, Path] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=machine.facts)


def measure(case: Case, threads: int, plan: Plan) -> list[Record]:
    """A record for each engine of the plan, in its order."""
    with contextlib.ExitStack() as stack:
        cache = plan.cache
        if plan.cold:
            cache = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        blank = Record(
            case.kind,
            case.name,
            threads,
            "",
            about=case.about,
            date=datetime.date.today().isoformat(),
            machine=plan.facts,
        )
        found: dict[str, Record] = {}
        loaded: list[Engine] = []
        for name in plan.pythons:
            record = replace(blank, engine=name)
            try:
                if plan.cold:
                    record = replace(record, cold_load_s=_cold_load(name, case, threads, cache, plan))
                engine = stack.enter_context(_start(name, case, threads, cache, plan))
                record = replace(record, **engine.load(plan.load_timeout_s))
                engine.pause()
                loaded.append(engine)
            except ContestantLost as lost:
                record = replace(record, failure=str(lost))
            found[name] = record
        with _locked(plan.lock):
            standings = take_turns(loaded, plan.rules)
        for engine, standing in zip(loaded, standings, strict=True):
            found[engine.name] = replace(found[engine.name], **records.times(standing))
    return list(found.values())


def _start(name: str, case: Case, threads: int, cache: Path, plan: Plan) -> Engine:
    own = cache / name
    own.mkdir(parents=True, exist_ok=True)
    return Engine(name, plan.pythons[name], case, threads, own, plan.timing, plan.checkouts.get(name))


def _cold_load(name: str, case: Case, threads: int, cache: Path, plan: Plan) -> float:
    """Seconds of loading with an empty cache, which is filled by that."""
    with _start(name, case, threads, cache, plan) as engine:
        seconds: float = engine.load(plan.load_timeout_s)["load_s"]
        return seconds


@contextlib.contextmanager
def _locked(path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def summary(found: Sequence[Record]) -> str:
    """One line for people."""
    cells = [f"{r.engine} {r.failure if r.median_ms is None else f'{r.median_ms:.4g}'}" for r in found]
    return f"{found[0].model}, {found[0].threads} threads: {'; '.join(cells)}" if found else ""
