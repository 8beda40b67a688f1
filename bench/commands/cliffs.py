"""Ours beside ONNX Runtime on networks and operators drawn afresh; what is slower is listed with its kernels."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import ratios
from bench.cases import Case
from bench.cliffs.drawn import make_case
from bench.cliffs.told import kernels_and_remarks
from bench.commands import measuring
from bench.commands.summary import summary_of_ratios
from bench.peers import OURS
from bench.records import Record


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed", type=int, help="cases of the same seed and number are the same [a fresh one]"
    )
    parser.add_argument("--minutes", type=float, help="draw no case after this time [no limit]")
    parser.add_argument("--count", type=int, default=300, help="cases at most [300]")
    parser.add_argument("--first", type=int, default=0, help="number of the first one [0]")
    parser.add_argument("--above", type=float, default=1.1, help="list cases whose ratio is above this [1.1]")
    parser.add_argument("--keep", type=Path, help="leave the models of listed cases in this folder")
    measuring.add_options(parser, "onnxruntime")
    parser.set_defaults(rounds=3, turn=0.05)


def run(options: argparse.Namespace) -> int:
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    print(f"--seed {seed} --first {options.first} repeats these cases", flush=True)
    found: list[Record] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for case in _cases(options, seed, folder):
            made = measuring.measure_all([case], options)
            found += made
            slow = [row.threads for row in ratios.rows(made) if (row.ratio or 0.0) > options.above]
            for threads in slow:
                print("\n".join([f"  {case.about}", *kernels_and_remarks(case, threads)]), flush=True)
            if not (options.keep and slow):
                case.model.unlink()
                case.arrays.unlink()
    rows = ratios.rows(found)
    print(summary_of_ratios(rows))
    print(_shares(ratios.ratios(rows), options.above))
    return 1 if any(r.failure or (r.engine == OURS and not ratios.counts(r)) for r in found) else 0


def _cases(options: argparse.Namespace, seed: int, folder: Path) -> Iterator[Case]:
    begin = time.monotonic()
    for number in range(options.first, options.first + options.count):
        if options.minutes is not None and time.monotonic() - begin > 60 * options.minutes:
            return
        yield make_case(seed, number, folder)


def _shares(found: list[float], above: float) -> str:
    """How many cases are slower, by how much."""
    counts = ", ".join(f"{sum(r > limit for r in found)} above {limit:g}" for limit in (above, 1.5, 3.0))
    return f"of {len(found)} cases {counts}"
