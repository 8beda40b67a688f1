"""An ONNX graph without what only changes types: its tensors as they are read, and the layers between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx

from tilewright.quantization.network import outer_names, readers_of

PASSING = frozenset({"QuantizeLinear", "DequantizeLinear", "Identity", "Cast", "Dropout"})
"""Operators whose result stands for their first operand."""

CONTRACTIONS = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "Attention", "Einsum"}
)
"""Operators that give a layer its name."""

MEANING = {
    "QLinearConv": "Conv", "ConvInteger": "Conv", "FusedConv": "Conv", "QLinearMatMul": "MatMul", "QGemm": "Gemm",
    "MatMulInteger": "MatMul", "DynamicQuantizeMatMul": "MatMul", "MatMulIntegerToFloat": "MatMul",
    "MatMulNBits": "MatMul", "FusedMatMul": "MatMul", "FusedGemm": "Gemm", "DynamicQuantizeLSTM": "LSTM",
    "QAttention": "Attention",
}  # fmt: skip
"""Operators on integers, and fused ones, with what they mean."""

PARAMETERS = {"QuantizeLinear": 1, "QLinearConv": 6, "QLinearMatMul": 6, "QGemm": 7}
"""Where operators that give integers have the scale and zero point of these; others of the kind have them last."""


@dataclass(frozen=True)
class IntegerParameters:
    """The names of the scale and the zero point of a tensor of integers."""

    scale: str
    zero_point: str


@dataclass(frozen=True)
class Segment:
    """A layer: the nodes that compute a tensor from others that are `inputs`, and the one that gives it its name."""

    inputs: tuple[str, ...]
    node: str
    operator: str


class CoreGraph:
    """A graph whose tensors are told apart by their roots: names that only type-changing operators lie between have one
    root."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.outputs = tuple(output.name for output in graph.output)
        self.initializers = frozenset(tensor.name for tensor in graph.initializer)
        self.inputs = tuple(value.name for value in graph.input if value.name not in self.initializers)
        self.producers: Mapping[str, onnx.NodeProto] = {
            name: node for node in graph.node for name in node.output if name
        }

    @cached_property
    def readers(self) -> Mapping[str, list[onnx.NodeProto]]:
        return readers_of(self.graph)

    @cached_property
    def computed(self) -> frozenset[str]:
        """Names that depend on an input."""
        found = set(self.inputs)
        for node in self.graph.node:
            if any(name in found for name in outer_names(node)):
                found.update(name for name in node.output if name)
        return frozenset(found)

    @cached_property
    def members(self) -> Mapping[str, list[str]]:
        """All names of each tensor, by its root, in the order of the graph."""
        found: dict[str, list[str]] = {name: [name] for name in self.inputs}
        roots = self.roots
        for node in self.graph.node:
            for name in node.output:
                if name in self.computed:
                    found.setdefault(roots[name], []).append(name)
        return found

    @cached_property
    def roots(self) -> Mapping[str, str]:
        """The root of each computed name."""
        found = {name: name for name in self.inputs}
        for node in self.graph.node:
            passes = node.op_type in PASSING and node.input and node.input[0] in self.computed
            for place, name in enumerate(node.output):
                if name in self.computed:
                    found[name] = found.get(node.input[0], node.input[0]) if passes and not place else name
        return found

    @cached_property
    def nodes(self) -> tuple[onnx.NodeProto, ...]:
        """Those that compute something of the inputs, in order, without type-changing ones."""
        return tuple(
            node
            for node in self.graph.node
            if node.op_type not in PASSING and any(name in self.computed for name in node.output)
        )

    def as_read(self, root: str) -> str:
        """The name by which a tensor is compared: an output of the model, else what the layers that read it see, else
        the root itself."""
        members = self.members[root]
        for name in members:
            if name in self.outputs:
                return name
        read = [m for m in members if any(node.op_type not in PASSING for node in self.readers.get(m, ()))]
        return read[0] if len(read) == 1 else root

    def parameters(self, name: str) -> IntegerParameters | None:
        """Those of a tensor of integers that an operator on integers gives; None for others."""
        node = self.producers.get(name)
        if node is None or not (node.op_type.startswith("QLinear") or node.op_type in PARAMETERS):
            return None
        place = PARAMETERS.get(node.op_type, len(node.input) - 2)
        found = [node.input[i] if i < len(node.input) else "" for i in (place, place + 1)]
        return IntegerParameters(*found) if found[0] else None

    def segment(self, name: str, ends: Mapping[str, str]) -> Segment:
        """The layer that computes `name` from those of `ends` (names by roots) that lie before it."""
        inputs: dict[str, None] = {}
        nodes: list[onnx.NodeProto] = []
        pending, seen = [name], set[str]()
        while pending:
            current = pending.pop()
            node = self.producers.get(current)
            if current in seen:
                continue
            seen.add(current)
            if current != name and current == ends.get(self.roots.get(current, "")):
                inputs.setdefault(current)
            elif node is not None and current in self.computed:
                nodes.append(node)
                pending.extend(reversed([n for n in outer_names(node) if n in self.computed]))
        named = next((n for n in nodes if meaning(n) in CONTRACTIONS), None)
        own = next((n for n in nodes if n.op_type not in PASSING), None)
        chosen = named or own
        if chosen is None:  # an input, as the layers read it
            return Segment(tuple(inputs), self.roots[name], "input")
        return Segment(tuple(inputs), label(chosen), meaning(chosen))

    def operator(self, root: str) -> str:
        """The meaning of what computes a tensor; "" for an input."""
        node = self.producers.get(root)
        return "" if node is None else meaning(node)

    def data_of(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """The roots of what a node reads that is computed."""
        return tuple(self.roots[name] for name in outer_names(node) if name in self.computed)

    def finished(self, node: onnx.NodeProto) -> Sequence[str]:
        """The results of a node; of sums of integers, what their dequantisation gives."""
        if node.op_type not in ("ConvInteger", "MatMulInteger"):
            return list(node.output)
        name = node.output[0]
        for _ in range(3):  # a cast, a product with the scale, and perhaps a view
            readers = self.readers.get(name, [])
            if len(readers) != 1 or readers[0].op_type not in ("Cast", "Mul", "Reshape"):
                break
            name = readers[0].output[0]
        return [name]


def meaning(node: onnx.NodeProto) -> str:
    return MEANING.get(node.op_type, node.op_type.removeprefix("QLinear"))


def label(node: onnx.NodeProto) -> str:
    return node.name or next(iter(node.output), node.op_type)


def walk(graph: CoreGraph) -> Iterator[tuple[onnx.NodeProto, tuple[str, ...]]]:
    """The nodes of a graph with the roots that they read, in order."""
    for node in graph.nodes:
        yield node, graph.data_of(node)
