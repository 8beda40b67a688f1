"""Which tensor of one graph is which of another: by names, and where these differ by structure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.comparison.graph import CoreGraph, meaning
from tilewright.ir.core import Op, Value
from tilewright.ops.traits.derive import traits_of
from tilewright.ops.traits.pairing import is_elementwise

SUFFIXES = re.compile(r"(_(QuantizeLinear|DequantizeLinear)_Output(_\d+)?|_quantized|_dequantized|:0)$")
"""What quantisers append to the names of tensors."""

LEAST_AGREEMENT = 0.5
"""Share of the tensors of equal names that are computed alike; with fewer, names mean nothing."""


@dataclass(frozen=True)
class TensorPair:
    """The values by which a tensor is compared in the two graphs, and the names by which it is known there."""

    first: Value
    second: Value
    names: tuple[str, str]


def pair_tensors(a: CoreGraph, b: CoreGraph) -> list[TensorPair]:
    """Those that have names in both, in the order of the second graph."""
    roots = _by_names(a, b)
    agreeing = [_is_alike(x.op, y.op) for x, y in roots.items()]
    if agreeing and sum(agreeing) < LEAST_AGREEMENT * len(agreeing):
        roots = {}
    roots |= _ends(a, b, roots)
    _by_structure(a, b, roots)
    order = {root: place for place, root in enumerate(b.members)}
    found = []
    for x, y in sorted(roots.items(), key=lambda pair: order[pair[1]]):
        first, second = a.as_read(x), b.as_read(y)
        names = (first.name or next(iter(a.names(x)), "")), (second.name or next(iter(b.names(y)), ""))
        if all(names):  # what has no name is a part of a layer: sums before a bias, say, which other factors may be in
            found.append(TensorPair(first, second, names))
    return found


def _by_names(a: CoreGraph, b: CoreGraph) -> dict[Value, Value]:
    """Roots of tensors that have a name in common, that of the second by that of the first."""
    names: dict[str, Value] = {}
    for root in b.members:
        for name in _plain(b.names(root)):
            names.setdefault(name, root)
    found: dict[Value, Value] = {}
    taken: set[Value] = set()
    for root in a.members:
        other = next((names[name] for name in _plain(a.names(root)) if name in names), None)
        if other is not None and other not in taken:
            found[root] = other
            taken.add(other)
    return found


def _plain(names: Sequence[str]) -> list[str]:
    """The names, and then what they are without what a quantiser appends."""
    return [*names, *(SUFFIXES.sub("", name) for name in names)]


def _is_alike(first: Op | None, second: Op | None) -> bool:
    """Whether two ops mean the same, or one may have become part of the other: of the layer before it, which then has
    the name of its result."""
    if first is None or second is None:
        return first is second
    if meaning(first) == meaning(second):
        return True
    return any(traits_of(x).sums_products and _may_be_part(y) for x, y in ((first, second), (second, first)))


def _may_be_part(op: Op) -> bool:
    return is_elementwise(op) or traits_of(op).moves_one


def _ends(a: CoreGraph, b: CoreGraph, found: Mapping[Value, Value]) -> dict[Value, Value]:
    """Inputs by their order, and outputs where there are equally many."""
    pairs = list(zip(a.inputs.values(), b.inputs.values(), strict=False))
    if len(a.outputs) == len(b.outputs):
        pairs += [
            (a.roots[x], b.roots[y])
            for x, y in zip(a.outputs.values(), b.outputs.values(), strict=True)
            if x in a.roots and y in b.roots
        ]
    taken = set(found.values())
    return {x: y for x, y in pairs if x not in found and y not in taken}


def _by_structure(a: CoreGraph, b: CoreGraph, roots: dict[Value, Value]) -> None:
    """Add the results of ops of one meaning that read tensors which are pairs, in their order in the graphs."""
    waiting: dict[tuple[str, tuple[Value, ...]], list[Sequence[Value]]] = defaultdict(list)
    taken = set(roots.values())
    for op in b.ops:
        results = [b.roots[value] for value in b.finished(op) if value in b.roots]
        if results and not taken.intersection(results):
            waiting[meaning(op), b.data_of(op)].append(results)
    for op in a.ops:
        results = [a.roots[value] for value in a.finished(op) if value in a.roots]
        data = a.data_of(op)
        if any(r in roots for r in results) or not all(d in roots for d in data):
            continue
        others = waiting.get((meaning(op), tuple(roots[d] for d in data)))
        if others:
            roots.update(zip(results, others.pop(0), strict=False))
