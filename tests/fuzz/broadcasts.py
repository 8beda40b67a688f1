"""Random graphs of operators that broadcast, with unknown dims, called with sizes of 0, 1 and n on every dim: they give
what NumPy gives, and refuse what NumPy refuses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.fuzz.registry import Tried
from tilewright.runtime.errors import ArtifactError, TilewrightError
from tilewright.runtime.module import Model

SYMBOLS = ("a", "b", "c", "d")
STATIC = (1, 3)
SIZES = (0, 1, 3, 4)
CALLS = 10
F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
DTYPES = {F32: np.float32, I64: np.int64, BOOL: np.bool_}
MOST_ELEMENTS = 1 << 14

Function = Callable[..., Any]


@dataclass(frozen=True)
class Term:
    """A value of the graph: its name, element type and rank, and how NumPy computes it of values by name."""

    name: str
    type: int
    rank: int
    value: Callable[[dict[str, np.ndarray]], np.ndarray]


@dataclass
class Graph:
    """A graph while it grows."""

    random: random.Random
    inputs: dict[str, tuple[int, tuple[str | int, ...]]] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    terms: list[Term] = field(default_factory=list)
    names: count = field(default_factory=count)
    tried: Tried = field(default_factory=Counter)

    def add_input(self, type: int) -> None:
        name = f"x{len(self.inputs)}"
        rank = self.random.choice((1, 2, 2, 3, 3))
        shape = tuple(self.random.choice((*SYMBOLS, *SYMBOLS, *STATIC)) for _ in range(rank))
        self.inputs[name] = (type, shape)
        self.terms.append(Term(name, type, rank, lambda env: env[name]))

    def constant(self, value: Any) -> str:
        name = f"c{next(self.names)}"
        self.constants[name] = np.asarray(value)
        return name

    def pick(self, type: int = F32, least: int = 0, most: int = 4) -> Term:
        """A value that there is; IndexError where there is none of these."""
        return self.random.choice([t for t in self.terms if t.type == type and least <= t.rank <= most])

    def node(
        self, op: str, operands: Sequence[Term | str], rank: int, fn: Function, type: int = F32, **attrs: Any
    ) -> Term:
        """Append a node; `fn` takes the arrays of the operands that are terms."""
        terms = [o for o in operands if isinstance(o, Term)]
        name = f"v{next(self.names)}"
        read = [o.name if isinstance(o, Term) else o for o in operands]
        self.nodes.append(helper.make_node(op, read, [name], name=f"{op}_{name}", **attrs))

        def value(env: dict[str, np.ndarray]) -> np.ndarray:
            if name not in env:
                made = np.asarray(fn(*[t.value(env) for t in terms]))
                if made.size > MOST_ELEMENTS:
                    raise TooLargeError
                env[name] = made
            return env[name]

        self.terms.append(Term(name, type, rank, value))
        self.tried[op, "added"] += 1
        return self.terms[-1]


class TooLargeError(Exception):
    """The result of a call would be too large to be worth it."""


def pair(g: Graph, type: int = F32) -> tuple[Term, Term]:
    return g.pick(type), g.pick(type)


def arithmetic(g: Graph) -> None:
    op, fn = g.random.choice((("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply)))
    a, b = pair(g)
    g.node(op, [a, b], max(a.rank, b.rank), fn)


def variadic(g: Graph) -> None:
    op, fn = g.random.choice((("Max", np.maximum), ("Min", np.minimum), ("Sum", np.add)))
    terms = [g.pick() for _ in range(g.random.choice((2, 3, 3)))]

    def together(first: np.ndarray, *others: np.ndarray) -> np.ndarray:
        for other in others:
            first = fn(first, other)
        return first

    g.node(op, terms, max(t.rank for t in terms), together)


def comparison(g: Graph) -> None:
    op, fn = g.random.choice((("Less", np.less), ("GreaterOrEqual", np.greater_equal)))
    a, b = pair(g)
    g.node(op, [a, b], max(a.rank, b.rank), fn, BOOL)


def where(g: Graph) -> None:
    comparison(g)
    terms = [g.terms[-1], *pair(g)]
    g.node("Where", terms, max(t.rank for t in terms), np.where)


def logic(g: Graph) -> None:
    a, b = pair(g, BOOL)
    op, fn = g.random.choice((("And", np.logical_and), ("Xor", np.logical_xor)))
    g.node(op, [a, b], max(a.rank, b.rank), fn, BOOL)


def whole_numbers(g: Graph) -> None:
    op, fn = g.random.choice((("BitwiseAnd", np.bitwise_and), ("BitwiseOr", np.bitwise_or), ("Add", np.add)))
    a, b = pair(g, I64)
    g.node(op, [a, b], max(a.rank, b.rank), fn, I64)


def power(g: Graph) -> None:
    a, b = pair(g)
    base = g.node("Abs", [a], a.rank, np.abs)
    bounded = g.node("Tanh", [b], b.rank, np.tanh)
    g.node("Pow", [base, bounded], max(a.rank, b.rank), lambda x, y: np.power(x + 0.0, y))


def prelu(g: Graph) -> None:
    x = g.pick(least=1)
    slope = g.pick(most=x.rank)
    # the data are broadcast to the slopes, too, as ONNX Runtime does
    g.node("PRelu", [x, slope], x.rank, lambda x, slope: np.where(x < 0, x * slope, x))


def matmul(g: Graph) -> None:
    a, b = g.pick(least=2), g.pick(least=2)
    g.node("MatMul", [a, b], max(a.rank, b.rank), np.matmul)


def gemm(g: Graph) -> None:
    a, b, c = g.pick(least=2, most=2), g.pick(least=2, most=2), g.pick(most=2)

    def fn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        product = np.matmul(a, b)
        return product + np.broadcast_to(c, product.shape)

    g.node("Gemm", [a, b, c], 2, fn)


def einsum(g: Graph) -> None:
    a, b = g.pick(least=2, most=2), g.pick(least=2, most=2)
    equation = g.random.choice(("ij,ij->ij", "ij,jk->ik", "ij,ij->i"))
    g.node("Einsum", [a, b], 1 if equation.endswith("->i") else 2, lambda x, y: one_by_one(equation, x, y),
           equation=equation)  # fmt: skip


def one_by_one(equation: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """NumPy's einsum, without the fast ways that do not broadcast."""
    return np.einsum(equation, x, y, optimize=False)


