"""Graphs of ONNX while they are written: their nodes, the names of values, and the constants that all of them share."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto

from tilewright.ir.core import Value
from tilewright.ir.sym import Sym


class Names:
    """Names of one kind, each of which is given once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {"", *taken}
        self._numbers: dict[str, int] = {}

    def fresh(self, wanted: str) -> str:
        """The name, or with a number behind it where it is taken."""
        name = wanted
        while name in self._taken:
            number = self._numbers[wanted] = self._numbers.get(wanted, 0) + 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name


class SizeSource(NamedTuple):
    """Where the value of a variable is read: the dim `place` of a tensor, or with `is_element` its element there."""

    tensor: str
    place: int
    is_element: bool = False


@dataclass(eq=False)
class OnnxScope:
    """One graph: the model's, or the body of a branch or a loop, which sees the names of the graphs around it."""

    values: ChainMap[Value, str] = field(default_factory=ChainMap)
    sizes: ChainMap[Sym, str] = field(default_factory=ChainMap)
    """Vectors of one i64 that hold the value of an expression."""
    sources: ChainMap[Sym, SizeSource] = field(default_factory=ChainMap)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    types: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)

    def inner(self) -> OnnxScope:
        """The scope of a graph in a node of this one."""
        return OnnxScope(self.values.new_child(), self.sizes.new_child(), self.sources.new_child())

    def defines(self, name: str) -> bool:
        """Whether a node of this graph gives the value."""
        return any(name in node.output for node in self.nodes)

    def rename(self, start: int, names: Mapping[str, str]) -> None:
        """Give other names to results of the nodes from `start` on."""
        for node in self.nodes[start:]:
            for k, name in enumerate(node.input):
                if name in names:
                    node.input[k] = names[name]
            for k, name in enumerate(node.output):
                if name in names:
                    node.output[k] = names[name]
            for graph in graphs_of(node):
                _rename_reads(graph, names)

    def live_nodes(self, wanted: Iterable[str]) -> list[onnx.NodeProto]:
        """The nodes that the results of these names need, in order."""
        needed, found = set(wanted), []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.output):
                found.append(node)
                needed.update(reads_of(node))
        return found[::-1]


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g


def reads_of(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, those of graphs in it included."""
    yield from (name for name in node.input if name)
    for graph in graphs_of(node):
        yield from (output.name for output in graph.output)
        for inner in graph.node:
            yield from reads_of(inner)


def _rename_reads(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        for k, name in enumerate(node.input):
            if name in names:
                node.input[k] = names[name]
        for inner in graphs_of(node):
            _rename_reads(inner, names)


@dataclass
class OnnxConstants:
    """The arrays of a model, which all of its graphs read; those that are equal and short are kept once."""

    names: Names
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    _known: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)

    def add(self, array: np.ndarray, wanted: str) -> str:
        """The name of a constant with these elements."""
        key = None
        if array.nbytes <= SHORT and array.dtype != np.object_:
            key = (array.dtype.name, array.shape, array.tobytes())
            if key in self._known:
                return self._known[key]
        name = self.names.fresh(wanted)
        self.arrays[name] = array
        if key is not None:
            self._known[key] = name
        return name


SHORT = 256
"""Bytes up to which a constant is looked for among others."""
