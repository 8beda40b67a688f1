"""Processes that have imported what they need and done nothing: imports take longer than what is tried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_PARENT = """
import importlib, json, os, runpy, sys
stages, ended = sys.argv[1:]
for stage in json.loads(stages):
    for module in stage["imported"]:
        importlib.import_module(module)
    for arguments in stage["runs"]:
        child = os.fork()
        if not child:
            sys.argv[:] = [stage["script"], *arguments]
            runpy.run_path(stage["script"], run_name="__main__")
            sys.exit()
        if os.waitpid(child, 0)[1]:
            sys.exit("one of the processes failed")
        print(ended, flush=True)
"""
_ENDED = "this process has ended"
PYTORCH = ("torch", "torch._dynamo", "torch._functorch.aot_autograd")
COMPILER = ("tilewright.compiler", "tilewright.torch.traced")


@dataclass(frozen=True)
class Stage:
    """Runs of a script, one after another with each of these arguments: each in a fork of a process that has imported
    these modules, and those of the stages before, and done nothing else."""

    script: Path
    runs: Sequence[Sequence[str]]
    imported: Sequence[str]


def outputs(
    stages: Sequence[Stage], environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> list[str]:
    """What the runs print, in a folder (None: that of this process). What fails in one fails here."""
    told = json.dumps([asdict(stage) for stage in stages], default=str)
    command = [sys.executable, "-c", _PARENT, told, _ENDED]
    whole = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=whole, cwd=folder)
    assert done.returncode == 0, done.stderr
    *found, rest = done.stdout.split(f"{_ENDED}\n")
    assert len(found) == sum(len(stage.runs) for stage in stages) and not rest, done.stdout
    return found
