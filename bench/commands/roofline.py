"""The costliest kernels of models: time, work, and percent of what the machine could do at best."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import machine, roofline
from bench.cases import Case, cases_of_folder
from bench.commands import measuring
from bench.records import output_file
from bench.zoo import group_of, names_of


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="names of the zoo, or files with NAME.npz beside [networks]",
    )
    parser.add_argument("--zoo", type=Path, help="folder of NAME.onnx with NAME.npz [the one `zoo` fills]")
    parser.add_argument("--top", type=int, default=10, help="kernels to show [10]")
    parser.add_argument("--out", type=output_file, help="append the results here, a line of JSON each")
    measuring.add_places(parser)


def run(options: argparse.Namespace) -> int:
    machine.pin(machine.usable_cpus()[-1:])
    for name in names_of(options.models or ["networks"]):
        case = _case(name, options.zoo or options.home / "zoo")
        found = roofline.measure(case.model, case.arrays)
        print(told(found, options.top), flush=True)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a") as file:
                file.write(json.dumps(found) + os.linesep)
    return 0


def _case(name: str, folder: Path) -> Case:
    path = Path(name)
    if path.suffix == ".onnx":
        return Case("file", path.stem, path, path.with_suffix(".npz"))
    return cases_of_folder(folder, [name], group_of(name))[0]


def told(found: Mapping[str, Any], top: int) -> str:
    """A table for people, and the whole model's percentage."""
    bandwidth = ", ".join(f"{name} {rate:.0f} GB/s" for name, rate in found["machine"]["bandwidth"].items())
    lines = [
        f"{found['model']}: {found['ms']:.2f} ms in kernels, {found['gflop']:.2f} GFLOP, {found['percent']:.0f} % of "
        f"the bound; peak {found['machine']['peak']:.0f} GFLOP/s, {bandwidth}",
        f"  {'ms':>8} {'share':>6} {'calls':>5} {'GFLOP/s':>8} {'GB/s':>7} {'bound':>5} {'of it':>6}  kernel",
    ]
    for kernel in found["kernels"][:top]:
        share = f"{100 * kernel['ms'] / found['ms']:.1f} %"
        lines.append(
            f"  {kernel['ms']:8.3f} {share:>6} {kernel['calls']:5} {kernel['gflops']:8.1f} {kernel['gbytes']:7.1f} "
            f"{kernel['by']:>5} {kernel['percent']:4.0f} %  {kernel['kernel']}"
        )
    return "\n".join(lines)
