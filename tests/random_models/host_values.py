"""Steps of random models through values that are no tensors of numbers: sequences, optionals and strings. Each begins
and ends with tensors of numbers, and what lies between is added at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from tests.random_models.growth import Grown, Growth, Refused


class _Chain:
    """Nodes that are added together, and the values that they read."""

    def __init__(self, g: Growth) -> None:
        self.g = g
        self.nodes: list[NodeProto] = []
        self.reads: list[Grown] = []

    def of(self, value: Grown | np.ndarray) -> str:
        """The name of a value of the model, or of a constant."""
        found = self.g.constant(value) if isinstance(value, np.ndarray) else value
        if found not in self.reads:
            self.reads.append(found)
        return found.name

    def add(self, op: str, *operands: str, outputs: int = 1, **attrs: Any) -> Any:
        names = [self.g.fresh("s") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, operands, names, self.g.fresh("node"), **attrs))
        return names[0] if outputs == 1 else names

    def end(self, *outputs: str, decides: bool = False) -> None:
        self.g.chain(self.nodes, self.reads, outputs, decides=decides)


def _position(chain: _Chain, count: int) -> str:
    """A position among so many, known or computed."""
    g = chain.g
    place = g.random.randrange(-count, count)
    known = [v for v in g.values if v.dtype == "int64" and v.array.size and v.exact and not v.slack]
    if not known or g.chance(0.6):
        return chain.of(np.array(place))
    least = chain.add("ReduceMin", chain.of(g.random.choice(known)), keepdims=0)
    return chain.add("Mod", least, chain.of(np.array(count)))


def _sequence(chain: _Chain, x: Grown) -> tuple[str, int]:
    """A sequence of tensors of the dtype and rank of x, and how many there are."""
    g = chain.g
    if x.rank and g.chance(0.4):
        axis = g.axis(x)
        size = x.shape[axis]
        if g.chance(0.5) or size < 2:
            parts = g.random.randint(1, max(size, 1))
            return chain.add("SplitToSequence", chain.of(x), chain.of(np.array(parts)), axis=axis), -(-size // parts)
        first = g.random.randint(1, size - 1)
        return chain.add("SplitToSequence", chain.of(x), chain.of(np.array([first, size - first])), axis=axis), 2
    # of empty ones ONNX Runtime makes up elements where they are joined, whatever their other sizes
    alike = [v for v in g.values if v.dtype == x.dtype and v.rank == x.rank and v.array.size and not v.slack]
    members = [x, *g.random.choices(alike, k=g.random.randint(0, 3))]
    if g.chance(0.5):
        return chain.add("SequenceConstruct", *map(chain.of, members)), len(members)
    made = chain.add("SequenceEmpty", dtype=helper.np_dtype_to_tensor_dtype(x.array.dtype))
    for v in members:
        made = chain.add("SequenceInsert", made, chain.of(v))
    return made, len(members)


def sequence(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype in ("float32", "float64", "int64", "int32") and v.array.size > 0)
    with g.attempt():
        chain = _Chain(g)
        made, count = _sequence(chain, x)
        for _ in range(g.random.randint(0, 2)):
            if g.chance(0.4) and count > 1:
                made, count = chain.add("SequenceErase", made, _position(chain, count)), count - 1
            else:
                made, count = chain.add("SequenceInsert", made, chain.of(x), _position(chain, count)), count + 1
        end = g.random.choice((*("SequenceAt", "ConcatFromSequence") * 2, "SequenceLength"))
        if end == "SequenceAt":
            chain.end(chain.add(end, made, _position(chain, count)))
        elif end == "SequenceLength":
            chain.end(chain.add(end, made))
        else:
            new = g.chance(0.4)
            chain.end(chain.add(end, made, axis=g.random.randrange(x.rank + new or 1), new_axis=int(new)))


def sequence_loop(g: Growth) -> None:
    """A loop that appends rows of different lengths to a sequence."""
    x = g.pick(lambda v: v.dtype == "float32" and v.rank > 0)
    i, on, before, after, still, end, part, rows, one = (g.fresh("b") for _ in range(9))
    with g.attempt():
        chain = _Chain(g)
        zero, axes = chain.of(np.array([0])), chain.of(np.array([0]))
        nodes = [
            helper.make_node("Identity", [on], [still]),
            helper.make_node("Unsqueeze", [i, axes], [one]),
            helper.make_node("Add", [one, chain.of(np.array([1]))], [end]),
            helper.make_node("Slice", [chain.of(x), zero, end, axes], [part]),
            helper.make_node(g.random.choice(("Tanh", "Neg", "Relu")), [part], [rows]),
            helper.make_node("SequenceInsert", [before, rows], [after]),
        ]
        body = helper.make_graph(nodes, "body", [], [])
        shape = [None] * x.rank
        for name, code in ((i, TensorProto.INT64), (on, TensorProto.BOOL)):
            body.input.append(helper.make_tensor_value_info(name, code, ()))
        body.input.append(helper.make_tensor_sequence_value_info(before, TensorProto.FLOAT, shape))
        body.output.append(helper.make_tensor_value_info(still, TensorProto.BOOL, ()))
        body.output.append(helper.make_tensor_sequence_value_info(after, TensorProto.FLOAT, shape))
        trips = chain.of(np.array(g.random.randint(1, 4)))
        if g.chance(0.5):
            trips = chain.add("Size", chain.add("Shape", chain.of(x)))
        start = chain.add("SequenceEmpty")
        made = chain.add("Loop", trips, chain.of(np.array(True)), start, body=body)
        chain.end(chain.add("ConcatFromSequence", made, axis=0))


def optional(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype in ("float32", "int64", "bool"))
    with g.attempt():
        chain = _Chain(g)
        made = chain.add("Optional", chain.of(x))
        end = g.random.choice(("OptionalGetElement", "OptionalHasElement"))
        chain.end(chain.add(end, made))


MOVES = ("Identity", "Transpose", "Flatten", "Concat", "Gather", "Reshape", "Unsqueeze", "Expand", "Slice")


def _moved(chain: _Chain, text: str, rank: int) -> tuple[str, int]:
    """Strings at other places."""
    g = chain.g
    op = g.random.choice(MOVES)
    if op == "Concat" and rank:
        return chain.add(op, text, text, axis=g.random.randrange(-rank, rank)), rank
    if op == "Gather" and rank:
        return chain.add(op, text, chain.of(np.array([0, -1])), axis=rank - 1), rank  # ONNX Runtime copies one string
    if op == "Reshape":
        return chain.add(op, text, chain.of(np.array([-1]))), 1
    if op == "Unsqueeze":
        return chain.add(op, text, chain.of(np.array([g.random.randint(0, rank)]))), rank + 1
    if op == "Slice" and rank:
        ends = (np.array([n]) for n in (1, 100, g.random.randrange(rank)))
        return chain.add(op, text, *map(chain.of, ends)), rank
    if op == "Expand":
        return chain.add(op, text, chain.of(np.array([2, *[1] * rank]))), rank + 1
    if op == "Flatten":
        return chain.add(op, text), 2
    return chain.add("Transpose" if op == "Transpose" else "Identity", text), rank


def text(g: Growth) -> None:
    """Integers from 0 on as strings, which are moved, joined and compared."""
    with g.attempt():
        x = g.fed(g.elements(g.shape(), g.random.choice(("int64", "int32"))))
        if g.chance(0.5):
            x = g.pick(lambda v: v.dtype in ("int64", "int32"))
        if not x.array.size:
            raise Refused
        chain = _Chain(g)
        made, rank = chain.add("Cast", chain.add("Abs", chain.of(x)), to=TensorProto.STRING), x.rank
        for _ in range(g.random.randint(0, 3)):
            made, rank = _moved(chain, made, rank)
        end = g.random.choice(("Cast", "Equal", "RegexFullMatch", "StringSplit", "LabelEncoder", "StringConcat"))
        if end == "Cast":
            chain.end(chain.add(end, made, to=g.random.choice((TensorProto.INT64, TensorProto.FLOAT))))
        elif end == "LabelEncoder":
            attrs = {"keys_strings": ["0", "1", "2"], "default_int64": 7, "values_int64s": [3, 4, 5]}
            chain.end(chain.add(end, made, domain="ai.onnx.ml", **attrs))
        elif end == "Equal":
            other, _ = _moved(chain, made, 0) if g.chance(0.3) else (made, rank)
            chain.end(chain.add(end, made, other))
        elif g.opset < 20:
            raise Refused
        elif end == "RegexFullMatch":
            chain.end(chain.add(end, made, pattern=r"1?[0-3]+"))
        elif end == "StringSplit":
            _, count = chain.add(end, made, outputs=2, delimiter="1")
            chain.end(count)
        else:
            chain.end(chain.add("Cast", chain.add(end, made, made), to=TensorProto.FLOAT))


HOST_VALUES: dict[str, tuple[Callable[[Growth], object], float]] = {
    "sequence": (sequence, 0.8), "sequence loop": (sequence_loop, 0.3), "optional": (optional, 0.1),
    "text": (text, 0.6),
}  # fmt: skip
