"""`tilewright cache`: list and clear the cache of compiled models."""

from __future__ import annotations

import time
from dataclasses import asdict

import click
from rich.markup import escape
from rich.table import Table

from tilewright.cli.amounts import Amount, ago, bytes_text
from tilewright.cli.output import console as output_console
from tilewright.cli.output import json_option, print_json, say
from tilewright.session import Entry, Session

HELP = """List the cache of compiled models: what of, for which CPU, how big, when last used.

`tilewright cache clear` empties it; models that run now go on running.

\b
Examples:
  tilewright cache
  tilewright cache clear
  tilewright cache clear --unused 30
"""

DAY_S = 86400


@click.group("cache", help=HELP, short_help="List and clear the cache.", invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    if ctx.invoked_subcommand is None:
        session = Session()
        entries = session.entries()
        if as_json:
            listed = [{**asdict(entry), "path": str(entry.path)} for entry in entries]
            print_json({"folder": str(session.folder), "limit": session.limit, "models": listed})
            return
        console = output_console()
        if entries:
            console.print(_table(entries))
        total = bytes_text(sum(entry.size for entry in entries))
        limit = bytes_text(session.limit)
        console.print(f"{session.folder}: {models(len(entries))}, {total} of at most {limit}", markup=False)


@command.command("clear", short_help="Remove what the cache holds.")
@click.option("--unused", type=Amount(), metavar="DAYS", help="Only what was not used for so long.")
def clear(unused: float | None) -> None:
    """Remove what the cache holds."""
    session = Session()
    cleared = session.clear((unused or 0) * DAY_S)
    say(f"{session.folder}: {models(cleared.files)} removed, {bytes_text(cleared.size)} freed")


def models(count: int) -> str:
    """So many models, as text."""
    return f"{count} model{'' if count == 1 else 's'}"


def _table(entries: list[Entry]) -> Table:
    table = Table("model", "for", box=None, header_style="bold")
    for column in ("size", "last used"):
        table.add_column(column, justify="right", no_wrap=True)
    now = time.time()
    for entry in entries:
        model = escape(entry.model) or "[dim](from memory)"
        table.add_row(model, escape(entry.target), bytes_text(entry.size), ago(now - entry.used))
    return table
