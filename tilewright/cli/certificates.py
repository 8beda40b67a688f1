"""Certificates of quantised models, printed for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tilewright.cli.amounts import bytes_text
from tilewright.quantization.certificate import Certificate


def show_certificate(found: Certificate, console: Console) -> None:
    """What was measured, then a line for each layer."""
    console.print(f"[bold]{escape(found.outcome)}")
    low, high = found.interval
    facts = {
        "metric": found.metric,
        "float32": f"{found.before:.6g}",
        "quantised": f"{found.after:.6g}",
        "drop": f"{_percent(found.drop)}, interval {_percent(low)} to {_percent(high)}; "
        f"at most {_percent(found.bound)} with a confidence of {found.confidence:.0%}, "
        f"budget {_percent(found.max_drop)}",
        "measured": found.basis,
        "changed": f"{_percent(found.changed)} of {found.items} items",
        "time": f"{1000 * found.seconds_before:.4g} ms before, {1000 * found.seconds_after:.4g} ms after",
        "size": f"{bytes_text(found.bytes_before)} before, {bytes_text(found.bytes_after)} after",
        "calibration": ", ".join(f"{key} {_short(value)}" for key, value in found.calibration.items()),
        "model": f"{found.model or 'from memory'} ({found.model_digest})",
        "data": f"{found.data} ({found.data_digest})",
    }
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(f"[bold]{name}", escape(value))
    console.print(table)
    layers = Table(box=None, header_style="bold")
    for column in ("layer", "type", "ms", "saves", "drop alone", "why"):
        layers.add_column(column)
    for layer in found.layers:
        saved = ", ".join(f"{kind} {1000 * gain:.3g} ms" for kind, gain in layer.gains.items() if gain > 0)
        drops = ", ".join(f"{kind} {_percent(drop)}" for kind, drop in layer.sensitivity.items())
        kind = f"{layer.kind} ({layer.recipe})" if layer.recipe else layer.kind
        cells = (layer.node, kind, f"{layer.milliseconds:.3g}", saved, drops, layer.reason)
        layers.add_row(*map(escape, cells))
    console.print(layers)
    for remark in found.remarks:
        console.print(remark, markup=False)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
