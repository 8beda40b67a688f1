"""All engines on models of the zoo, in turns."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import ratios
from bench.cases import cases_of_folder
from bench.commands import measuring
from bench.commands.summary import summary_of_ratios
from bench.zoo import group_of, names_of


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="names, `networks`, `operators` [networks]"
    )
    parser.add_argument("--zoo", type=Path, help="folder of NAME.onnx with NAME.npz [the one `zoo` fills]")
    measuring.add_options(parser, "all")


def run(options: argparse.Namespace) -> int:
    folder = options.zoo or options.home / "zoo"
    names = names_of(options.models or ["networks"])
    cases = [case for name in names for case in cases_of_folder(folder, [name], group_of(name))]
    found = measuring.measure_all(cases, options)
    print(summary_of_ratios(ratios.rows(found)))
    return 0
