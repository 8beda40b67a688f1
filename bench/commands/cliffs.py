"""Ours beside others on networks and operators drawn afresh, or listed; what is slower is listed with its kernels."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import ratios
from bench.cases import Case
from bench.cliffs import architectures
from bench.cliffs.drawn import make_case
from bench.cliffs.told import kernels_and_remarks
from bench.commands import measuring
from bench.commands.summary import summary_of_ratios
from bench.peers import OURS
from bench.records import Record
from bench.table import markdown


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed", type=int, help="cases of the same seed and number are the same [a fresh one]"
    )
    parser.add_argument("--minutes", type=float, help="draw no case after this time [no limit]")
    parser.add_argument("--count", type=int, default=300, help="cases at most [300]")
    parser.add_argument("--first", type=int, default=0, help="number of the first one [0]")
    parser.add_argument("--above", type=float, default=1.1, help="list cases whose ratio is above this [1.1]")
    parser.add_argument("--keep", type=Path, help="leave the models of listed cases in this folder")
    parser.add_argument(
        "--architectures", type=Path, nargs="?", const=architectures.LISTED, metavar="LIST",
        help="measure those of this file instead, exported once into the folder `architectures` of --home "
        f"[{architectures.LISTED.name}]",
    )  # fmt: skip
    parser.add_argument("--batches", default="1,8", type=measuring.numbers, help="of architectures [1,8]")
    parser.add_argument("--only", default="", metavar="TEXT", help="architectures with this text in their name")
    measuring.add_options(parser, "onnxruntime")
    parser.set_defaults(rounds=3, turn=0.05)


def run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        found = _measured(options, options.keep or Path(scratch))
    rows = ratios.rows(found)
    if options.architectures:
        print(markdown(found))
    print(summary_of_ratios(rows))
    print(_shares(ratios.ratios(rows), options.above))
    return 1 if any(r.failure or (r.engine == OURS and not ratios.counts(r)) for r in found) else 0


def _measured(options: argparse.Namespace, folder: Path) -> list[Record]:
    """Measure the cases one after the other; what is slow is told at once, with its kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = options.architectures is not None
    found: list[Record] = []
    for case in _until(options.minutes, _listed(options) if listed else _drawn(options, folder)):
        made = measuring.measure_all([case], options)
        found += made
        slow = [row.threads for row in ratios.rows(made) if (row.ratio or 0.0) > options.above]
        for threads in slow:
            print("\n".join([f"  {case.about}", *kernels_and_remarks(case, threads)]), flush=True)
        if not (listed or (options.keep and slow)):
            case.model.unlink()
            case.arrays.unlink()
    return found


def _until(minutes: float | None, cases: Iterator[Case]) -> Iterator[Case]:
    """Those that are asked for within this time."""
    begin = time.monotonic()
    while minutes is None or time.monotonic() - begin < 60 * minutes:
        case = next(cases, None)
        if case is None:
            return
        yield case


def _drawn(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    print(f"--seed {seed} --first {options.first} repeats these cases", flush=True)
    return (make_case(seed, n, folder) for n in range(options.first, options.first + options.count))


def _listed(options: argparse.Namespace) -> Iterator[Case]:
    found = architectures.read_list(options.architectures, options.batches)
    chosen = [each for each in found if options.only in str(each)]
    wanted = chosen[options.first : options.first + options.count]
    return architectures.cases(wanted, options.home / "architectures")


def _shares(found: list[float], above: float) -> str:
    """How many cases are slower, by how much."""
    counts = ", ".join(f"{sum(r > limit for r in found)} above {limit:g}" for limit in (above, 1.5, 3.0))
    return f"of {len(found)} cases {counts}"
