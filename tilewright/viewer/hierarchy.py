"""The hierarchy in which a graph is shown: modules by the names of nodes, blocks that repeat, and pieces of what has no
names."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby, takewhile

import numpy as np

from tilewright.accounts.repeats import crossing, repeats
from tilewright.viewer.records import GroupView

MOST_CHILDREN = 120
"""Nodes that a group shows beside each other; more are cut into pieces."""

FEWEST_IN_PIECE, MOST_IN_PIECE = 30, 90

LEAST_COVERED = 12
"""Nodes that repeated blocks have together, or a part of all nodes where these are many."""

MOST_REPEATS = 40
"""Repetitions that a group is cut into: many short ones say nothing."""

DEEPEST = 24
"""Modules in each other that names are taken to tell of; what is further in stands in the last of them."""


@dataclass(frozen=True)
class Placed:
    """A node to be placed: the path of its module, what it is (equal for nodes that compute alike), the nodes that
    it reads, and whether it computes sizes of tensors alone."""

    path: tuple[str, ...]
    label: Hashable
    reads: tuple[int, ...]
    is_size: bool = False


@dataclass
class _Group:
    name: str
    kind: str = "module"
    children: list[_Group | int] = field(default_factory=list)

    def nodes(self) -> Iterator[int]:
        for child in self.children:
            if isinstance(child, int):
                yield child
            else:
                yield from child.nodes()

    @property
    def first(self) -> int:
        return min(self.nodes())


def path_of(name: str) -> tuple[str, ...]:
    """The modules that the name of a node says it is in, outermost first, without the node itself: of names such as
    "/encoder/layer.1/Add", "encoder.layer.1/add_2" (PyTorch) and "model/conv/BiasAdd;model/conv/Conv2D" (TFLite)."""
    first = name.split(";", 1)[0].strip("/")
    *modules, _ = first.split("/")
    if len(modules) == 1 and not name.startswith("/"):
        modules = _dotted(modules[0])
    return tuple(modules[:DEEPEST])


def _dotted(path: str) -> list[str]:
    """The modules of a dotted path; a number stays with the list that it is an index of."""
    found: list[str] = []
    for part in path.split("."):
        if part.isdecimal() and found:
            found[-1] += f".{part}"
        else:
            found.append(part)
    return found


def shared_path(paths: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The modules that all of some paths begin with."""
    shared = takewhile(lambda parts: len({*parts}) == 1, zip(*paths, strict=False))
    return tuple(parts[0] for parts in shared)


def hierarchy(nodes: Sequence[Placed]) -> tuple[tuple[GroupView, ...], list[int]]:
    """The groups, a parent before those in it, and the group of each node (-1: it is in none)."""
    root = _Group("")
    folders: dict[tuple[str, ...], _Group] = {(): root}
    for number, node in enumerate(nodes):
        _folder(node.path, folders).children.append(number)
    _simplify(root)
    _cut(root, nodes)
    _stack(root, nodes)
    groups: list[GroupView] = []
    placed = [-1] * len(nodes)
    _number(root, -1, groups, placed)
    return tuple(groups), placed


def _folder(path: tuple[str, ...], folders: dict[tuple[str, ...], _Group]) -> _Group:
    found = folders.get(path)
    if found is None:
        found = folders[path] = _Group(path[-1])
        _folder(path[:-1], folders).children.append(found)
    return found


def _simplify(group: _Group) -> None:
    """Groups of one group alone become one, and those of one node that node."""
    for at, child in enumerate(group.children):
        if isinstance(child, int):
            continue
        _simplify(child)
        (only, *others) = child.children
        if not others and isinstance(only, int):
            group.children[at] = only
        elif not others and isinstance(only, _Group):
            group.children[at] = _Group(f"{child.name}/{only.name}", only.kind, only.children)


