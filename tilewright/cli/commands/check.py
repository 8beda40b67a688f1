"""`tilewright check`: whether a model can be compiled, and what it costs, without making its code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from tilewright.checks.model import check
from tilewright.checks.result import AccessBounds, BlockUse, Costs, ModelCheck, Quantity
from tilewright.cli.amounts import bytes_text, count_text
from tilewright.cli.inputs.specs import read_dims
from tilewright.cli.models import compile_fields, model_argument, model_options, need_source, threads_option
from tilewright.cli.output import SafeConsole, say
from tilewright.cli.progress import compiling
from tilewright.runtime.errors import short_name

HELP = """Say whether MODEL can be compiled, what of it is slow, and what it costs: operations, memory, time.

No code is made: operations are counted in the graph as the model has it, memory and time are estimated from its fused
kernels. Formulas are over the symbolic dims; numbers are for the sizes that --dim gives.

\b
Examples:
  tilewright check model.onnx
  tilewright check model.onnx --dim batch=8 --threads 1
  tilewright check model.onnx --bounds
  tilewright check model.onnx --shape x=1,3,224,224 --target zen3 --json

\b
Exit codes: 0 where the model can be compiled, 1 where it cannot, or is damaged, or an access leaves its buffer.
"""

MOST_NODES = 5
"""Names that are listed of nodes of which the same is said; --json has all."""

MOST_ACCESSES = 20
"""Accesses without a proof that are listed; --json has all."""

LONGEST_FORMULA = 100
"""Characters of a formula that is shown."""


@click.command("check", help=HELP, short_help="Say whether a model runs, and what it costs.")
@model_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON data (docs/check.md describes it).")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Size of a symbolic dim  [default: 1]")
@click.option("--bounds", is_flag=True, help="Prove that each load and store of the kernels stays in its buffer.")
@threads_option
@model_options
def command(
    model: Path, as_json: bool, dims: Sequence[str], bounds: bool, threads: int | None, **options: Any
) -> None:
    need_source(model, "check")
    fields, sizes = compile_fields(**options), read_dims(dims)
    with compiling(model.name) as progress:
        found = check(model, sizes=sizes, threads=threads, progress=progress, bounds=bounds, **fields)
    for note in found.notes:
        if note.kind == "remark":
            say(f"warning: {note.node}: {note.message}", err=True)
    if as_json:
        click.echo(json.dumps(found.record(), indent=1))
    else:
        show(found, SafeConsole())
    if not found.runs or (found.bounds is not None and found.bounds.wrong):
        click.get_current_context().exit(1)


def show(found: ModelCheck, console: Console) -> None:
    """Print it for people."""
    if not found.runs:
        console.print(f"[bold red]{escape(short_name(found.model))} cannot be compiled:")
        said = [(p.operator, p.reason + (f"\n{p.hint}" if p.hint else ""), p.node) for p in found.problems]
        console.print(_tree("not supported", said))
        return
    console.print(f"[bold green]{escape(short_name(found.model))} can be compiled[/]: {found.nodes} nodes")
    for name, infos in (("inputs", found.inputs), ("outputs", found.outputs)):
        console.print(f"{name}: {escape('; '.join(map(str, infos)))}")
    for kind in dict.fromkeys(note.kind for note in found.notes):
        console.print(
            _tree(_KINDS[kind], [(n.operator, n.message, n.node) for n in found.notes if n.kind == kind])
        )
    if found.costs is not None:
        _show_costs(found.costs, console)
    if found.bounds is not None:
        _show_bounds(found.bounds, console)


_KINDS = {
    "host": "run by the host, between parts of native code",
    "assumed": "assumed of the dims, and checked when the model is called",
    "broadcast": "dims that are broadcast, and taken for equal",
    "own_loops": "operators with loops of their own, which may be slow",
    "contradiction": "declared, and not taken",
    "slow": "kernels that do little of what the machine could",
    "remark": "failed",
}


def _tree(title: str, said: Sequence[tuple[str, str, str]]) -> Tree:
    """What is said of operators, with the names of their nodes."""
    groups: dict[tuple[str, str], Counter[str]] = {}
    for operator, message, node in said:
        groups.setdefault((operator, message), Counter())[node] += 1
    tree = Tree(f"[bold]{escape(title)}")
    for (operator, message), nodes in groups.items():
        branch = tree.add(escape(f"{operator}: {message}" if operator else message))
        names = [name for name in nodes if name]
        more = f" and {len(names) - MOST_NODES} more" if len(names) > MOST_NODES else ""
        if names:
            branch.add(f"[dim]{escape(', '.join(names[:MOST_NODES]) + more)}")
    return tree


def _show_bounds(bounds: AccessBounds, console: Console) -> None:
    every = bounds.by_range + bounds.by_guard + bounds.not_proved + bounds.not_looked_at
    left = f", {bounds.not_looked_at} not looked at to the end" if bounds.not_looked_at else ""
    console.print(
        f"loads and stores within their buffers: {every} in all; proved of {bounds.by_range} by ranges and of "
        f"{bounds.by_guard} by guards; {bounds.not_proved} not proved{left}"
    )
    listed = [a for a in bounds.unproved if not a.leaves][:MOST_ACCESSES]
    for title, accesses in (("[bold red]error: beyond their buffers", bounds.wrong), ("[bold]not proved", listed)):
        if accesses:
            tree = Tree(title)
            for access in accesses:
                tree.add(escape(f"{access.kernel}: {access}"))
            console.print(tree)
    if more := len(bounds.unproved) - len(bounds.wrong) - len(listed):
        console.print(f"and {more} more")


def _show_costs(costs: Costs, console: Console) -> None:
    if costs.sizes:
        console.print(f"numbers are for {', '.join(f'{name}={size}' for name, size in costs.sizes.items())}")
    console.print(_operator_table(costs))
    table = Table(show_header=False, box=None)
    for found in costs.parameters:
        table.add_row(f"parameters, {found.dtype}", count_text(found.count), bytes_text(found.bytes))
    memory = costs.memory
    _row(table, "floating-point operations", costs.flops, count_text)
    _row(table, f"moved by {costs.kernels} fused kernels", costs.moved_bytes, bytes_text)
    for name in ("inputs", "outputs", "weights", "arena", "peak"):
        _row(table, f"memory: {name}", getattr(memory, name), bytes_text)
    console.print(table)
    for block in costs.blocks:
        console.print(_block(block, costs.time.cycles), markup=False)
    time = costs.time
    if time.seconds is not None:
        said = f"{1000 * time.seconds:.3g} ms"
    else:
        said = "not known" if time.cycles is None else f"{count_text(time.cycles)}cycles"
    console.print(f"estimated time: [bold]{said}[/] on {escape(time.target)} with {time.threads} threads")


def _operator_table(costs: Costs) -> Table:
    table = Table("operator", box=None, header_style="bold")
    for column in ("nodes", "results", "operations", "bytes", "time"):
        table.add_column(column, justify="right")
    all_cycles = costs.time.cycles or 0
    for use in costs.operators:
        share = "?" if use.cycles is None or not all_cycles else f"{use.cycles / all_cycles:.1%}"
        flops = "?" if use.flops.value is None else count_text(use.flops.value)
        moved = "?" if use.bytes.value is None else bytes_text(use.bytes.value)
        table.add_row(escape(use.operator), str(use.nodes), " ".join(use.dtypes), flops, moved, share)
    return table


def _block(block: BlockUse, every: float | None) -> str:
    share = "" if block.cycles is None or not every else f", {block.cycles / every:.1%} of the estimated time"
    flops = "" if block.flops.value is None else f": {count_text(block.flops.value)} operations"
    variants = f" ({block.variants} of them somewhat different)" if block.variants else ""
    return f"{block.copies} x {short_name(block.block)}{variants}{flops}{share}"


def _row(table: Table, name: str, amount: Quantity, worded: Callable[[int], str]) -> None:
    is_number = amount.formula.isdigit()
    formula = "" if is_number or len(amount.formula) > LONGEST_FORMULA else amount.formula
    table.add_row(name, "?" if amount.value is None else worded(amount.value), escape(formula))
