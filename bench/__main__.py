"""The command line: `python -m bench COMMAND`, see `--help`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

COMMANDS = (
    "install", "zoo", "run", "random", "cliffs", "dynamic", "real", "sizes", "roofline", "compile", "memory", "torch",
    "jax", "gpu", "table",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """One parser for each command; a command's first line of documentation is its help."""
    made = argparse.ArgumentParser(
        prog="python -m bench", description="Measures tilewright beside other engines."
    )
    found = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"bench.commands.{name}")
        about = (module.__doc__ or "").partition("\n")[0]
        own = found.add_parser(name, help=about, description=about)
        module.add_options(own)
        own.set_defaults(run=module.run)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 when something was not found or could not be done."""
    options = parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
