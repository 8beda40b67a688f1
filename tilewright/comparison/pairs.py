"""Which tensor of one graph is which of another: by names, and where these differ by structure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.comparison.graph import CONTRACTIONS, CoreGraph, meaning, walk

SUFFIXES = re.compile(r"(_(QuantizeLinear|DequantizeLinear)_Output(_\d+)?|_quantized|_dequantized|:0)$")
"""What quantisers append to the names of tensors."""

FOLDED = frozenset(
    {"Relu", "Clip", "BatchNormalization", "Add", "Sub", "Mul", "Reshape", "LeakyRelu", "HardSwish", "Sigmoid"}
)
"""Operators that a quantiser may make part of the layer before them, which then takes the name of their result."""

LEAST_AGREEMENT = 0.5
"""Share of the tensors of equal names that are computed alike; with fewer, names mean nothing."""


@dataclass(frozen=True)
class TensorPair:
    """The names by which a tensor is compared in the two graphs."""

    first: str
    second: str


def pair_tensors(a: CoreGraph, b: CoreGraph) -> list[TensorPair]:
    """In the order of the second graph."""
    roots = _by_names(a, b)
    agreeing = [_is_alike(a.operator(x), b.operator(y)) for x, y in roots.items()]
    if agreeing and sum(agreeing) < LEAST_AGREEMENT * len(agreeing):
        roots = {}
    roots |= _ends(a, b, roots)
    _by_structure(a, b, roots)
    order = {root: place for place, root in enumerate(b.members)}
    found = sorted(roots.items(), key=lambda pair: order[pair[1]])
    return [TensorPair(a.as_read(x), b.as_read(y)) for x, y in found]


def _by_names(a: CoreGraph, b: CoreGraph) -> dict[str, str]:
    """Roots of tensors that have a name in common, that of the second by that of the first."""
    names = _names(b, b.members)
    found: dict[str, str] = {}
    taken: set[str] = set()
    for root, members in a.members.items():
        other = next((names[name] for name in _plain(members) if name in names), None)
        if other is not None and other not in taken:
            found[root] = other
            taken.add(other)
    return found


def _names(graph: CoreGraph, roots: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for root in roots:
        for name in _plain(graph.members[root]):
            found.setdefault(name, root)
    return found


def _plain(names: Sequence[str]) -> list[str]:
    """The names, and then what they are without what a quantiser appends."""
    return [*names, *(SUFFIXES.sub("", name) for name in names)]


def _is_alike(first: str, second: str) -> bool:
    if first == second:
        return True
    return any(x in CONTRACTIONS and y in FOLDED for x, y in ((first, second), (second, first)))


def _ends(a: CoreGraph, b: CoreGraph, found: Mapping[str, str]) -> dict[str, str]:
    """Inputs by their order, and outputs where there are equally many."""
    pairs = list(zip(a.inputs, b.inputs, strict=False))
    if len(a.outputs) == len(b.outputs):
        pairs += [
            (a.roots[x], b.roots[y])
            for x, y in zip(a.outputs, b.outputs, strict=True)
            if x in a.roots and y in b.roots
        ]
    taken = set(found.values())
    return {x: y for x, y in pairs if x not in found and y not in taken}


def _by_structure(a: CoreGraph, b: CoreGraph, roots: dict[str, str]) -> None:
    """Add the results of nodes of one meaning that read tensors which are pairs, in their order in the graphs."""
    waiting: dict[tuple[str, tuple[str, ...]], list[Sequence[str]]] = defaultdict(list)
    taken = set(roots.values())
    for node, data in walk(b):
        results = [b.roots[name] for name in b.finished(node) if name in b.roots]
        if results and not taken.intersection(results):
            waiting[meaning(node), data].append(results)
    for node, data in walk(a):
        results = [a.roots[name] for name in a.finished(node) if name in a.roots]
        if any(r in roots for r in results) or not all(d in roots for d in data):
            continue
        others = waiting.get((meaning(node), tuple(roots[d] for d in data)))
        if others:
            roots.update(zip(results, others.pop(0), strict=False))
