"""Processes that have imported what they need and done nothing: imports take longer than what is tried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PARENT = """
import importlib, json, os, runpy, sys
script, runs, ended, *imported = sys.argv[1:]
for module in imported:
    importlib.import_module(module)
for arguments in json.loads(runs):
    child = os.fork()
    if not child:
        sys.argv[1:] = arguments
        runpy.run_path(script, run_name="__main__")
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit("one of the processes failed")
    print(ended, flush=True)
"""
_ENDED = "this process has ended"
PYTORCH = ("torch", "torch._dynamo", "torch._functorch.aot_autograd")
COMPILER = ("tilewright.compiler", "tilewright.torch.traced")


def outputs(
    script: Path, runs: Sequence[Sequence[str]], imported: Sequence[str],
    environment: Mapping[str, str] | None = None, folder: Path | None = None,
) -> list[str]:  # fmt: skip
    """What a script prints with each of these arguments, one after another: each in a fork of a process that has
    imported these modules and done nothing else, in a folder (None: that of this process). What fails in one fails
    here."""
    command = [sys.executable, "-c", _PARENT, str(script), json.dumps(runs), _ENDED, *imported]
    whole = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=whole, cwd=folder)
    assert done.returncode == 0, done.stderr
    *found, rest = done.stdout.split(f"{_ENDED}\n")
    assert len(found) == len(runs) and not rest, done.stdout
    return found