def expand(g: Graph) -> None:
    x, like = g.pick(), g.pick()
    shape = g.node("Shape", [like], 1, lambda y: np.array(y.shape, np.int64), 0)
    g.terms.pop()

    def fn(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, y.shape))

    name = f"v{next(g.names)}"
    g.nodes.append(helper.make_node("Expand", [x.name, shape.name], [name], name=f"Expand_{name}"))
    g.terms.append(Term(name, F32, max(x.rank, like.rank), lambda env: fn(x.value(env), like.value(env))))
    g.tried["Expand", "added"] += 1


def part(g: Graph) -> None:
    """Its first, its last, or all but its last rows along an axis."""
    x = g.pick(least=1)
    axis = g.random.randrange(x.rank)
    begin, end = g.random.choice(((0, 1), (-1, 2**63 - 1), (0, -1), (1, 2**63 - 1)))
    index = (slice(None),) * axis + (slice(begin, end if end < 2**62 else None),)
    names = [g.constant(np.array([v], np.int64)) for v in (begin, end, axis)]
    g.node("Slice", [x, *names], x.rank, lambda v: v[index])


def turned(g: Graph) -> None:
    x = g.pick(least=2)
    perm = g.random.sample(range(x.rank), x.rank)
    g.node("Transpose", [x], x.rank, lambda v: v.transpose(perm), perm=perm)


def wider(g: Graph) -> None:
    x = g.pick(most=3)
    axis = g.random.randrange(x.rank + 1)
    g.node("Unsqueeze", [x, g.constant(np.array([axis], np.int64))], x.rank + 1, lambda v: np.expand_dims(v, axis))


