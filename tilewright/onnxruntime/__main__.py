"""Run a program that was written for ONNX Runtime: `python -m tilewright.onnxruntime [-m MODULE | SCRIPT] ARGS`."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

from tilewright.onnxruntime.stand_in import replace_onnxruntime

USAGE = """\
usage: python -m tilewright.onnxruntime -m MODULE [ARGS ...]
       python -m tilewright.onnxruntime SCRIPT [ARGS ...]

Runs a module or script in which `onnxruntime` is tilewright's stand-in; see docs/onnxruntime.md."""


def main(arguments: list[str]) -> None:
    """Run the client as Python's own command line would; SystemExit for a call that names none."""
    if arguments in (["-h"], ["--help"]):
        print(USAGE)
        return
    is_module = arguments[:1] == ["-m"]
    name, *others = (arguments[1:] if is_module else arguments) or [""]
    if not name or name.startswith("-"):
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    replace_onnxruntime()
    sys.argv = [name, *others]
    if is_module:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            sys.exit(f"tilewright.onnxruntime: there is no module {name}")
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        if not Path(name).exists():
            sys.exit(f"tilewright.onnxruntime: there is no file {name}")
        if not sys.flags.safe_path:
            sys.path[0] = str(Path(name).resolve().parent)
        runpy.run_path(name, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
