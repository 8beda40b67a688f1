"""Random programs of parts: loops, branches, sizes from data and functions of the host, in each other. Native code, the
host alone, and the interpreter of the program's text compute the same."""

from __future__ import annotations

import random
from collections import Counter
from unittest.mock import patch

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

import tilewright
from tests.fuzz.registry import Tried
from tilewright.compilation import Compilation, Setting
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.diag import UnsupportedError
from tilewright.options import Options
from tilewright.program.interp import run_program
from tilewright.program.native import GroupNative
from tilewright.target.host import host_target

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
CALLS = ((5, 3, True), (1, 0, False), (4, 1, True), (0, 2, False))
"""Sizes, trips and flags."""
STAGES = ("parts", "fused", "planned")
DEEPEST = 2


def fuzz(seed: int) -> Tried:
    """Compile a model in two ways, and run its text from a stage drawn at random."""
    made = _Model(random.Random(seed))
    source = made.proto().SerializeToString()
    stage = made.random.choice(STAGES)
    setting = Setting.of(Options(verify=True), host_target())
    try:
        model = tilewright.compile(source, threads=1, cache=False, verify=True)
        with patch.object(GroupNative, "run", lambda *_: None):
            by_host = tilewright.compile(source, threads=1, cache=False)
    except UnsupportedError as error:
        return Counter({("model", f"refused: {error.what[:40]}"): 1})
    ran = Compilation(load_onnx(source), setting).run(stage)
    arrays = {name: np.array(array) for name, array in ran.whole().constants.items()}
    again = Compilation.resumed(ran.text(), setting, arrays)
    assert again.text() == ran.text()
    # A graph without parts reads the same from "import" to "parts": a text says no more than what it is.
    assert again.stage == (stage if again.parts is not None or stage != "parts" else "import")
    for n, trips, flag in CALLS:
        x, y = np.tanh(np.arange(2 * n, dtype=np.float32).reshape(2, n) - n)
        given = [x, y, np.array(trips), np.array(flag)]
        expected = run_program(again.whole(), given)
        for results in (model(*given), by_host(*given)):
            for found, wanted in zip(results, expected, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    return Counter({("model", stage if again.parts is not None else "one piece"): 1})


class _Model:
    """Writes nodes. All values are vectors of n floats but those whose sizes depend on data."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def node(self, nodes: list[NodeProto], op: str, *inputs: str, **attributes: object) -> str:
        name = self.name()
        nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def proto(self) -> helper.ModelProto:
        nodes: list[NodeProto] = []
        known = self.some(nodes, ["x", "y"], 0, self.random.randrange(3, 7))
        outputs = [self.node(nodes, "Neg", name) for name in self.random.sample(known, min(3, len(known)))]
        if self.random.random() < 0.3:
            outputs.append(self.chosen(nodes, self.random.choice(known)))
        kinds = (("x", FLOAT, ["n"]), ("y", FLOAT, ["n"]), ("trips", INT, []), ("flag", BOOL, []))
        inputs = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in kinds]
        results = [helper.make_tensor_value_info(name, FLOAT, [f"m{k}"]) for k, name in enumerate(outputs)]
        constants = [numpy_helper.from_array(np.float32(0), "zero"), numpy_helper.from_array(np.array([0]), "axis")]
        graph = helper.make_graph(nodes, "g", inputs, results, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    def some(self, nodes: list[NodeProto], known: list[str], depth: int, count: int) -> list[str]:
        """Values, of those that are known and new ones."""
        known = list(known)
        kinds = [self.plain, self.plain, self.by_size, self.by_host]
        kinds += [self.branch, self.loop] * 2 if depth < DEEPEST else []
        for _ in range(count):
            known += self.random.choice(kinds)(nodes, known, depth)
        return known

    def plain(self, nodes: list[NodeProto], known: list[str], depth: int) -> list[str]:
        if self.random.random() < 0.5:
            return [self.node(nodes, self.random.choice(["Tanh", "Neg", "Abs"]), self.random.choice(known))]
        both = self.node(nodes, self.random.choice(["Add", "Sub"]), *self.random.choices(known, k=2))
        return [self.node(nodes, "Tanh", both)]

    def chosen(self, nodes: list[NodeProto], value: str) -> str:
        """Elements above zero: how many they are, the call says."""
        return self.node(nodes, "Compress", value, self.node(nodes, "Greater", value, "zero"), axis=0)

    def by_size(self, nodes: list[NodeProto], known: list[str], depth: int) -> list[str]:
        total = self.node(nodes, "ReduceSum", self.chosen(nodes, self.random.choice(known)), "axis", keepdims=0)
        return [self.node(nodes, "Tanh", self.node(nodes, "Add", self.random.choice(known), total))]

    def by_host(self, nodes: list[NodeProto], known: list[str], depth: int) -> list[str]:
        pair = self.node(nodes, "SequenceConstruct", *self.random.choices(known, k=2))
        total = self.node(nodes, "ReduceSum", self.node(nodes, "ConcatFromSequence", pair, axis=0), "axis", keepdims=0)
        return [self.node(nodes, "Tanh", self.node(nodes, "Add", self.random.choice(known), total))]

    def body(self, known: list[str], depth: int, results: int) -> tuple[list[NodeProto], list[str]]:
        nodes: list[NodeProto] = []
        inner = self.some(nodes, known, depth + 1, self.random.randrange(1, 4))
        return nodes, [self.node(nodes, "Identity", self.random.choice(inner)) for _ in range(results)]

    def branch(self, nodes: list[NodeProto], known: list[str], depth: int) -> list[str]:
        count = self.random.randrange(1, 3)
        ways = {
            way: self.graph(way, *self.body(known, depth, count)) for way in ("then_branch", "else_branch")
        }
        names = [self.name() for _ in range(count)]
        nodes.append(helper.make_node("If", [self.condition(nodes, known)], names, **ways))
        return names

    def condition(self, nodes: list[NodeProto], known: list[str]) -> str:
        if self.random.random() < 0.5:
            return "flag"
        total = self.node(nodes, "ReduceSum", self.random.choice(known), "axis", keepdims=0)
        return self.node(nodes, "Greater", total, "zero")

    def loop(self, nodes: list[NodeProto], known: list[str], depth: int) -> list[str]:
        """States may be handed on without change, or change places; rows are summed up."""
        states = [self.name() for _ in range(self.random.randrange(0, 3))]
        trip, going, on = self.name(), self.name(), self.name()
        inner, results = self.body([*known, *states], depth, len(states) + 1)
        inner.append(helper.make_node("Identity", [going], [on]))
        inputs = [(trip, INT, []), (going, BOOL, []), *((s, FLOAT, ["n"]) for s in states)]
        outputs = [(on, BOOL, []), *((r, FLOAT, ["n"]) for r in results)]
        body = helper.make_graph(
            inner, "body", [helper.make_tensor_value_info(*i) for i in inputs],
            [helper.make_tensor_value_info(*o) for o in outputs],
        )  # fmt: skip
        names = [self.name() for _ in results]
        first = self.random.choices(known, k=len(states))
        nodes.append(helper.make_node("Loop", ["trips", "", *first], names, body=body))
        rows = self.node(nodes, "ReduceSum", names[-1], "axis", keepdims=0)
        added = self.node(nodes, "Tanh", self.node(nodes, "Add", self.random.choice(known), rows))
        return [*names[:-1], added]

    def graph(self, name: str, nodes: list[NodeProto], results: list[str]) -> GraphProto:
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(r, FLOAT, ["n"]) for r in results])
