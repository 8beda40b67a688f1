"""The nodes of a model as its front end gives them, for a page: one for each place that ops came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.ir.core import Module, Op, Value
from tilewright.ir.diag import Loc
from tilewright.ir.dtype import DType
from tilewright.ir.text import texts_of_ops
from tilewright.ir.types import TensorType
from tilewright.ops.traits.derive import traits_of
from tilewright.viewer.hierarchy import Placed, path_of, shared_path
from tilewright.viewer.records import NodeView

Key = tuple[str, str, str] | int
"""What tells a node from others: its name, operator and value, or the number of an op that has none."""


MOST_ENDS = 12
"""Inputs, or outputs, that stand beside the modules of a model; more are a group: a decoder has two for each layer."""

_BETWEEN = "Layer"
"""The operator of nodes that the front end of decoders makes of what lies between nodes with weights."""

MOST_OPERATORS = 3
"""Operators that such a node is named after, at most."""


@dataclass
class _Node:
    name: str
    operator: str
    path: tuple[str, ...] = ()
    """Of its group."""
    reads: list[int] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    label: list[object] = field(default_factory=list)
    operators: dict[str, bool] = field(default_factory=dict)
    """Those of its ops, and whether they compute."""
    text: list[str] = field(default_factory=list)
    is_size: bool = False


class SourceNodes:
    """The nodes of an imported graph, those in branches and loops included; made before passes change it."""

    def __init__(self, module: Module) -> None:
        main = module.main
        self._nodes: list[_Node] = []
        self._numbers: dict[Key, int] = {}
        self._made: dict[Value, int] = {}
        self._texts = texts_of_ops(main)
        names = main.attrs.get("inputs", ())
        path = ("inputs",) if len(names) > MOST_ENDS else ()
        self.inputs = [self._end(name, "input", value, path) for name, value in zip(names, main.args, strict=False)]
        self._add_all(main.body.ops[:-1], ())
        names = main.attrs.get("outputs", ())
        path = ("outputs",) if len(names) > MOST_ENDS else ()
        self.outputs = [self._end(name, "output", v, path) for name, v in zip(names, main.returns, strict=False)]
        self._texts.clear()
        self._adopt()

    def _end(self, name: str, operator: str, value: Value, path: tuple[str, ...]) -> int:
        """An input or output of the model."""
        node = _Node(name, operator, path, types=[str(value.type)], label=[operator])
        if operator == "output" and value in self._made:
            node.reads.append(self._made[value])
        self._nodes.append(node)
        if operator == "input":
            self._made[value] = len(self._nodes) - 1
        return len(self._nodes) - 1

    def _add_all(self, ops: Sequence[Op], inside: tuple[str, ...], holder: Key | None = None) -> None:
        """Add the nodes of some ops, which are in the branch or loop of this path, whose node is the `holder`."""
        holding = {_key(op.loc) for op in ops if _holds_nodes(op)} | ({holder} if holder is not None else set())
        for op in ops:
            if op.name == "constant":
                continue
            if _holds_nodes(op):
                self._add_holding(op, inside)
            elif _key(op.loc) in holding:
                self._pass_on(op)
            else:
                self._add(op, _path(op.loc, inside), _read_by(op), self._texts.get(op, ""))

    def _add_holding(self, op: Op, inside: tuple[str, ...]) -> None:
        """Add the nodes in a branch or loop, and then itself, in a group of its name. It reads what they yield."""
        name = op.loc.node or op.loc.value
        group = (*_path(op.loc, inside), name.strip("/").rpartition("/")[2] or op.name)
        yielded: list[Value] = []
        for block, part in zip(op.blocks, _parts(op), strict=True):
            given = op.operands[len(op.operands) - len(block.args) :]
            self._made |= {arg: self._made[v] for arg, v in zip(block.args, given, strict=False) if v in self._made}
            *inner, last = block.ops
            self._add_all(inner, (*group, *part), holder=_key(op.loc))
            yielded += last.operands
        head = self._texts.get(op, "").partition("\n")[0]
        self._add(op, group, (*op.operands, *yielded), f"{head} ... }}" if head else "")

    def _adopt(self) -> None:
        """Put nodes without modules into those that all around them are in: what reads them, and what they read.
        Branches that the front end computes both of, and nodes that exporters put between, have no modules."""
        readers: list[list[int]] = [[] for _ in self._nodes]
        for number, node in enumerate(self._nodes):
            for read in node.reads:
                readers[read].append(number)
        for node, own in zip(reversed(self._nodes), reversed(readers), strict=True):
            if node.path or not own or node.operator == "input":
                continue
            sources = (path for k in node.reads if (path := self._nodes[k].path))
            node.path = shared_path([*(self._nodes[k].path for k in own), *sources])

    def _pass_on(self, op: Op) -> None:
        """What a branch or loop computes beside its nodes comes from what is read for it."""
        if (made := next((self._made[v] for v in op.operands if v in self._made), None)) is not None:
            self._made |= dict.fromkeys(op.results, made)

    def _add(self, op: Op, path: tuple[str, ...], reads: Iterable[Value], text: str) -> None:
        """Add the node that an op is of, in the group of this path."""
        loc = op.loc
        key = _key(loc) or len(self._nodes)
        if key not in self._numbers:
            self._numbers[key] = len(self._nodes)
            self._nodes.append(_Node(loc.node or loc.value or op.name, loc.op or op.name, path, is_size=True))
        own = self._numbers[key]
        node = self._nodes[own]
        for value in reads:
            if value.op is not None and value.op.name == "constant":
                node.constants.append(f"{value.op.attrs['name']}: {value.type}")
            elif (made := self._made.get(value)) is not None and made != own and made not in node.reads:
                node.reads.append(made)
        results = [str(v.type) for v in op.results]
        node.types = results or node.types
        node.is_size &= all(map(_may_be_sizes, op.results)) and all(self._nodes[k].is_size for k in node.reads)
        node.label += [op.name, *results, _attributes(op)]
        node.operators.setdefault(op.name, _computes(op))
        if text:
            node.text.append(text)
        for value in op.results:
            self._made[value] = own

    def placed(self) -> list[Placed]:
        """For the hierarchy."""
        return [Placed(n.path, tuple(n.label), tuple(n.reads), n.is_size) for n in self._nodes]

    def numbers_of(self, locs: Iterable[Loc]) -> tuple[int, ...]:
        """The nodes at some places, each once, in their order."""
        keys = (_key(source) for loc in locs for source in loc.sources)
        return tuple(dict.fromkeys(self._numbers[k] for k in keys if k is not None and k in self._numbers))

    def views(
        self, groups: list[int], kernels: Mapping[int, Iterable[int]], errors: Mapping[str, float]
    ) -> tuple[NodeView, ...]:
        """The nodes in their groups, with the kernels that compute each, and the errors of those that were measured."""
        return tuple(
            NodeView(n.name, _operator(n), groups[k], tuple(n.reads), tuple(dict.fromkeys(n.constants)), tuple(n.types),
                     "\n".join(n.text), tuple(kernels.get(k, ())), errors.get(n.name))
            for k, n in enumerate(self._nodes)
        )  # fmt: skip


def _operator(node: _Node) -> str:
    """What a node computes."""
    if node.operator != _BETWEEN:
        return node.operator
    named = [name for name, computes in node.operators.items() if computes] or [*node.operators]
    more = ", ..." if len(named) > MOST_OPERATORS else ""
    return f"{', '.join(named[:MOST_OPERATORS])}{more}"


def _computes(op: Op) -> bool:
    """Whether it does more than move elements or convert them to another type."""
    converts = len(op.operands) == 1 and all(_dtype(v) != _dtype(op.operands[0]) for v in op.results)
    return not converts and not traits_of(op).moves


def _dtype(value: Value) -> DType | None:
    return value.type.dtype if isinstance(value.type, TensorType) else None


def _may_be_sizes(value: Value) -> bool:
    """Whether it is an integer or a row of them."""
    return isinstance(value.type, TensorType) and value.type.dtype.is_int and value.type.rank <= 1


def _path(loc: Loc, inside: tuple[str, ...]) -> tuple[str, ...]:
    """The group of a node: the modules of its name, or the branch or loop that it is in, with the modules that its
    name has beyond those around this."""
    name = loc.node or loc.value
    own = path_of(name) if name else ()
    return (*inside, *own[len(shared_path([own, inside])) :])


def _parts(op: Op) -> list[tuple[str, ...]]:
    """What the blocks of a branch or loop are called."""
    if op.name == "branch" and len(op.blocks) == 2:
        return [("then",), ("else",)]
    return [(f"block {k + 1}",) if len(op.blocks) > 1 else () for k in range(len(op.blocks))]


def _holds_nodes(op: Op) -> bool:
    """Whether a branch or loop is a node of the model that holds others."""
    own = _key(op.loc)
    if own is None:
        return False
    inner = (each for block in op.blocks for each in block.ops if each.name not in ("constant", "yield"))
    return any(_key(each.loc) not in (None, own) for each in inner)


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


