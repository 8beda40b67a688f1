"""The blocks that a model repeats, such as the layers of an encoder, found in its graph whatever the names are.

Operators have labels: what they compute, of which types, and how far back what they read was computed. An interval of
the program is a convex region of the graph, and equal intervals that follow each other are copies of a block. Where a
copy before them has the same operators in other sizes, with a few more among them (as the first bottleneck of each
stage of a ResNet has), it counts as a variant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tilewright.accounts.repeats import Repeat, repeats
from tilewright.graph.fusion.classify import is_operator
from tilewright.ir.core import Block, Op
from tilewright.ir.diag import Loc

MOST_ADDED = 0.5
"""Operators that a variant has more, as a share of a copy's."""


@dataclass(frozen=True)
class RepeatedBlock:
    """Copies of a block, each as operators in order; the first `variants` of them have other sizes, or a few operators
    more."""

    copies: tuple[tuple[Op, ...], ...]
    variants: int = 0


def repeated_blocks(body: Block) -> list[RepeatedBlock]:
    """The blocks that repeat in a graph, in its order, and then those in its branches and loops; none lies within
    another, except that a branch or loop is an operator of the graph around it."""
    ops = [op for op in body.ops if is_operator(op) and op.operands]
    number = {op: n for n, op in enumerate(ops)}
    kinds = [*map(_kind, ops)]
    reads = [[number.get(v.op, -1) if v.op is not None else -1 for v in op.operands] for op in ops]
    taken = np.zeros(len(ops), bool)
    blocks = []
    for repeat in sorted(repeats(kinds, reads), key=lambda each: each.start - each.end):
        if not taken[repeat.start : repeat.end].any():  # by a variant of a larger one
            taken[repeat.start : repeat.end] = True
            blocks.append(_with_variant(repeat, ops, kinds, taken))
    blocks.sort(key=lambda block: number[block.copies[0][0]])
    return [*blocks, *(each for op in body.ops for inner in op.blocks for each in repeated_blocks(inner))]


def _kind(op: Op) -> Hashable:
    attrs = tuple(f"{name}={value}" for name, value in sorted(op.attrs.items()) if name != "name")
    types = tuple(str(v.type) for v in (*op.operands, *op.results))
    return op.name, attrs, types, id(op) if op.blocks else 0  # loops and branches are taken for different ones


def _with_variant(repeat: Repeat, ops: Sequence[Op], kinds: Sequence[Hashable], taken: np.ndarray) -> RepeatedBlock:
    """The block, with what is before it: more copies that read values from elsewhere, and an interval that is a variant
    of it."""
    start, period = repeat.start, repeat.period
    while start >= period and not taken[start - period : start].any() and (
        kinds[start - period : start] == kinds[start : start + period]
    ):
        taken[start - period : start] = True
        start -= period
    block = [tuple(ops[begin : begin + period]) for begin in range(start, repeat.end, period)]
    place, added = start, 0
    for name in reversed([op.name for op in block[0]]):
        place -= 1
        while place >= 0 and not taken[place] and ops[place].name != name and added <= MOST_ADDED * period:
            place, added = place - 1, added + 1
        if place < 0 or taken[place] or ops[place].name != name:
            return RepeatedBlock(tuple(block))
    variant = _of_one_module(ops[place:start], block)
    if not variant:
        return RepeatedBlock(tuple(block))
    taken[place:start] = True
    return RepeatedBlock((variant, *block), 1)


def _of_one_module(interval: Sequence[Op], block: Sequence[tuple[Op, ...]]) -> tuple[Op, ...]:
    """What an interval has of a variant: all of it, or of named modules, where each copy is one, the operators of the
    module that has most. () where these are not all that a copy has."""
    paths = [_common([_parts(op) for op in copy]) for copy in block]
    depth = len(paths[0])
    if not depth or any(len(path) != depth for path in paths):
        return tuple(interval)
    modules = Counter(tuple(_parts(op)[:depth]) for op in interval)
    module, _ = modules.most_common(1)[0]
    own = tuple(op for op in interval if tuple(_parts(op)[:depth]) == module)
    missing = Counter(op.name for op in block[0]) - Counter(op.name for op in own)
    shared = [parts[0] for parts in zip(*paths, strict=True) if len({*parts}) == 1]
    is_beside = len(module) == depth and all(part in module for part in shared)
    return own if is_beside and not missing else ()


def places_of(copy: Sequence[Op]) -> frozenset[Loc]:
    """The nodes of a copy."""
    return frozenset(source for op in copy for source in op.loc.sources)


def title_of(block: RepeatedBlock) -> str:
    """What people may call a block: the modules that its copies are in, with * for what differs, or its operators."""
    paths = [_common([_parts(op) for op in copy]) for copy in block.copies]
    if all(paths) and len({len(path) for path in paths}) == 1:
        return "/".join(parts[0] if len({*parts}) == 1 else _starred(parts) for parts in zip(*paths, strict=True))
    names = [name for name, _ in groupby(op.name for op in block.copies[-1])]
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _parts(op: Op) -> list[str]:
    return [part for part in op.loc.node.split("/") if part][:-1]


def _common(paths: Sequence[list[str]]) -> list[str]:
    named = [path for path in paths if path]
    shared: list[str] = []
    for parts in zip(*named, strict=False):
        if len({*parts}) > 1:
            break
        shared.append(parts[0])
    return shared


def _starred(parts: Sequence[str]) -> str:
    """`layer.*` of `layer.0`, `layer.1`, ..."""
    first = parts[0]
    shared = next((n for n in range(len(first)) if any(p[: n + 1] != first[: n + 1] for p in parts)), len(first))
    return f"{first[:shared]}*"
