"""What the commands that measure have in common: options, the plan made of them, and the loop over models."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench import peers, records
from bench.cases import Case
from bench.engine import Timing
from bench.measure import Plan, measure, summary
from bench.peers import OURS
from bench.records import Record
from bench.turns import Rules

BEFORE = "before"
"""What results call ours of another checkout."""

HOME = Path("~/.cache/tilewright-bench").expanduser()


def add_options(parser: argparse.ArgumentParser, default_peers: str) -> None:
    """Those of every command that measures."""
    parser.add_argument(
        "--peers", default=default_peers, type=engine_names, metavar="NAMES",
        help=f"engines beside ours, of {', '.join(peers.names()[1:])}, or `all` [{default_peers}]",
    )  # fmt: skip
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help=f"ours as it is in another checkout too, called `{BEFORE}`",
    )
    parser.add_argument("--threads", default="1", type=numbers, metavar="NUMBERS", help="such as 1,2 [1]")
    parser.add_argument(
        "--out", type=records.output_file, help="append the results here, a line of JSON each"
    )
    add_places(parser)
    parser.add_argument(
        "--python", action="append", default=[], type=assignment, metavar="ENGINE=PATH",
        help="the Python that has this engine [that of `install`; for ours this one]",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=7, help="turns of each engine [7]")
    parser.add_argument("--turn", type=float, default=0.15, help="seconds of a turn at least [0.15]")
    parser.add_argument(
        "--tolerated", type=float, default=0.05,
        help="share of the CPUs that others may take in a turn before it is repeated [0.05]",
    )  # fmt: skip
    parser.add_argument("--cold", action="store_true", help="measure loading with an empty cache too")
    parser.add_argument(
        "--lock", type=Path, help="a file to hold during turns: others that hold it are waited for"
    )
    parser.add_argument(
        "--realtime", action="store_true", help="take turns with real-time priority, where permitted"
    )


def add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--home", type=Path, default=HOME, help=f"folder of environments, models and caches [{HOME}]"
    )


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan; ValueError names the engines that are not installed."""
    chosen = [OURS, *(name for name in options.peers if name != OURS)]
    checkouts = _checkouts(options.against)
    own_python = dict.fromkeys(checkouts, dict(options.python).get(OURS, sys.executable))
    return Plan(
        pythons=pythons(chosen, options.home, dict(options.python)) | own_python,
        checkouts=checkouts,
        cache=options.home / "cache",
        rules=Rules(rounds=options.rounds, tolerated=options.tolerated),
        timing=Timing(least_s=options.turn, most_s=max(2.0, options.turn), realtime=options.realtime),
        cold=options.cold,
        lock=options.lock,
    )


def _checkouts(against: Path | None) -> dict[str, Path]:
    """The other checkout of ours by its name; ValueError for a folder that is none."""
    if against is None:
        return {}
    if not (against / "bench" / "worker.py").is_file():
        raise ValueError(
            f"--against {against}: there is no bench/worker.py in it; give the root of a checkout"
        )
    return {BEFORE: against.resolve()}


def pythons(names: Sequence[str], home: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The interpreter of each engine; ValueError for one that is neither given nor installed."""
    found = {OURS: sys.executable} | {
        name: str(environment(home, name) / "bin" / "python") for name in names[1:]
    }
    found |= {name: path for name, path in given.items() if name in found}
    missing = [name for name, path in found.items() if not Path(path).exists()]
    if missing:
        raise ValueError(
            f"not installed: {', '.join(missing)}; use `python -m bench install {' '.join(missing)}`, "
            f"or --python {missing[0]}=PATH"
        )
    return found


def environment(home: Path, engine: str) -> Path:
    """The folder of an engine's virtual environment."""
    return home / f"venv-{peers.describe(engine).environment}"


def measure_all(cases: Iterable[Case], options: argparse.Namespace) -> list[Record]:
    """Measure, tell, and keep each result as soon as it is there."""
    plan = plan_of(options)
    found: list[Record] = []
    for case in cases:
        for threads in options.threads:
            made = measure(case, threads, plan)
            print(summary(made), flush=True)
            found += made
            for record in made if options.out else ():
                records.write(record, options.out)
    return found


def engine_names(text: str) -> list[str]:
    names = peers.names() if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in peers.names()]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no engine {', '.join(unknown)}: the engines are {', '.join(peers.names())}"
        )
    return names


def numbers(text: str) -> list[int]:
    """The numbers of threads that a user names; ArgumentTypeError for anything else."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of thread counts, such as 1,2")
    return found


def assignment(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or name not in peers.names():
        raise argparse.ArgumentTypeError(
            f"'{text}' is not ENGINE=PATH, with an engine of {', '.join(peers.names())}"
        )
    return name, str(Path(path).expanduser().absolute())
