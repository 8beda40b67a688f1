"""The command `tilewright`."""

from __future__ import annotations

import sys
from functools import partial

from tilewright.cli.interrupt import run_interruptible


def main() -> None:
    """Run the command line; without its two packages, say in one line how to install them."""
    try:
        from tilewright.cli.app import commands
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit("tilewright: the command line needs click and rich: pip install 'tilewright[cli]'")
    run_interruptible(partial(commands, prog_name="tilewright"))
