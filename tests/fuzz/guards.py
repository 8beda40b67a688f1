"""Random guards: branches that would fail, or be wrong, where they are not taken; the other one gives the result.

A model asks something of sizes or values, and takes one of two branches of random operators over its inputs: at the
top, in a loop, or in another branch. Only what the branch that is taken does may be noticed; ONNX Runtime tells what
that is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

import tilewright
from tests.fuzz.registry import Tried
from tests.random_models.isolated import EndedError, Isolated
from tilewright.ir.diag import TilewrightError, UnsupportedError

SIZES = (0, 1, 2, 3, 4, 6, 7)
CALLS = 6
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

_onnxruntime = Isolated()


class Guards:
    """The nodes of a model that is being made. Inputs: x and y, vectors of floats; i, a vector of integers; d and k,
    single integers; b, a flag."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self.kinds: list[str] = []
        fixed = self.random.random() < 0.3
        names = ("n", "m", "l")
        self.sizes = {n: self.random.choice(SIZES[1:]) if fixed or self.random.random() < 0.2 else None for n in names}

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def node(self, nodes: list[NodeProto], op: str, *inputs: str, **attributes: object) -> str:
        name = self.name()
        nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def number(self, nodes: list[NodeProto], value: object, dtype: type = np.int64) -> str:
        array = onnx.numpy_helper.from_array(np.array(value, dtype))
        return self.node(nodes, "Constant", value=array)

    # Conditions

    def condition(self, nodes: list[NodeProto]) -> str:
        kind = self.random.choice(("flag", "size", "index", "divisor", "value", "both"))
        if kind == "flag":
            return "b"
        if kind == "both":
            op = self.random.choice(("And", "Or"))
            return self.node(nodes, op, self.condition(nodes), self.condition(nodes))
        if kind == "size":
            size = self.node(nodes, "Size", self.random.choice("xyi"))
            op = self.random.choice(("Equal", "Less", "Greater"))
            other = self.random.choice((self.number(nodes, self.random.choice(SIZES)), self.node(nodes, "Size", "y")))
            return self.node(nodes, op, size, other)
        if kind == "index":
            return self.node(nodes, "Less", "k", self.node(nodes, "Size", "x"))
        if kind == "divisor":
            return self.node(nodes, "Not", self.node(nodes, "Equal", "d", self.number(nodes, 0)))
        total = self.node(nodes, "ReduceSum", "x", keepdims=0)
        return self.node(nodes, "Greater", total, self.number(nodes, 0, np.float32))

    # Branches: vectors of floats

    def branch(self, depth: int) -> onnx.GraphProto:
        nodes: list[NodeProto] = []
        name = self.random.choice(tuple(BRANCHES))
        self.kinds.append(name)
        result = BRANCHES[name](self, nodes)
        if depth < 2 and self.random.random() < 0.15:
            flat = self.node(nodes, "Reshape", result, self.number(nodes, [-1]))
            result = self.node(nodes, "Concat", flat, self.guarded(nodes, depth + 1), axis=0)
        for _ in range(self.random.randrange(3)):
            result = self.node(nodes, self.random.choice(("Neg", "Abs", "Relu")), result)
        line = self.node(nodes, "Reshape", result, self.number(nodes, [-1]))
        return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(line, FLOAT, [None])])

    def guarded(self, nodes: list[NodeProto], depth: int = 0) -> str:
        condition = self.condition(nodes)
        ways = {"then_branch": self.branch(depth), "else_branch": self.branch(depth)}
        return self.node(nodes, "If", condition, **ways)

    def floats(self, nodes: list[NodeProto], value: str) -> str:
        return self.node(nodes, "Cast", value, to=FLOAT)

    def model(self) -> onnx.ModelProto:
        nodes: list[NodeProto] = []
        place = self.random.choice(("top", "top", "loop", "counted loop"))
        self.kinds.append(place)
        if place == "top":
            result = self.guarded(nodes)
        else:
            inner: list[NodeProto] = []
            found = self.guarded(inner)
            total = self.node(inner, "Add", "state", self.node(inner, "ReduceSum", found, keepdims=0))
            goes_on = self.node(inner, "Identity", "going")
            given = [("trip", INT), ("going", BOOL), ("state", FLOAT)]
            infos = [helper.make_tensor_value_info(n, t, []) for n, t in given]
            ends = [helper.make_tensor_value_info(n, t, []) for n, t in ((goes_on, BOOL), (total, FLOAT))]
            body = helper.make_graph(inner, "body", infos, ends)
            trips = self.number(nodes, 3) if place == "loop" else self.node(nodes, "Size", "i")
            start = self.number(nodes, 1.5, np.float32)
            result = self.node(nodes, "Loop", trips, "", start, body=body)
        if self.random.random() < 0.5:
            result = self.node(nodes, "Exp", result)
        size = {n: n if s is None else s for n, s in self.sizes.items()}
        inputs = [
            ("x", FLOAT, [size["n"]]), ("y", FLOAT, [size["m"]]), ("i", INT, [size["l"]]),
            ("d", INT, []), ("k", INT, []), ("b", BOOL, []),
        ]  # fmt: skip
        infos = [helper.make_tensor_value_info(*i) for i in inputs]
        graph = helper.make_graph(nodes, "g", infos, [helper.make_empty_tensor_value_info(result)])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)

    def arguments(self) -> dict[str, np.ndarray]:
        n, m, length = (self.random.choice(SIZES) if s is None else s for s in self.sizes.values())
        numbers = np.random.default_rng(self.random.randrange(1 << 30))
        high = self.random.choice((1, 4, 9))
        return {
            "x": numbers.normal(size=n).round(2).astype(np.float32),
            "y": numbers.normal(size=m).round(2).astype(np.float32),
            "i": numbers.integers(0, high, length),
            "d": np.array(self.random.choice((0, 0, 1, -2, 3))),
            "k": np.array(self.random.choice((0, 1, 3, 6, 9))),
            "b": np.array(self.random.random() < 0.5),
        }


