"""The nodes of a model as its front end gives them, for a page: one for each place that ops came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tilewright.ir.core import Module, Op, Value
from tilewright.ir.diag import Loc
from tilewright.ir.text import texts_of_ops
from tilewright.viewer.hierarchy import Placed, path_of
from tilewright.viewer.records import NodeView

Key = tuple[str, str, str] | int
"""What tells a node from others: its name, operator and value, or the number of an op that has none."""


@dataclass
class _Node:
    name: str
    operator: str
    path: tuple[str, ...] = ()
    reads: list[int] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    label: list[object] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


class SourceNodes:
    """The nodes of an imported graph; made before passes change it."""

    def __init__(self, module: Module) -> None:
        main = module.main
        self._nodes: list[_Node] = []
        self._numbers: dict[Key, int] = {}
        self._made: dict[Value, int] = {}
        texts = texts_of_ops(main)
        names = main.attrs.get("inputs", ())
        self.inputs = [self._end(name, "input", value) for name, value in zip(names, main.args, strict=False)]
        for number, op in enumerate(main.body.ops[:-1]):
            if op.name != "constant":
                self._add(op, number, texts.get(op, ""))
        names = main.attrs.get("outputs", ())
        self.outputs = [self._end(name, "output", v) for name, v in zip(names, main.returns, strict=False)]

    def _end(self, name: str, operator: str, value: Value) -> int:
        """An input or output of the model."""
        node = _Node(name, operator, types=[str(value.type)], label=[operator])
        if operator == "output" and value in self._made:
            node.reads.append(self._made[value])
        self._nodes.append(node)
        if operator == "input":
            self._made[value] = len(self._nodes) - 1
        return len(self._nodes) - 1

    def _add(self, op: Op, number: int, text: str) -> None:
        loc = op.loc
        key = _key(loc) or number
        if key not in self._numbers:
            self._numbers[key] = len(self._nodes)
            name = loc.node or loc.value
            self._nodes.append(_Node(name or op.name, loc.op or op.name, path_of(name) if name else ()))
        own = self._numbers[key]
        node = self._nodes[own]
        for value in _read_by(op):
            if value.op is not None and value.op.name == "constant":
                node.constants.append(f"{value.op.attrs['name']}: {value.type}")
            elif (made := self._made.get(value)) is not None and made != own and made not in node.reads:
                node.reads.append(made)
        results = [str(v.type) for v in op.results]
        node.types = results or node.types
        node.label += [op.name, *results, _attributes(op)]
        if text:
            node.text.append(text)
        for value in op.results:
            self._made[value] = own

    def placed(self) -> list[Placed]:
        """For the hierarchy."""
        return [Placed(n.path, tuple(n.label), tuple(n.reads)) for n in self._nodes]

    def numbers_of(self, locs: Iterable[Loc]) -> tuple[int, ...]:
        """The nodes at some places, each once, in their order."""
        keys = (_key(source) for loc in locs for source in loc.sources)
        return tuple(dict.fromkeys(self._numbers[k] for k in keys if k is not None and k in self._numbers))

    def views(
        self, groups: list[int], kernels: Mapping[int, Iterable[int]], errors: Mapping[str, float]
    ) -> tuple[NodeView, ...]:
        """The nodes in their groups, with the kernels that compute each, and the errors of those that were measured."""
        return tuple(
            NodeView(n.name, n.operator, groups[k], tuple(n.reads), tuple(dict.fromkeys(n.constants)), tuple(n.types),
                     "\n".join(n.text), tuple(kernels.get(k, ())), errors.get(n.name))
            for k, n in enumerate(self._nodes)
        )  # fmt: skip


def _key(loc: Loc) -> Key | None:
    return (loc.node, loc.op, loc.value) if loc.node or loc.value else None


def _read_by(op: Op) -> Iterable[Value]:
    """What an op reads, also in its blocks."""
    yield from op.operands
    for block in op.blocks:
        for inner in block.walk():
            yield from inner.operands


def _attributes(op: Op) -> str:
    plain = {name: value for name, value in sorted(op.attrs.items()) if isinstance(value, int | str | tuple)}
    return ", ".join(f"{name}={value}" for name, value in plain.items())


