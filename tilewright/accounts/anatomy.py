"""The blocks that a model repeats, such as the layers of an encoder, found in its graph whatever the names are.

Operators have labels: what they compute, of which types, and how far back what they read was computed. An interval of
the program is a convex region of the graph, and equal intervals that follow each other are copies of a block. Where a
copy before them has the same operators in other sizes, with a few more among them (as the first bottleneck of each
stage of a ResNet has), it counts as a variant.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tilewright.graph.fusion.classify import is_operator
from tilewright.ir.core import Block, Op
from tilewright.ir.diag import Loc

LEAST_NODES = 3
"""Operators of a block at least; shorter ones repeat in any model."""

LONGEST = 2000
"""Operators of a block at most, and of programs that are looked at ten times as many."""

MOST_ADDED = 0.5
"""Operators that a variant has more, as a share of a copy's."""


@dataclass(frozen=True)
class RepeatedBlock:
    """Copies of a block, each as operators in order; the first `variants` of them have other sizes, or a few operators
    more."""

    copies: tuple[tuple[Op, ...], ...]
    variants: int = 0


def repeated_blocks(body: Block) -> list[RepeatedBlock]:
    """The blocks that repeat in a graph, in its order; none lies within another. What covers most counts first, and of
    periods that cover alike the shortest."""
    ops = [op for op in body.ops if is_operator(op) and op.operands]
    if not 2 * LEAST_NODES <= len(ops) <= 10 * LONGEST:
        return []
    program = _Program(ops)
    taken = np.zeros(len(ops), bool)
    found: list[tuple[int, RepeatedBlock]] = []
    for start, period, copies in _candidates(program):
        span = slice(start, start + period * copies)
        if not taken[span].any():
            taken[span] = True
            found.append((start, _with_variant(start, period, copies, program, taken)))
    return [block for _, block in sorted(found, key=lambda each: each[0])]


class _Program:
    """Operators in order: what each computes of which types, as a number, and how far back what it reads was
    computed."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self.number = {op: n for n, op in enumerate(ops)}
        self.kinds = _numbers([_kind(op) for op in ops])
        self.distances = [
            tuple(n - self.number[v.op] if v.op in self.number else 0 for v in op.operands)
            for n, op in enumerate(ops)
        ]

    def labels(self, near: int) -> np.ndarray:
        """Equal numbers for operators that compute alike, of values at the same distances; those further away than
        `near`, such as masks and tables that all copies of a block read, are not told apart."""
        clipped = (tuple(d if d <= near else -1 for d in distances) for distances in self.distances)
        return _numbers([*zip(self.kinds.tolist(), clipped, strict=True)])


def _kind(op: Op) -> Hashable:
    attrs = tuple(f"{name}={value}" for name, value in sorted(op.attrs.items()) if name != "name")
    types = tuple(str(v.type) for v in (*op.operands, *op.results))
    return op.name, attrs, types, id(op) if op.blocks else 0  # loops and branches are taken for different ones


def _candidates(program: _Program) -> list[tuple[int, int, int]]:
    """Start, period and number of copies of all that repeats, what covers most first."""
    crossing = _crossing(program)
    labels, near = program.kinds, 0
    found = []
    for period in range(LEAST_NODES, min(len(program.ops) // 2, LONGEST) + 1):
        if near < period:
            near = 2 * max(near, LEAST_NODES)
            labels = program.labels(near)
        equal = labels[:-period] == labels[period:]
        if int(equal.sum()) < period:
            continue
        for begin, end in _runs(equal):
            copies = (end - begin) // period + 1
            if copies > 1 and not _is_of_one(labels[begin : begin + period]):
                length = period * copies
                starts = range(begin, begin + (end - begin) % period + 1)  # where fewest values are handed on
                start = min(starts, key=lambda s: (sum(crossing[s : s + length + 1 : period]), -s))
                found.append((start, period, copies))
    return sorted(found, key=lambda each: (-each[1] * each[2], each[1]))


def _numbers(labels: Sequence[Hashable]) -> np.ndarray:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels])


def _runs(equal: np.ndarray) -> Iterator[tuple[int, int]]:
    """Begin and end of what is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], equal, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _is_of_one(labels: np.ndarray) -> bool:
    """Whether all operators are alike: a chain of one operator is no block."""
    return bool((labels == labels[0]).all())


def _crossing(program: _Program) -> list[int]:
    """How many values are read behind each place of the program that are computed before it: few where blocks meet."""
    number = program.number
    change = [0] * (len(number) + 2)
    for op, n in number.items():
        last = max((number[u] for v in op.results for u in v.users if u in number), default=n)
        change[n + 1] += 1
        change[last + 1] -= 1
    total, found = 0, []
    for each in change[:-1]:
        total += each
        found.append(total)
    return found


def _with_variant(start: int, period: int, copies: int, program: _Program, taken: np.ndarray) -> RepeatedBlock:
    """The block, with the interval before it where that is a variant of it, or one more copy that reads values from
    elsewhere."""
    ops = program.ops
    block = [tuple(ops[start + k * period : start + (k + 1) * period]) for k in range(copies)]
    place, added = start, 0
    for name in reversed([op.name for op in block[0]]):
        place -= 1
        while place >= 0 and not taken[place] and ops[place].name != name and added <= MOST_ADDED * period:
            place, added = place - 1, added + 1
        if place < 0 or taken[place] or ops[place].name != name:
            return RepeatedBlock(tuple(block))
    taken[place:start] = True
    is_copy = np.array_equal(program.kinds[place:start], program.kinds[start : start + period])
    return RepeatedBlock((tuple(ops[place:start]), *block), 0 if is_copy else 1)


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
