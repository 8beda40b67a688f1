"""The types in which layers are computed, as `explain` prints them, with what a certificate says of each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.markup import escape
from rich.tree import Tree

from tilewright.frontends.onnx.file import read_model
from tilewright.quantization.certificate import KEY, Certificate, LayerRecord, certificate_of
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.errors import InputError, TilewrightError
from tilewright.runtime.report.records import ProgramReport, TypesOfKernel, TypesOfLayer

_NUMBER = re.compile(r"\d+")


def certificate_beside(model: Path, artifact: Artifact) -> Certificate | None:
    """The certificate that a compiled model or an ONNX file carries; None where it has none that can be read."""
    try:
        if KEY in artifact.attached:
            return certificate_of(artifact, str(model))
        return certificate_of(read_model(model)[0], str(model)) if model.suffix == ".onnx" else None
    except (InputError, TilewrightError):
        return None


def layer_trees(report: ProgramReport, certificate: Certificate | None, everything: bool) -> list[Tree]:
    """How many products there are of each form, the layers by form and reason, and what lies between them."""
    if not report.layers:
        return []  # nothing multiplies
    products = Tree("[bold]products")
    for product in report.products:
        products.add(escape(f"{_with_commas(product.count)} {product.form}"))
    trees = [products, _layers(report.layers, certificate, everything), *_between(report.types)]
    return trees if certificate is None else [_certificate(certificate), *trees]


def _layers(layers: Sequence[TypesOfLayer], certificate: Certificate | None, everything: bool) -> Tree:
    groups: dict[tuple[str, str, str], list[TypesOfLayer]] = defaultdict(list)
    for layer in layers:
        groups[layer.operator, " and ".join(str(c.form) for c in layer.channels), layer.why].append(layer)
    known = {} if certificate is None else {record.node: record for record in certificate.layers}
    listed = everything or len(groups) > 1 or bool(known)
    tree = Tree("[bold]layers")
    for (operator, forms, why), members in groups.items():
        branch = tree.add(
            escape(f"{len(members)} {operator}: {forms}: {why}" if forms else f"{len(members)} {operator}: {why}")
        )
        if listed:
            for text in _listed(members, known, everything):
                branch.add(f"[dim]{escape(text)}")
    return tree


def _listed(layers: Sequence[TypesOfLayer], known: Mapping[str, LayerRecord], everything: bool) -> list[str]:
    """A line for each layer, or for those of repeated blocks: whose names differ in numbers, and nothing else does."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for layer in layers:
        line = _layer(layer, known.get(layer.layer))
        key = line if everything else _NUMBER.sub("#", layer.layer)
        groups[key, line.removeprefix(layer.layer)].append(line)
    return [f"{lines[0]} (and {len(lines) - 1} like it)" if lines[1:] else lines[0] for lines in groups.values()]


def _layer(layer: TypesOfLayer, certified: LayerRecord | None) -> str:
    by_form = layer.channels
    channels = by_form[0].channels if len(by_form) == 1 else ""
    text = f"{layer.layer}: {channels} channels" if channels else layer.layer
    if len(by_form) > 1:
        text += ": " + ", ".join(f"{count.channels} channels {count.form}" for count in by_form)
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


def _between(types: Iterable[TypesOfKernel]) -> list[Tree]:
    """The kernels without products, by what they read and store."""
    groups: dict[str, int] = defaultdict(int)
    for record in types:
        if not record.products:
            computes = f", computed in {', '.join(record.computes)}" if record.computes else ", moved"
            reads, stores = (", ".join(found) for found in (record.reads, record.stores))
            groups[f"{reads or 'nothing'} to {stores}{computes}"] += record.calls
    if not groups:
        return []
    tree = Tree("[bold]between the layers")
    for text, count in sorted(groups.items(), key=lambda item: -item[1]):
        tree.add(escape(f"{count} {'kernel' if count == 1 else 'kernels'}: {text}"))
    return [tree]


def _with_commas(count: str) -> str:
    return f"{int(count):,}" if count.isdigit() else count
