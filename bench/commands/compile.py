"""Compile time by stage, cold and from the cache, of models of the zoo or of files."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import compile as compile_time
from bench.commands import measuring
from bench.records import output_file
from bench.zoo import names_of


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names of the zoo or files [networks]")
    parser.add_argument("--zoo", type=Path, help="folder of NAME.onnx [the one `zoo` fills]")
    parser.add_argument("--large", nargs="+", type=int, default=[], help="numbers of nodes of generated models")
    parser.add_argument("--rounds", type=int, default=3, help="cold compilations of each model [3]")
    parser.add_argument("--json", type=output_file, help="write the numbers here too")
    measuring.add_places(parser)


def run(options: argparse.Namespace) -> int:
    if options.large:
        compile_time.measure_large(options.large, options.rounds)
        return 0
    folder = options.zoo or options.home / "zoo"
    files = [name for name in options.models if name.endswith(".onnx")]
    names = names_of([name for name in options.models or ["networks"] if name not in files])
    paths = [*files, *(str(folder / f"{name}.onnx") for name in names)]
    written = ["--json", str(options.json)] if options.json else []
    compile_time.main([*paths, "--rounds", str(options.rounds), *written])
    return 0
