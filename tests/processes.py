"""Processes that have imported what they need and done nothing: imports take longer than what is tried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

_PARENT = """
import gc, importlib, json, os, runpy, sys
stages, ended = sys.argv[1:]
for stage in json.loads(stages):
    for module in stage["imported"]:
        importlib.import_module(module)
    gc.freeze()
    for arguments in stage["runs"]:
        child = os.fork()
        if not child:
            sys.argv[:] = [stage["script"], *arguments]
            runpy.run_path(stage["script"], run_name="__main__")
            gc.freeze()  # what ends need not be collected
            sys.exit()
        if os.waitpid(child, 0)[1]:
            sys.exit("one of the processes failed")
        print(ended, flush=True)
"""
_ENDED = "this process has ended"
PYTORCH = ("torch", "torch._dynamo", "torch._functorch.aot_autograd", "torch._dynamo.testing", "torch.export._trace")
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


_SERVER = """
import gc, importlib, json, os, runpy, signal, sys
for module in sys.argv[2:]:
    importlib.import_module(module)
gc.freeze()
for line in sys.stdin:
    files, arguments = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(int(sys.argv[1]))
        for descriptor, file in enumerate(files):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), descriptor)
        is_module = arguments[0] == "-m"
        sys.argv[:] = arguments[is_module:]
        if is_module:
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
_LIMIT = 600


class Python:
    """Runs scripts and modules as the command `python` does, each in a fork of one process that has imported these
    modules, in this folder and environment."""

    def __init__(self, imported: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(_LIMIT), *imported],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> str:
        """What `python ARGUMENTS` prints, a script or `-m` and a module first; AssertionError where it fails, or takes
        ten minutes."""
        assert self._server.stdin is not None and self._server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            printed, errors = Path(folder, "printed"), Path(folder, "errors")
            self._server.stdin.write(json.dumps([[os.devnull, str(printed), str(errors)], arguments]) + "\n")
            self._server.stdin.flush()
            code = self._server.stdout.readline()
            assert code == "0\n", f"{code}{printed.read_text()}{errors.read_text()}" if code else "no answer"
            return printed.read_text()

    def __enter__(self) -> Python:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.communicate()


def bytecode(folder: Path) -> Path:
    """Where the compiled modules of a folder lie, which may be beside these (the folder itself)."""
    prefix = sys.pycache_prefix
    return folder if prefix is None else Path(prefix, *folder.parts[1:])
