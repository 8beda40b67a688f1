"""Which operators of ONNX are used most, counted over models in files.

`python -m tests.machines.operators_used FOLDER ...` counts in how many of the files `*.onnx` of the folders an operator
of the standard domain stands (subgraphs and functions included), and writes `operators_used.json`. Models of equal
operators that come from one package count once: they are one network with several weights.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx

COUNTS = Path(__file__).with_suffix(".json")
MOST = 60


def most_used(count: int = MOST) -> list[str]:
    """The operators that most networks have: so many, and those that as many have as the last of them."""
    found: dict[str, int] = json.loads(COUNTS.read_text())["networks with"]
    least = sorted(found.values(), reverse=True)[count - 1]
    return sorted(name for name, networks in found.items() if networks >= least)


def operators(model: onnx.ModelProto) -> frozenset[str]:
    """The operators of the standard domain that stand in a model, constants and what only hands on left out."""
    functions = {(f.domain, f.name) for f in model.functions}
    nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    standard = [n for n in _with_bodies(nodes) if n.domain in ("", "ai.onnx")]
    found = {n.op_type for n in standard if (n.domain, n.op_type) not in functions}
    return frozenset(found - {"Constant", "Identity"})


def _with_bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _with_bodies(graph.node)


def counted(models: Iterable[tuple[str, onnx.ModelProto]]) -> dict[str, Any]:
    """How many networks have each operator; models are given with the package that they come from."""
    networks = {(package, operators(model)) for package, model in models}
    counts = Counter(name for _, found in networks for name in found)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {"networks": len(networks), "packages": sorted({p for p, _ in networks}), "networks with": dict(ordered)}


def main(folders: list[str]) -> None:
    files = sorted(path for folder in folders for path in Path(folder).rglob("*.onnx"))
    models = ((_package(path), onnx.load(path, load_external_data=False)) for path in files)
    COUNTS.write_text(json.dumps(counted(models), indent=1) + "\n")


def _package(path: Path) -> str:
    """The first part of `package__model/model.onnx`; the name of the file elsewhere."""
    package, separator, _ = path.parent.name.partition("__")
    return package if separator else path.stem


if __name__ == "__main__":
    main(sys.argv[1:])
