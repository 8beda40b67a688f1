"""Builds models of the zoo, with random weights of a fixed seed: networks and single operators."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from bench.commands import measuring
from bench.engine import ROOT
from bench.zoo import NETWORKS, OPERATORS, OTHERS, names_of


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names, `networks`, `operators` [both]")
    parser.add_argument(
        "--python", type=Path, help="a Python with PyTorch, timm and transformers [that of `install`]"
    )
    parser.add_argument("--again", action="store_true", help="build also what is there")
    parser.add_argument(
        "--symbolic",
        action="store_true",
        help="with names for sizes that are no channels, in folder `zoo-symbolic`",
    )
    measuring.add_places(parser)


def run(options: argparse.Namespace) -> int:
    folder = options.home / ("zoo-symbolic" if options.symbolic else "zoo")
    names = names_of(options.models or ["networks", "operators"])
    known = (*NETWORKS, *OPERATORS, *OTHERS)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no such model: {', '.join(unknown)}; there are {', '.join(known)}")
    missing = [name for name in names if options.again or not (folder / f"{name}.npz").exists()]
    python = options.python or measuring.environment(options.home, "torch") / "bin" / "python"
    if missing and not python.exists():
        raise ValueError("PyTorch is not installed: use `python -m bench install torch`, or --python PATH")
    for name in missing:  # a process each: a network's weights are freed, and one that fails stops no other
        flags = ["--symbolic"] if options.symbolic else []
        command = [str(python), "-m", "bench.zoo.build", str(folder.resolve()), *flags, name]
        done = subprocess.run(command, cwd=ROOT)
        if done.returncode:
            print(f"{name} could not be built")
    return 0
