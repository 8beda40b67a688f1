"""Writes the tables of README.md and docs/benchmarks.md from bench/results."""

from __future__ import annotations

import argparse

from bench import table


def add_options(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(options: argparse.Namespace) -> int:
    table.write()
    print(f"wrote {table.README} and {table.PAGE}")
    return 0