def reduced(g: Graph) -> None:
    x = g.pick(least=1)
    axis, keep = g.random.randrange(x.rank), g.random.random() < 0.6
    axes = g.constant(np.array([axis], np.int64))
    rank = x.rank if keep else x.rank - 1
    g.node("ReduceSum", [x, axes], rank, lambda v: v.sum(axis=axis, keepdims=keep), keepdims=int(keep))


def pointwise(g: Graph) -> None:
    op, fn = g.random.choice((("Relu", lambda v: np.maximum(v, 0)), ("Tanh", np.tanh), ("Neg", np.negative)))
    x = g.pick()
    g.node(op, [x], x.rank, fn)


def chosen_rows(g: Graph) -> None:
    """As many rows of a value as a mask has that are true."""
    x = g.pick(least=1)
    over = g.node("Greater", [g.pick(least=1, most=1), g.constant(np.float32(0))], 1, lambda v: v > 0, BOOL)
    where = g.node("NonZero", [over], 2, lambda m: np.array(np.nonzero(m)), 0)
    places = g.node("Squeeze", [where, g.constant(np.array([0], np.int64))], 1, lambda v: v[0], 0)
    rows = g.node("Mod", [places, g.constant(np.int64(1))], 1, lambda v: v % 1, 0)
    for term in (where, places, rows):
        g.terms.remove(term)

    def fn(v: np.ndarray, at: np.ndarray) -> np.ndarray:
        if at.size and not v.shape[0]:
            if np.prod(v.shape[1:]):
                raise ValueError("there are no rows")
            return np.zeros((at.size, *v.shape[1:]), np.float32)  # no element is read
        return v[at]

    g.node("Gather", [x, rows], x.rank, fn, axis=0)


def branch(g: Graph) -> None:
    """One of two sums, as the first element of a value is."""
    a, b = pair(g)
    other = g.pick()
    if max(a.rank, b.rank) != max(a.rank, other.rank):
        raise IndexError
    first = g.node("ReduceSum", [g.pick()], 0, lambda v: v.sum(), keepdims=0)
    holds = g.node("Greater", [first, g.constant(np.float32(0))], 0, lambda v: v > 0, BOOL)
    bodies = []
    for op, y in (("Add", b), ("Mul", other)):
        out = f"v{next(g.names)}"
        node = helper.make_node(op, [a.name, y.name], [out], name=f"{op}_{out}")
        bodies.append(helper.make_graph([node], out, [], [onnx.ValueInfoProto(name=out)]))
    name = f"v{next(g.names)}"
    g.nodes.append(helper.make_node("If", [holds.name], [name], then_branch=bodies[0], else_branch=bodies[1]))

    def value(env: dict[str, np.ndarray]) -> np.ndarray:
        x, y, z = (t.value(env) for t in (a, b, other))  # made before the branch is taken, whichever it is
        return x + y if holds.value(env) else x * z

    g.terms.append(Term(name, F32, max(a.rank, b.rank), value))
    g.tried["If", "added"] += 1


KINDS: Mapping[Callable[[Graph], None], float] = {
    arithmetic: 6, variadic: 3, comparison: 1, where: 2, logic: 1, whole_numbers: 1, power: 1, prelu: 1, matmul: 3,
    gemm: 2, einsum: 2, expand: 2, part: 2, turned: 1, wider: 2, reduced: 2, pointwise: 2, chosen_rows: 0.7,
    branch: 0.5,
}  # fmt: skip


def grown(seed: int) -> Graph:
    g = Graph(random.Random(seed))
    for _ in range(g.random.choice((2, 2, 3, 3, 4))):
        g.add_input(F32)
    if g.random.random() < 0.15:
        for type in (I64, I64, BOOL, BOOL):
            g.add_input(type)
    wanted = g.random.choice((1, 1, 2, 3, 5, 7))
    kinds, weights = list(KINDS), list(KINDS.values())
    while len(g.nodes) < wanted:
        (kind,) = g.random.choices(kinds, weights)
        try:
            kind(g)
        except IndexError:
            continue  # there is no operand for it
    return g


