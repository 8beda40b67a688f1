"""The figures of `tilewright cost` for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tilewright.checks.lengths import LengthCount
from tilewright.checks.polynomials import Polynomial
from tilewright.cli.amounts import bytes_text, count_text
from tilewright.cli.language_models.cost_table import CostTable
from tilewright.runtime.errors import short_name

_NAMES = {"cached": "with a cache", "recomputed": "without"}


def show(table: CostTable, console: Console) -> None:
    """Print all of it."""
    costs = table.costs
    console.print(f"[bold]{escape(short_name(costs.model))}[/]: {_kept(table)}")
    if costs.dims:
        console.print("with " + escape(", ".join(f"{name}={size}" for name, size in costs.dims.items())))
    console.print()
    console.print(_formulas(table))
    since = max((p.since for p in _all(table) if p is not None), default=0)
    if since > 1:
        console.print(f"formulas hold from n = {since} on")
    for part in (_generation, _times, _exponents, _beside):
        console.print()
        console.print(part(table))


def _kept(table: CostTable) -> str:
    costs = table.costs
    if not costs.has_cache:
        return "it keeps nothing from call to call, so that each call computes a whole sequence"
    parts = [f"caches of {costs.cache} bytes for a position"] if costs.cache else []
    parts += [f"states of {bytes_text(costs.state)}, however long the text is"] if costs.state else []
    parts += [f"at most {costs.context} positions"] if costs.context else []
    return ", ".join(parts)


def _all(table: CostTable) -> list[Polynomial | None]:
    return [p for amount in table.amounts.values() for row in _rows(table, amount).values() for p in row]


def _rows(table: CostTable, amount: LengthCount) -> dict[str, list[Polynomial | None]]:
    """What is told of an amount, in the columns of the kinds."""
    if not table.costs.has_cache:
        return {"of a sequence of n": [amount.whole]}
    return {
        "of the n-th token": [amount.token, amount.whole],
        "of all n tokens": [amount.cached, amount.recomputed],
    }


def _table(table: CostTable, title: str) -> Table:
    found = Table(title, box=None, header_style="bold", pad_edge=False)
    for kind in table.kinds:
        found.add_column(_NAMES[kind] if table.costs.has_cache else "", overflow="fold")
    return found


def _formulas(table: CostTable) -> Table:
    found = _table(table, "n positions")
    for name, amount in table.amounts.items():
        for row, formulas in _rows(table, amount).items():
            texts = ["no polynomial: see --json" if p is None else p.text("n") for p in formulas]
            found.add_row(f"{name} {row}", *texts)
    fitted = [table.time_formula(kind) for kind in table.kinds]
    if any(fitted):
        what = "of the n-th token" if table.costs.has_cache else "of a sequence of n"
        found.add_row(f"estimated ms {what}", *("" if f is None else _fit(f) for f in fitted))
    return found


def _fit(coefficients: tuple[float, ...]) -> str:
    powers = ["", " n", *(f" n^{k}" for k in range(2, len(coefficients)))]
    terms = [f"{1000 * c:.3g}{power}" for c, power in zip(coefficients, powers, strict=False)]  # there may be no power
    return " + ".join(reversed(terms)).replace("+ -", "- ")


def _generation(table: CostTable) -> Table:
    found = _table(table, f"a prompt of {table.prompt} and {table.new} new tokens")
    for name, amount in table.amounts.items():
        values = [amount.generation(table.prompt, table.new, cache=kind == "cached") for kind in table.kinds]
        worded = [count_text(v).strip() if name == "operations" else bytes_text(v) for v in values]
        found.add_row(name, *worded)
    if table.costs.has_cache:
        kept = table.costs.cache * (table.prompt + table.new - 1) + table.costs.state
        found.add_row("kept at the end", bytes_text(kept), "")
    threads = f"{table.costs.threads} thread{'s' if table.costs.threads > 1 else ''}"
    times = [_time(table.seconds(kind)) for kind in table.kinds]
    found.add_row(f"estimated time on {escape(table.costs.target)}, {threads}", *times)
    return found


def _times(table: CostTable) -> Table:
    found = Table("ms of the n-th token, n =" if table.costs.has_cache else "ms, n =", box=None, header_style="bold",
                  pad_edge=False)  # fmt: skip
    for kind in table.kinds:
        name = _NAMES[kind] if table.costs.has_cache else ""
        found.add_column(f"{name}, estimated".removeprefix(", "), justify="right")
        if table.measured:
            found.add_column(f"{name}, measured", justify="right")
    for k, length in enumerate(table.lengths):
        row = []
        for kind in table.kinds:
            row.append(_ms(table.estimated(kind, length)))
            row += [_ms(getattr(table.measured[k], kind))] if table.measured else []
        found.add_row(str(length), *row)
    return found


def _exponents(table: CostTable) -> Table:
    found = _table(table, "exponent of n in that")
    all_of_them = {kind: table.exponents(kind) for kind in table.kinds}
    span = f"from {table.lengths[0]} to {table.lengths[-1]}"
    names = {
        "in the end": "of long texts, expected", "operations": f"{span}, of the operations",
        "estimated": f"{span}, of the estimate", "measured": f"{span}, measured",
    }  # fmt: skip
    for key, name in names.items():
        values = [all_of_them[kind][key] for kind in table.kinds]
        if any(v is not None for v in values):
            found.add_row(name, *("" if v is None else f"{v:.3g}" for v in values))
    return found


def _beside(table: CostTable) -> Table:
    """The model and a recurrent network."""
    found = Table(f"the prompt of {table.prompt} at once", "this model", box=None, header_style="bold", pad_edge=False)
    works, peer = [table.serial], table.peer
    if peer is not None:
        found.add_column(f"{peer.layers} LSTM layers of {peer.width} units")
        works.append(peer.serial)
    found.add_row("operations", *(count_text(w.flops).strip() for w in works))
    found.add_row("of these wait for the position before", *(f"{w.share:.1%}" for w in works))
    found.add_row("products that wait for each other", *(str(w.steps) for w in works))
    kept = table.costs.cache * table.prompt + table.costs.state
    if table.costs.has_cache and peer is not None:
        found.add_row("kept for the next token", bytes_text(kept), bytes_text(peer.state))
    return found


def _time(seconds: float | None) -> str:
    return "not known" if seconds is None else f"{seconds:.3g} s"


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{1000 * seconds:.3g}"
