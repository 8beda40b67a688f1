"""Models with symbolic dims beside the same ones with known dims: time of a call and of compiling."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import sizes
from bench.cases import cases_of_folder
from bench.commands import measuring
from bench.zoo import group_of, names_of
from tilewright.session import Session


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="names, `networks`, `operators` [networks]"
    )
    parser.add_argument("--zoo", type=Path, help="folder of NAME.onnx with NAME.npz [the one `zoo` fills]")
    parser.add_argument(
        "--threads", default="1", type=measuring.numbers, metavar="NUMBERS", help="such as 1,2 [1]"
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of each variant; 0 only compiles [7]")
    parser.add_argument("--turn", type=float, default=0.15, help="seconds of a turn at least [0.15]")
    measuring.add_places(parser)


def run(options: argparse.Namespace) -> int:
    folder = options.zoo or options.home / "zoo"
    session = Session(options.home / "cache" / "sizes")
    rows = []
    for name in names_of(options.models or ["networks"]):
        (case,) = cases_of_folder(folder, [name], group_of(name))
        rows += sizes.measure(case, options.threads, options.rounds, options.turn, session)
        print(
            f"{name}: " + ", ".join(f"{v} {ms:.3f} ms" for row in rows[-1:] for v, ms in row.ms.items()),
            flush=True,
        )
    print(sizes.table(rows))
    return 0
