"""The command `tilewright`."""

from __future__ import annotations

import gc
import io
import sys

from tilewright.cli.interrupt import run_interruptible

YOUNG_OBJECTS = 2_000_000
"""As in `ir.process_settings`, which the commands that run artefacts do not import."""


def main() -> None:
    """Run the command line; without its two packages, say in one line how to install them."""
    run_interruptible(_commands)


def _commands() -> None:
    try:
        from tilewright.cli.app import commands
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit("tilewright: the command line needs click and rich: pip install 'tilewright[cli]'")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that the terminal's encoding lacks
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    try:
        commands(prog_name="tilewright")
    finally:
        gc.freeze()  # the process ends: nobody needs the memory that a last collection would find