Branch = Callable[[Guards, list[NodeProto]], str]


def _chain(g: Guards, nodes: list[NodeProto]) -> str:
    """Many elements, each of much work."""
    value = g.node(nodes, "Expand", "x", g.node(nodes, "Concat", g.number(nodes, [2000]), g.number(nodes, [1]), axis=0))
    for _ in range(3):
        value = g.node(nodes, "Sin", value)
    return g.node(nodes, "ReduceMean", value, g.number(nodes, [0]), keepdims=0)


def _scattered(g: Guards, nodes: list[NodeProto]) -> str:
    values = g.floats(nodes, "i")
    return g.node(nodes, "ScatterElements", "x", "i", values, axis=0)


def _cut(g: Guards, nodes: list[NodeProto]) -> str:
    start = g.node(nodes, "Reshape", "k", g.number(nodes, [1]))
    return g.node(nodes, "Slice", "x", start, g.number(nodes, [7]), g.number(nodes, [0]))


def _split(g: Guards, nodes: list[NodeProto]) -> str:
    names = [g.name(), g.name()]
    nodes.append(helper.make_node("Split", ["x", g.number(nodes, [2, 2])], names, axis=0))
    return names[0]


def _with_number(op: str, number: int | Sequence[int]) -> Branch:
    return lambda g, nodes: g.node(nodes, op, "x", g.number(nodes, number))


BRANCHES: dict[str, Branch] = {
    "x": lambda g, nodes: g.node(nodes, "Identity", "x"),
    "constant": lambda g, nodes: g.number(nodes, [0.5, -2.0], np.float32),
    "neg": lambda g, nodes: g.node(nodes, "Neg", "y"),
    "gather at i": lambda g, nodes: g.node(nodes, "Gather", "x", "i"),
    "gather at k": lambda g, nodes: g.node(nodes, "Gather", "x", "k"),
    "gather at 5": _with_number("Gather", 5),
    "gather nd": lambda g, nodes: g.node(nodes, "GatherND", "x", g.node(nodes, "Unsqueeze", "i", g.number(nodes, [1]))),
    "gather elements": lambda g, nodes: g.node(nodes, "GatherElements", "x", "i", axis=0),
    "scatter": _scattered,
    "div": lambda g, nodes: g.floats(nodes, g.node(nodes, "Div", "i", "d")),
    "mod": lambda g, nodes: g.floats(nodes, g.node(nodes, "Mod", "k", "d")),
    "div by i": lambda g, nodes: g.floats(nodes, g.node(nodes, "Div", "d", "i")),
    "add": lambda g, nodes: g.node(nodes, "Add", "x", "y"),
    "where": lambda g, nodes: g.node(nodes, "Where", "b", "x", "y"),
    "dot": lambda g, nodes: g.node(nodes, "MatMul", "x", "y"),
    "reshape to 6": _with_number("Reshape", [6]),
    "reshape to rows": _with_number("Reshape", [2, -1]),
    "expand": _with_number("Expand", [4]),
    "squeeze": _with_number("Squeeze", [0]),
    "largest": lambda g, nodes: g.node(nodes, "ReduceMax", "x", keepdims=0),
    "slice": _cut,
    "split": _split,
    "chain": _chain,
    "tile": lambda g, nodes: g.node(nodes, "Tile", "x", g.node(nodes, "Reshape", "k", g.number(nodes, [1]))),
    "cumulative": lambda g, nodes: g.node(nodes, "CumSum", "x", g.number(nodes, 0)),
}


def fuzz(seed: int) -> Tried:
    """Compile a model with guards, and call it with sizes and values that its branches take and do not take."""
    guards = Guards(seed)
    model = guards.model()
    tried: Tried = Counter()
    try:
        compiled = tilewright.compile(model, cache=False, verify=seed % 2 == 0, threads=1)
    except UnsupportedError:
        tried["model", "refused"] += 1
        return tried
    except Exception as e:
        if isinstance(e, TilewrightError) and not any(_runs(model, guards.arguments()) for _ in range(CALLS)):
            tried["model", "refused by both"] += 1
            return tried
        e.add_note(onnx.printer.to_text(model))
        raise
    for kind in guards.kinds:
        tried[kind, "compiled"] += 1
    for _ in range(CALLS):
        arguments = guards.arguments()
        try:
            tried["call", _called(model, compiled, arguments)] += 1
        except Exception as e:
            e.add_note(f"called with {arguments}")
            e.add_note(onnx.printer.to_text(model))
            raise
    return tried


def _runs(model: onnx.ModelProto, arguments: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """What ONNX Runtime gives; None where it refuses the call."""
    try:
        return _onnxruntime.run(model.SerializeToString(), arguments)
    except (RuntimeError, EndedError):
        return None


def _called(model: onnx.ModelProto, compiled: tilewright.Model, arguments: dict[str, np.ndarray]) -> str:
    expected = _runs(model, arguments)
    if expected is None:  # the branch that is taken fails: so must ours, or the standard leaves it open
        try:
            compiled(**arguments)
        except TilewrightError:
            return "refused by both"
        return "refused by ONNX Runtime"
    (wanted,) = expected
    (found,) = compiled(**arguments)
    assert found.shape == wanted.shape, f"{found.shape} in the place of {wanted.shape}"
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=1e-3)  # sums in another order
    return "agree"
