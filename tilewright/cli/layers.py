"""The types in which layers are computed, as `explain` prints them, with what a certificate says of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from tilewright.frontends.onnx.file import read_model
from tilewright.quantization.certificate import KEY, Certificate, LayerRecord, certificate_of
from tilewright.runtime.errors import InputError, TilewrightError

Record = Mapping[str, Any]


def certificate_beside(model: Path, report: Mapping[str, Any]) -> Certificate | None:
    """The certificate that a compiled model or an ONNX file carries; None where it has none that can be read."""
    try:
        if KEY in report:
            return Certificate.of(report[KEY], str(model))
        return certificate_of(read_model(model)[0], str(model)) if model.suffix == ".onnx" else None
    except (InputError, TilewrightError):
        return None


def layer_trees(report: Mapping[str, Any], certificate: Certificate | None, everything: bool) -> list[Tree]:
    """How many products there are of each form, the layers by form and reason, and what lies between them."""
    layers: Sequence[Record] = report.get("layers") or ()
    if not layers:
        return []  # nothing multiplies, or the file is of an earlier version
    products = Tree("[bold]products")
    for form, count in report.get("products", {}).items():
        products.add(escape(f"{_with_commas(count)} {form}"))
    trees = [products, _layers(layers, certificate, everything), *_between(report.get("types") or ())]
    return trees if certificate is None else [_certificate(certificate), *trees]


def _layers(layers: Sequence[Record], certificate: Certificate | None, everything: bool) -> Tree:
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for layer in layers:
        groups[layer["operator"], " and ".join(layer["channels"]), layer["why"]].append(layer)
    known = {} if certificate is None else {record.node: record for record in certificate.layers}
    listed = everything or len(groups) > 1 or bool(known)
    tree = Tree("[bold]layers")
    for (operator, forms, why), members in groups.items():
        branch = tree.add(
            escape(f"{len(members)} {operator}: {forms}: {why}" if forms else f"{len(members)} {operator}: {why}")
        )
        if listed:
            for layer in members:
                branch.add(f"[dim]{escape(_layer(layer, known.get(layer['layer'])))}")
    return tree


def _layer(layer: Record, certified: LayerRecord | None) -> str:
    by_form = layer["channels"]
    channels = next(iter(by_form.values())) if len(by_form) == 1 else ""
    text = f"{layer['layer']}: {channels} channels" if channels else layer["layer"]
    if len(by_form) > 1:
        text += ": " + ", ".join(f"{count} channels {form}" for form, count in by_form.items())
    return text if certified is None else f"{text}; {certified_text(certified)}"


def certified_text(record: LayerRecord) -> str:
    """What a certificate says of a layer: its kind, what it saves and costs, or why it is float32."""
    if record.kind == "float32":
        return f"certified as float32: {record.reason}"
    gain, cost = record.gains.get(record.kind), record.sensitivity.get(record.kind)
    parts = [f"certified as {record.kind}"]
    if gain is not None:
        parts.append(f"its group saves {1000 * gain:.3g} ms of {record.milliseconds:.3g} ms")
    if cost is not None:
        parts.append(f"and alone costs {100 * cost:.2g} % at most")
    return ", ".join(parts)


def _certificate(certificate: Certificate) -> Tree:
    tree = Tree("[bold]certificate of tilewright quantize")
    tree.add(escape(certificate.outcome))
    tree.add(
        escape(
            f"{certificate.metric}: the drop is {100 * certificate.drop:.3g} %, at most {100 * certificate.bound:.3g} %"
        )
    )
    before, after = 1000 * certificate.seconds_before, 1000 * certificate.seconds_after
    tree.add(escape(f"a call took {before:.4g} ms in float32, and takes {after:.4g} ms"))
    return tree


def _between(types: Iterable[Record]) -> list[Tree]:
    """The kernels without products, by what they read and store."""
    groups: dict[str, int] = defaultdict(int)
    for record in types:
        if not record["products"]:
            computes = f", computed in {record['computes']}" if record["computes"] else ", moved"
            groups[f"{record['reads'] or 'nothing'} to {record['stores']}{computes}"] += record["calls"]
    if not groups:
        return []
    tree = Tree("[bold]between the layers")
    for text, count in sorted(groups.items(), key=lambda item: -item[1]):
        tree.add(escape(f"{count} {'kernel' if count == 1 else 'kernels'}: {text}"))
    return [tree]


def _with_commas(count: str) -> str:
    return f"{int(count):,}" if count.isdigit() else count
