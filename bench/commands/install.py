"""Makes a virtual environment for each engine."""

from __future__ import annotations

import argparse
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

from bench import peers
from bench.commands import measuring
from bench.peers import OURS


def add_options(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(peers.names()[1:])
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=f"of {known} [all]")
    parser.add_argument(
        "--pip", default="", metavar="OPTIONS", help="more options for pip, such as an index of wheels"
    )
    measuring.add_places(parser)


def run(options: argparse.Namespace) -> int:
    for folder, packages in environments(options.engines, options.home).items():
        print(f"{folder}: {' '.join(packages)}", flush=True)
        if not (folder / "bin" / "python").exists():
            venv.create(folder, with_pip=True, clear=True)
        command = [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        done = subprocess.run([*command, *options.pip.split(), *packages])
        if done.returncode:
            raise ValueError(f"pip could not install {' '.join(packages)} in {folder}")
    return 0


def environments(engines: Sequence[str], home: Path) -> dict[Path, list[str]]:
    """The folders to make, each with the packages of all its engines that are asked for (none: of all engines)."""
    found: dict[Path, list[str]] = {}
    for name in engines or peers.names():
        packages = found.setdefault(measuring.environment(home, name), [])
        packages += [package for package in peers.describe(name).packages if package not in packages]
    return (
        found
        if OURS in engines
        else {f: p for f, p in found.items() if f != measuring.environment(home, OURS)}
    )