def _cut(group: _Group, nodes: Sequence[Placed]) -> None:
    """Cut groups of too many nodes: into blocks that repeat, and then where the fewest values are needed later."""
    for child in group.children:
        if isinstance(child, _Group):
            _cut(child, nodes)
    own = [child for child in group.children if isinstance(child, int)]
    if len(own) <= MOST_CHILDREN:
        return
    others = [child for child in group.children if not isinstance(child, int)]
    place = {number: at for at, number in enumerate(own)}
    reads = [[place.get(read, -1) for read in nodes[number].reads] for number in own]
    made: list[_Group | int] = []
    begin = 0
    for found in repeats([nodes[n].label for n in own], reads, max(LEAST_COVERED, len(own) // MOST_REPEATS)):
        made += _pieces(own, reads, begin, found.start)
        begins = range(found.start, found.end, found.period)
        blocks = [_Group(f"block {k + 1}", "block", list(own[at : at + found.period])) for k, at in enumerate(begins)]
        made.append(_Group(f"blocks of {found.period} nodes", "repeat", [*blocks]))
        begin = found.end
    made += _pieces(own, reads, begin, len(own))
    group.children = sorted([*others, *made], key=lambda c: c if isinstance(c, int) else c.first)


def _pieces(own: Sequence[int], reads: Sequence[Sequence[int]], begin: int, end: int) -> list[_Group | int]:
    """The nodes between two places, in pieces where they are many."""
    if end - begin <= MOST_CHILDREN:
        return list(own[begin:end])
    crossed = crossing([[read - begin for read in each] for each in reads[begin:end]])[1:]
    found: list[_Group | int] = []
    at = begin
    while at < end:
        cut = end
        if end - at > MOST_IN_PIECE:
            low, high = at + FEWEST_IN_PIECE, min(at + MOST_IN_PIECE, end - FEWEST_IN_PIECE)
            cut = low + int(np.argmin(crossed[low - begin - 1 : high - begin]))
        found.append(_Group(f"nodes {own[at] + 1} to {own[cut - 1] + 1}", "piece", list(own[at:cut])))
        at = cut
    return found


def _stack(group: _Group, nodes: Sequence[Placed]) -> None:
    """Groups of the same structure that follow each other are put into one, which says how many there are."""
    for child in group.children:
        if isinstance(child, _Group):
            _stack(child, nodes)
    if group.kind == "repeat":
        return
    made: list[_Group | int] = []
    for _, run in groupby(group.children, lambda c: c if isinstance(c, int) else _structure(c, nodes)):
        same = list(run)
        blocks = [c for c in same if isinstance(c, _Group)]
        if len(blocks) > 1:
            made.append(_Group(f"{blocks[0].name} to {blocks[-1].name}", "repeat", list(same)))
        else:
            made += same
    group.children = made


def _structure(group: _Group, nodes: Sequence[Placed]) -> Hashable:
    """Equal for groups whose nodes compute alike and read each other alike. Sizes do not count: exporters compute those
    that several layers need once, in the first of them."""
    every = sorted(group.nodes())
    own = [n for n in every if not nodes[n].is_size] or every
    place = {number: at for at, number in enumerate(own)}

    def read_by(n: int) -> tuple[int, ...]:
        return tuple(place.get(r, -1) for r in nodes[n].reads if r in place or not nodes[r].is_size)

    return tuple((nodes[n].label, read_by(n)) for n in own)


def _number(group: _Group, number: int, groups: list[GroupView], placed: list[int]) -> None:
    """Number all groups. Those in one have names of their own: a page finds them by these."""
    names: set[str] = set()
    for child in group.children:
        if isinstance(child, int):
            placed[child] = number
        else:
            times = len(child.children) if child.kind == "repeat" else 0
            groups.append(GroupView(_free(child.name, names), number, child.kind, times))
            _number(child, len(groups) - 1, groups, placed)


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number where it is taken; it is taken then."""
    found = next(each for k in count(1) if (each := name if k == 1 else f"{name} ({k})") not in taken)
    taken.add(found)
    return found


def group_of_kernel(nodes: Sequence[int], placed: Sequence[int], groups: Sequence[GroupView]) -> int:
    """The innermost group that has most of the nodes of a kernel, the first of which is the one it is named after."""
    if not nodes:
        return -1
    above: dict[int, int] = {}
    for node in nodes:
        for group in lineage(placed[node], groups):
            above[group] = above.get(group, 0) + 1
    return next((g for g in lineage(placed[nodes[0]], groups) if 2 * above[g] > len(nodes)), -1)


def lineage(group: int, groups: Sequence[GroupView]) -> Iterator[int]:
    """A group and those that it is in, innermost first."""
    while group >= 0:
        yield group
        group = groups[group].parent
