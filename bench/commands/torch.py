"""Backends of torch.compile on networks of the zoo, side by side."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bench import torch_backends
from bench.commands import measuring
from bench.zoo import names_of


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names, `networks`, `operators` [networks]")
    parser.add_argument(
        "--backends",
        nargs="+",
        choices=torch_backends.BACKENDS,
        default=list(torch_backends.BACKENDS),
        help="those to measure [all]",
    )
    parser.add_argument("--threads", default="1", type=measuring.numbers, metavar="NUMBERS", help="such as 1,2 [1]")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each backend [7]")
    parser.add_argument(
        "--precompile", action="store_true", help="also with TORCH_CACHING_PRECOMPILE, which keeps what is traced"
    )


def run(options: argparse.Namespace) -> int:
    for threads in options.threads:
        found = {}
        for name in names_of(options.models or ["networks"]):
            with tempfile.TemporaryDirectory() as folder:
                found[name] = torch_backends.measure(
                    name, options.backends, threads, options.rounds, Path(folder), options.precompile
                )
            print(torch_backends.table({name: found[name]}), flush=True)
        print(f"\n{threads} threads\n\n{torch_backends.table(found)}", flush=True)
    return 0
