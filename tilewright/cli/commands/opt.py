"""`tilewright opt`: passes on the text of a program."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path

import click
from rich.table import Table

from tilewright.back_end import faults_of_plugins
from tilewright.cli.models import read_text
from tilewright.cli.output import SafeConsole, say, say_program
from tilewright.compilation import Compilation, Setting
from tilewright.graph.pipeline import passes_by_name
from tilewright.ir.text import parse_module
from tilewright.options import Options
from tilewright.passes import options_of, parse_passes
from tilewright.program.legal import verify_graph
from tilewright.runtime.errors import InputError
from tilewright.schedule.strategies import STRATEGIES
from tilewright.session import Session

HELP = """Run passes on FILE (IR text of the graph level; - is standard input) and print the result.

Elements of big constants are left out when a program is printed; left-out elements are read as zeros.

\b
Examples:
  tilewright show model.onnx --level import > model.txt
  tilewright opt --passes canonicalize,fuse model.txt
  tilewright opt --passes 'fold{max_bytes=1024}' --remarks model.txt
  tilewright opt --list
"""


@click.command("opt", help=HELP, short_help="Run passes on IR text.")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True), required=False)
@click.option(
    "--passes", "text", default="", metavar="a,b{opt=1}", help="Passes, in order, with their options."
)
@click.option(
    "--remarks", is_flag=True, help="Print what was and what was not done, and why, to standard error."
)
@click.option(
    "--target", metavar="NAME", help="Machine to compile for (see `tilewright info`)  [default: this one]"
)
@click.option("--list", "listed", is_flag=True, help="Print the passes and their options.")
def command(file: Path | None, text: str, remarks: bool, target: str | None, listed: bool) -> None:
    if listed:
        SafeConsole().print(_passes())
        return
    if file is None:
        raise click.UsageError("which FILE? (- is standard input)")
    name = "<stdin>" if str(file) == "-" else str(file)
    module = parse_module(read_text(file), file=name)
    if "main" not in module.funcs:
        raise InputError(
            f"{name} has no function @main; passes of the graph work on that",
            hint="make such a text with `tilewright show MODEL --level import`",
        )
    session, options = Session(), Options(target=target)
    verify_graph(module)
    with faults_of_plugins(session.loaded_plugins.back_ends):
        compilation = Compilation(module, Setting.chosen(options, session))
        compilation.apply(parse_passes(text, passes_by_name(compilation.strategies)))
    say_program(compilation.text())
    for remark in compilation.remarks if remarks else ():
        say(remark, err=True)


def _passes() -> Table:
    table = Table("pass", "options", "what it does", box=None, header_style="bold")
    for name, make in passes_by_name(STRATEGIES).items():
        options = ", ".join(f"{f.name}={f.default!r}" for f, _ in options_of(make))
        described = make.func if isinstance(make, partial) else make
        table.add_row(name, options, (inspect.getdoc(described) or "").split("\n\n")[0])
    return table
