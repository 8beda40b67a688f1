"""A long run of one fuzzer, all its failures collected: `python -m tests.fuzz loops --count 20000 --jobs 2`."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator

import click

from tests.fuzz.registry import FUZZERS, Tried
from tests.fuzz.workers import results

PROGRESS_EVERY = 10.0  # seconds


def known(_: click.Context, __: click.Parameter, name: str) -> str:
    """The name of a fuzzer, or its place."""
    if name not in FUZZERS and ":" not in name:
        raise click.BadParameter(f"there are {', '.join(sorted(FUZZERS))}, or module:function")
    return name


@click.command()
@click.argument("name", callback=known)
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True, help="How many seeds.")
@click.option(
    "--seed", type=click.IntRange(0), help="The first seed; the others follow it. Random if left out."
)
@click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), help="Give out no new seed after this time."
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="How many processes.")
@click.option(
    "--limit", type=float, default=300.0, show_default=True, help="Seconds until a seed has failed."
)
def main(name: str, count: int, seed: int | None, minutes: float | None, jobs: int, limit: float) -> None:
    """Run the fuzzer NAME for many seeds, or one at module:function; exits with 1 if any seed finds something."""
    first = random.SystemRandom().randrange(10**6, 10**9) if seed is None else seed
    print(f"{name}: {count} seeds from {first} on (--seed {first} repeats them)", flush=True)
    start = shown = time.monotonic()
    tried: Tried = Counter()
    failed: list[int] = []
    done = 0
    interrupted = False
    seeds = range(first, first + count)
    until = None if minutes is None else start + 60 * minutes
    try:
        for result in results(name, given_out_until(seeds, until), jobs, limit):
            done += 1
            tried.update(result.tried)
            if result.failure is not None:
                failed.append(result.seed)
                print(f"\nseed {result.seed} failed:\n{result.failure}", flush=True)
            if time.monotonic() - shown > PROGRESS_EVERY:
                shown = time.monotonic()
                print(f"{done} of {count} seeds, {len(failed)} failed, {shown - start:.0f} s", flush=True)
    except KeyboardInterrupt:
        interrupted = True
    print(table(tried))
    print(
        f"{name}: {done} seeds from {first} on, {len(failed)} failed{':' if failed else ''}"
        + "".join(f" {s}" for s in sorted(failed))
    )
    sys.exit(130 if interrupted else 1 if failed else 0)


def given_out_until(seeds: range, until: float | None) -> Iterator[int]:
    return itertools.takewhile(lambda _: until is None or time.monotonic() < until, seeds)


def table(tried: Tried) -> str:
    """What was tried how often, a row for each kind and a column for each outcome."""
    kinds, outcomes = (sorted({key[at] for key in tried}) for at in (0, 1))
    width = max(map(len, kinds), default=0)
    head = " ".join([" " * width, *(f"{outcome:>10}" for outcome in outcomes)])
    rows = (" ".join([f"{k:{width}}", *(f"{tried[k, outcome]:>10}" for outcome in outcomes)]) for k in kinds)
    return "\n".join([head, *rows]) if kinds else ""


if __name__ == "__main__":
    main()