def model_of(g: Graph, outputs: Sequence[Term]) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, type, shape) for name, (type, shape) in g.inputs.items()]
    constants = [numpy_helper.from_array(value, name) for name, value in g.constants.items()]
    ends = [onnx.ValueInfoProto(name=t.name) for t in outputs]
    graph = helper.make_graph(g.nodes, "g", infos, ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def read_by_nodes(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    found = {name for node in nodes for name in node.input}
    for node in nodes:
        for attribute in node.attribute:
            found |= read_by_nodes(attribute.g.node)
    return found


def fuzz(seed: int) -> Tried:
    """Compile a random graph, and call it with sizes of all kinds."""
    g = grown(seed)
    read = read_by_nodes(g.nodes)
    outputs = [t for t in g.terms if t.name not in g.inputs and t.name not in read]
    model = model_of(g, outputs)
    try:
        wanted = [(sizes, inputs, expected(outputs, inputs)) for sizes, inputs in calls(g, seed)]
        compiled = compile(model, seed, any(isinstance(w, list) for _, _, w in wanted))
        if compiled is None:
            return g.tried + Counter({("model", "refused"): 1})
        for sizes, inputs, values in wanted:
            if values is not None:
                g.tried["call", check(compiled, sizes, inputs, values)] += 1
    except Exception as e:
        e.add_note(described(model))
        raise
    return g.tried


def compile(model: onnx.ModelProto, seed: int, runs: bool) -> Model | None:
    try:
        compiled = tilewright.compile(model, threads=1, verify=True, cache=False, compile_threads=1)
    except TilewrightError:
        if runs:
            raise
        return None
    return tilewright.load(compiled.artifact.to_bytes()) if seed % 8 == 0 else compiled


def calls(g: Graph, seed: int) -> list[tuple[dict[str, int], dict[str, np.ndarray]]]:
    """Sizes of the symbols, and inputs."""
    made = []
    numbers = np.random.default_rng(seed)
    for k in range(CALLS):
        n = g.random.choice((3, 3, 4))
        choices = SIZES if k >= CALLS - 2 else (n,) if k == 0 else (0, 1, n) if k % 3 == 2 else (1, n, n)
        sizes = {symbol: g.random.choice(choices) for symbol in SYMBOLS}
        inputs = {}
        for name, (type, shape) in g.inputs.items():
            numeric = [sizes.get(d, d) for d in shape]
            values = numbers.standard_normal(numeric) if type == F32 else numbers.integers(-4, 5, numeric)
            inputs[name] = values.astype(DTYPES[type])
        made.append((sizes, inputs))
    return made


def expected(outputs: Sequence[Term], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray] | str | None:
    """What NumPy gives; the reason where it refuses, None for what is too large."""
    env: dict[str, np.ndarray] = dict(inputs)
    try:
        with np.errstate(all="ignore"):
            return [t.value(env) for t in outputs]
    except TooLargeError:
        return None
    except ValueError as e:
        return str(e)


def check(
    model: Model, sizes: Mapping[str, int], inputs: Mapping[str, np.ndarray], wanted: list[np.ndarray] | str
) -> str:
    """Call the model; whether that was right, or refused."""
    try:
        found = model(*inputs.values())
    except ArtifactError:
        raise
    except TilewrightError as e:
        assert isinstance(wanted, str), f"{sizes} are refused: {e}"
        return "refused"
    assert not isinstance(wanted, str), f"{sizes} are not refused: {wanted}"
    for got, value in zip(found, wanted, strict=True):
        assert got.shape == value.shape, f"{sizes} give the shape {got.shape}, not {value.shape}"
        np.testing.assert_allclose(got, value, rtol=2e-3, atol=2e-3, err_msg=str(sizes))
    again = model(*inputs.values())
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found, again, strict=True)), "not the same again"
    return "right"


def described(model: onnx.ModelProto) -> str:
    return onnx.printer.to_text(model)
