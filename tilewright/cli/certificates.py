"""Certificates of quantised models, printed for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tilewright.cli.amounts import bytes_text
from tilewright.quantization.certificate import Certificate
from tilewright.quantization.decoders.certificate import AgreementCertificate


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


def show_agreement(found: AgreementCertificate, console: Console) -> None:
    """That of a language model: what was promised and measured, the kinds of weights, and each matrix with the
    divergence that it is estimated to cause alone in the smallest form."""
    console.print(f"[bold]{escape(found.outcome)}")
    own = found.agreement
    facts = {
        "promise": f"at most {_percent(found.max_drop)} of tokens become others, with a confidence of "
        f"{own.confidence:.0%}",
        "agreement": f"{own.agreed} of {own.tokens} tokens; at most {_percent(own.bound)} become others",
        "divergence": f"{own.divergence:.3g}, at most {own.divergence_bound:.3g}",
        "size": f"{bytes_text(found.bytes_before)} of matrices before, {bytes_text(found.bytes_after)} after",
        "judged": f"{found.judged} choices, on text that {found.chosen_tokens} other tokens were used to choose for",
        "model": found.model,
        "text": f"{found.text} ({found.text_digest})",
    }
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(f"[bold]{name}", escape(value))
    console.print(table)
    kinds = Table("all matrices in", "agreement", "divergence", "bytes", box=None, header_style="bold")
    for kind in found.kinds:
        agreement = kind.agreement
        kinds.add_row(kind.form, _percent(agreement.share), f"{agreement.divergence:.3g}", bytes_text(kind.bytes))
    console.print(kinds)
    chosen = Table("chosen", "matrices", "bytes", box=None, header_style="bold")
    for name, (count, size) in found.shares.items():
        chosen.add_row(escape(name), str(count), bytes_text(size))
    console.print(chosen)
    layers = Table("divergence alone", "form", "matrix", box=None, header_style="bold")
    for record in sorted(found.matrices, key=lambda record: -record.sensitivity):
        layers.add_row(f"{record.sensitivity:.3g}", escape(record.form or record.stored), escape(record.name))
    console.print(layers)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
