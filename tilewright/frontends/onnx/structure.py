"""The shape of a graph of nodes: who reads what, in which order, and what nobody needs."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Sequence

import onnx
from onnx import AttributeProto, GraphProto, NodeProto

from tilewright.frontends.problems import shown
from tilewright.ir.diag import ModelError


def node_label(node: NodeProto) -> str:
    """How messages name a node: its name, else its first output."""
    name = node.name or next((o for o in node.output if o), "")
    return f"node '{shown(name)}' ({shown(node.op_type)})"


def subgraphs(node: NodeProto) -> list[GraphProto]:
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def node_reads(node: NodeProto) -> list[str]:
    """Names of the values that a node reads, including those that its subgraphs capture."""
    reads = [name for name in node.input if name]
    for graph in subgraphs(node):
        reads.extend(_captures(graph))
    return reads


def _captures(graph: GraphProto) -> list[str]:
    """Names that a subgraph reads from outside."""
    own = {i.name for i in graph.input} | {i.name for i in graph.initializer}
    own |= {s.values.name for s in graph.sparse_initializer}
    own |= {o for n in graph.node for o in n.output}
    reads = [name for n in graph.node for name in node_reads(n)] + [o.name for o in graph.output]
    return list(dict.fromkeys(name for name in reads if name and name not in own))


def ordered(nodes: Sequence[NodeProto], own: Container[str], outer: Container[str]) -> list[NodeProto]:
    """The nodes so that each comes after those it reads, in file order where that allows.

    `own` are the inputs and initializers of this graph, `outer` what enclosing graphs define.
    ModelError for a name with two producers, a name that nothing defines, and cycles.
    """
    producer: dict[str, int] = {}
    for k, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in producer or name in own:
                raise ModelError(
                    f"the value '{shown(name)}' is defined twice",
                    where=node_label(node),
                    hint="export the model again",
                )
            producer[name] = k
    readers: list[list[int]] = [[] for _ in nodes]
    waiting = [0] * len(nodes)
    for k, node in enumerate(nodes):
        for name in node_reads(node):
            if name in producer:
                readers[producer[name]].append(k)
                waiting[k] += 1
            elif name not in own and name not in outer:
                raise ModelError(
                    f"the value '{shown(name)}' is read, but nothing defines it",
                    where=node_label(node),
                    hint="the model is incomplete; export it again",
                )
    ready = [k for k, count in enumerate(waiting) if not count]
    order: list[NodeProto] = []
    while ready:
        k = heapq.heappop(ready)
        order.append(nodes[k])
        for reader in readers[k]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    stuck = [node_label(node) for node, count in zip(nodes, waiting, strict=True) if count]
    if stuck:
        raise ModelError(
            f"nodes read each other in a cycle ({len(stuck)} nodes cannot be ordered)",
            where=", ".join(stuck[:3]),
            hint="export the model again",
        )
    return order


def live(order: Sequence[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    """The nodes that `outputs` need, in the order given (which must be topological)."""
    needed = set(outputs)
    kept = []
    for node in reversed(order):
        if any(o in needed for o in node.output if o):
            kept.append(node)
            needed.update(node_reads(node))
    return kept[::-1]


MAX_CALL_DEPTH = 50
FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a local function."""


def function_key(node: NodeProto) -> FunctionKey:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload)


def functions_of(model: onnx.ModelProto) -> dict[FunctionKey, onnx.FunctionProto]:
    """The model's local functions; ModelError when two have one name."""
    found: dict[FunctionKey, onnx.FunctionProto] = {}
    for function in model.functions:
        key = (function.domain, function.name, function.overload)
        if key in found:
            raise ModelError(f"the function '{shown(function.name)}' is defined twice")
        found[key] = function
    return found


def check_expansion(
    nodes: Iterable[NodeProto], functions: dict[FunctionKey, onnx.FunctionProto], limit: int
) -> None:
    """ModelError when functions call themselves, or when inlining would make more than `limit` nodes."""
    sizes: dict[FunctionKey, int] = {}

    def size(body: Iterable[NodeProto], calls: tuple[FunctionKey, ...]) -> int:
        total = 0
        for node in body:
            key = function_key(node)
            if key in calls:
                raise ModelError(
                    f"the function '{shown(key[1])}' calls itself", hint="recursion cannot be compiled"
                )
            if len(calls) > MAX_CALL_DEPTH:
                raise ModelError(f"functions call each other more than {MAX_CALL_DEPTH} deep")
            if key in functions and key not in sizes:
                sizes[key] = size(functions[key].node, (*calls, key))
            total += sizes.get(key, 1) + sum(size(g.node, calls) for g in subgraphs(node))
        return total

    total = size(nodes, ())
    if total > limit:
        raise ModelError(
            f"the model has {total} nodes once its functions are inlined; at most {limit} are allowed"
        )
