"""Walks the nodes of a model and calls their adapters; functions and subgraphs are inlined."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, helper

from tilewright.frontends import control_flow
from tilewright.frontends.onnx import attributes as attrs
from tilewright.frontends.onnx import schema as spec
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import find_adapter, find_condition, find_host_adapter, refusal
from tilewright.frontends.onnx.structure import (
    FunctionKey,
    function_key,
    live,
    node_label,
    node_reads,
    ordered,
)
from tilewright.frontends.onnx.tensors import ELEM_TYPES, dtype_of, from_sparse, to_array
from tilewright.frontends.onnx.types import element_type, is_like
from tilewright.frontends.problems import shown
from tilewright.frontends.translation import (
    BrokenInputError,
    DifferentRanksError,
    Results,
    Translation,
    Way,
    type_of,
)
from tilewright.ir.core import Value
from tilewright.ir.diag import Loc, ModelError, TilewrightError, UnsupportedError
from tilewright.ir.types import TensorType, Type, is_native
from tilewright.ops.composites.text import literal

MAX_DEPTH = 100
MAX_NODES = 500_000
MAX_SPLITS = 4
"""Branches of different ranks one after the other: the nodes behind them are translated for each combination."""
MAX_SPLITS_BY_DIMS = 2
"""The same where dims decide, and one way can be taken in all calls instead."""
_AGAIN = "the model contradicts itself; export it again"


@dataclass
class Scope:
    """Names of one graph or function body, before those it sees from outside. None stands for a value that could
    not be translated (the reason is among the problems)."""

    opsets: Mapping[str, int]
    values: ChainMap[str, Value | None] = field(default_factory=ChainMap)
    declared: Mapping[str, onnx.ValueInfoProto] = field(default_factory=dict)
    results: Mapping[str, onnx.ValueInfoProto] = field(default_factory=dict)
    """What the graph's own outputs are declared as."""
    bound: Mapping[str, AttributeProto] = field(default_factory=dict)
    depth: int = 0
    read: frozenset[str] = frozenset()
    """Names of values that nodes of the graph or its outputs read."""

    def find(self, name: str) -> Value | None:
        if name not in self.values:
            raise ModelError(f"the value '{shown(name)}' is read, but nothing defines it")
        return self.values[name]


class Importer:
    """Writes the program of a model's graph; what cannot be translated is left to the problems of the translation."""

    def __init__(
        self,
        translation: Translation,
        functions: Mapping[FunctionKey, onnx.FunctionProto],
        folder: Path | None,
        producer: str,
    ) -> None:
        self.translation = translation
        self.producer = producer
        self._functions = functions
        self._folder = folder
        self._scope: Scope | None = None
        self._budget = MAX_NODES
        self._splits = 0

    def main(self, graph: GraphProto, opsets: Mapping[str, int], inputs: dict[str, Value | None]) -> Results:
        """The results of the model's graph; `inputs` are those that have no initializer."""
        scope = Scope(opsets, ChainMap(inputs))
        self._translate(graph, scope)
        self.translation.problems.raise_if_any()
        for info in graph.input:  # those that have initializers, too
            value = scope.values.get(info.name)
            if value is not None and value.op is not None:
                self._compare(info, value.type, f"graph input '{shown(info.name)}'")
        return [self._checked_output(info, scope) for info in graph.output]

    # What nodes ask

    def array_of(self, proto: onnx.TensorProto | onnx.SparseTensorProto) -> np.ndarray:
        if isinstance(proto, onnx.SparseTensorProto):
            return from_sparse(proto, self._folder)
        return to_array(proto, self._folder)

    def body(self, graph: GraphProto, *, forks: bool = False) -> Callable[..., tuple[Value, ...]]:
        """A function that translates a subgraph in place, its inputs bound to the arguments. Names that it captures
        are those of the graph around the current node. Where it `forks`, it may raise a DifferentRanksError."""
        outer = self._scope
        assert outer is not None

        def inlined(*arguments: Value) -> tuple[Value, ...]:
            if len(arguments) != len(graph.input):
                raise ModelError(f"the subgraph takes {len(graph.input)} inputs, not {len(arguments)}")
            own = dict(zip((i.name for i in graph.input), arguments, strict=True))
            inner = Scope(outer.opsets, outer.values.new_child(own), bound=outer.bound, depth=outer.depth + 1)
            try:
                self._translate(graph, inner, forks=forks)
            finally:
                self._scope = outer
            results = tuple(v for o in graph.output if (v := inner.find(o.name)) is not None)
            if len(results) < len(graph.output):
                raise BrokenInputError
            for declared, value in zip(graph.output, results, strict=True):
                self._compare(declared, value.type, f"subgraph output '{shown(declared.name)}'")
            return results

        return inlined

    def standard(
        self, op: str, inputs: Results, attributes: Mapping[str, Any], outputs: int
    ) -> tuple[Value | None, ...]:
        """What the newest form of an operator of the standard gives for the inputs."""
        outer = self._scope
        assert outer is not None
        names = [f"input {k}" if v is not None else "" for k, v in enumerate(inputs)]
        node = helper.make_node(op, names, [f"output {k}" for k in range(outputs)], **attributes)
        given = {name: v for name, v in zip(names, inputs, strict=True) if name}
        inner = Scope({"": spec.NEWEST_OPSET}, ChainMap(given), depth=outer.depth + 1, read=frozenset(node.output))
        try:
            return tuple(self._results(node, inner))
        finally:
            self._scope = outer

    # The walk

    def _translate(self, graph: GraphProto, scope: Scope, *, forks: bool = False) -> None:
        """Define the graph's initializers and nodes in `scope`, which holds its inputs."""
        names = set()
        for proto in (*graph.initializer, *graph.sparse_initializer):
            name = proto.name if isinstance(proto, onnx.TensorProto) else proto.values.name
            if not name or name in names:
                raise ModelError(
                    f"two initializers are named '{shown(name)}'" if name else "an initializer has no name"
                )
            names.add(name)
            if name in scope.values.maps[0]:
                continue  # a subgraph input with a default, or bound by the caller
            with self.translation.builder.at(Loc(node=shown(name), op="initializer")):
                scope.values[name] = literal(self.array_of(proto), name)
        scope.declared = {v.name: v for v in graph.value_info}
        scope.results = {o.name: o for o in graph.output}
        self._translate_nodes(graph.node, [o.name for o in graph.output], scope, forks=forks)

    def _translate_nodes(
        self, nodes: Sequence[NodeProto], outputs: Sequence[str], scope: Scope, *, forks: bool = False
    ) -> None:
        """Define what the nodes give. Where ranks depend on data: for each of two ways, which are joined at the
        `outputs`; whoever calls joins them, where it `forks`, too."""
        if scope.depth > MAX_DEPTH:
            raise ModelError(f"subgraphs and functions are nested more than {MAX_DEPTH} deep")
        order = ordered(nodes, scope.values.maps[0], scope.values.parents)
        nodes = live(order, outputs)
        scope.read = frozenset(outputs).union(*map(node_reads, nodes))
        for k, node in enumerate(nodes):
            self._scope = scope
            try:
                self._translate_node(node, scope)
            except DifferentRanksError as fork:
                if forks:
                    raise fork.followed(self._after(nodes[k:], outputs, scope)) from fork
                self._split(fork, nodes[k:], outputs, scope)
                break

    def _after(self, nodes: Sequence[NodeProto], outputs: Sequence[str], scope: Scope) -> Callable[[Way], Way]:
        """For a way that gives the results of the first node one that gives the `outputs`, by the nodes behind it."""
        first, *others = nodes

        def after(write: Way) -> Way:
            def written() -> Results:
                self._scope = scope
                try:
                    results = write()
                except DifferentRanksError as fork:
                    raise fork.followed(after) from fork
                inner = replace(scope, values=scope.values.new_child())
                inner.values.update(zip(first.output, results, strict=False))
                self._translate_nodes(others, outputs, inner, forks=True)
                return [inner.find(name) for name in outputs]

            return written

        return after

    def _joined(self, fork: DifferentRanksError) -> Results | TilewrightError:
        """What either way gives, where the host takes one; the reason where one cannot be translated."""
        if self._splits >= (MAX_SPLITS if fork.symbol is None else MAX_SPLITS_BY_DIMS):
            return fork.error

        def resolved(way: Way, holds: bool) -> Callable[[], tuple[Value, ...]]:
            def written() -> tuple[Value, ...]:
                with self.translation.where(fork.symbol, holds):
                    return followed()

            def followed() -> tuple[Value, ...]:
                try:
                    results: Results | TilewrightError = way()
                except DifferentRanksError as inner:
                    results = self._followed(inner)
                if isinstance(results, TilewrightError):
                    raise results
                if None in results:  # what broke may have been told of outside of this way
                    raise BrokenInputError if self.translation.problems.first is not None else fork.error
                return tuple(v for v in results if v is not None)

            return written

        self._splits += 1
        try:
            then, other = map(resolved, fork.ways, (True, False))
            return control_flow.split(self.translation, fork.condition, then, other, fork.error)
        finally:
            self._splits -= 1

    def _followed(self, fork: DifferentRanksError) -> Results | TilewrightError:
        """The same; what one way gives in all calls, where dims decide and what follows cannot be translated for the
        other."""
        found = self._joined(fork)
        if not isinstance(found, TilewrightError) or fork.decided is None:
            return found
        try:
            return fork.decided()
        except DifferentRanksError as inner:
            return self._followed(inner)

    def _split(
        self, fork: DifferentRanksError, nodes: Sequence[NodeProto], outputs: Sequence[str], scope: Scope
    ) -> None:
        """Translate the nodes once for each way of the first, whose results differ in rank; the `outputs` get values
        that are those of either way."""
        made, first = [name for name in outputs if name not in scope.values], nodes[0]
        with self.translation.builder.at(Loc(node=shown(first.name), op=shown(first.op_type))):
            found = self._followed(fork.followed(self._after(nodes, made, scope)))
        self._scope = scope
        if isinstance(found, TilewrightError):
            self.translation.problems.add(first.op_type, node_label(first), fork.error)
            found = [None] * len(made)
        scope.values.update(zip(made, found, strict=True))

    def _translate_node(self, node: NodeProto, scope: Scope) -> None:
        label = node_label(node)
        self._budget -= 1
        if self._budget < 0:
            raise ModelError(f"the model unfolds to more than {MAX_NODES} nodes", where=label)
        given = "" if node.name else shown(next(filter(None, node.output), ""))
        loc = Loc(node=shown(node.name), op=shown(node.op_type), value=given)
        kind = shown(".".join(filter(None, function_key(node)[:2])))
        results = self.translation.node(loc, label, kind, lambda: self._results(node, scope))
        for name, value in zip(node.output, results or [None] * len(node.output), strict=False):
            if name:
                scope.values[name] = value
                if value is not None and not value.name:
                    value.name = name
                if value is not None and not scope.depth and (pair := spec.parameters_of(node)) is not None:
                    self._note_parameters(value, *(scope.find(each) for each in pair))
                if value is not None and name in scope.declared:
                    self._note(scope.declared[name], value.type)

    def _results(self, node: NodeProto, scope: Scope) -> Results:
        key = function_key(node)
        inputs = [scope.find(name) if name else None for name in node.input]
        broken = any(name and value is None for name, value in zip(node.input, inputs, strict=True))
        if key in self._functions:
            if broken:
                raise BrokenInputError
            attributes = attrs.resolve(node, scope.bound)
            return self._call(self._functions[key], inputs, attributes, node.output, scope)
        domain = key[0]
        version = scope.opsets.get(domain, spec.IMPLIED_OPSETS.get(domain))
        if version is None:
            raise UnsupportedError(f"the domain '{shown(domain)}' is not imported by the model, or unknown")
        schema = spec.schema_of(node.op_type, version, domain)
        native = find_adapter(domain, node.op_type, version)
        strangers = [v for v in inputs if v is not None and not is_native(v.type)]
        hosted = find_host_adapter(domain, node.op_type, version) if strangers or native is None else None
        if native is hosted is None and (reason := refusal(domain, node.op_type)) is not None:
            raise UnsupportedError(f"the operator is not supported: {reason}")
        if native is hosted is schema is None:
            raise UnsupportedError("the operator is unknown")
        if native is hosted is None and not spec.has_body(schema):
            raise UnsupportedError("the operator is not supported")
        if broken:  # a user wants to know all operators that are not supported at once
            raise BrokenInputError
        attributes = attrs.resolve(node, scope.bound)
        schema = schema or spec.earliest_schema(node.op_type, domain)  # optimisers write newer operators, too
        if schema is not None:
            spec.check_node(node, attributes, schema)
            spec.check_types([None if v is None else v.type for v in inputs], schema)
        adapter = hosted if strangers else native
        if adapter is None and not spec.has_body(schema):
            for v in strangers:
                type_of(v)
            listed = ", ".join("-" if v is None else str(v.type) for v in inputs)
            raise UnsupportedError(f"{node.op_type}({listed}) is not supported")
        wanted = [name if name in scope.read else "" for name in node.output]
        view = Node(node.op_type, version, schema, inputs, attributes, wanted, self)
        if adapter is None:
            if (condition := find_condition(domain, node.op_type)) is not None:
                condition(view)
            return self._expand(node, schema, version, inputs, attributes, scope)
        found = self.translation.fit(inputs, lambda: adapter(view))
        if schema is None:
            view.require_nothing_else()
        results = found if isinstance(found, tuple) else (found,)
        if len([o for o in wanted if o]) > len(results):
            raise UnsupportedError(f"only the first {len(results)} outputs of {node.op_type} are supported")
        return results

    def _expand(
        self,
        node: NodeProto,
        schema: Any,
        version: int,
        inputs: Results,
        attributes: Mapping[str, AttributeProto],
        scope: Scope,
    ) -> Results:
        """Use the decomposition of the specification."""
        resolved = NodeProto()
        resolved.CopyFrom(node)
        del resolved.attribute[:]
        resolved.attribute.extend(attributes.values())
        body = spec.function_body(
            resolved, schema, version, [None if v is None else v.type for v in inputs]
        )
        if body is None:
            raise UnsupportedError("the operator is not supported")
        defaults = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}
        return self._call(body, inputs, defaults | dict(attributes), node.output, scope)

    def _call(
        self,
        function: onnx.FunctionProto,
        inputs: Results,
        attributes: Mapping[str, AttributeProto],
        outputs: Sequence[str],
        scope: Scope,
    ) -> Results:
        """Inline a function: a scope of its own, its attributes bound to those of the call.

        Of its results only those that the call names in `outputs` are computed.
        """
        for what, given, formal in (
            ("inputs", inputs, function.input),
            ("outputs", outputs, function.output),
        ):
            if len(given) > len(formal):
                raise ModelError(f"{shown(function.name)} has {len(formal)} {what}, not {len(given)}")
        defaults = {a.name: a for a in function.attribute_proto}
        own = dict.fromkeys(function.input) | dict(zip(function.input, inputs, strict=False))
        inner = Scope(
            {**scope.opsets, **opsets_of(function)},
            ChainMap(own),
            bound=defaults | dict(attributes),
            depth=scope.depth + 1,
        )
        absent = {name for name, value in own.items() if value is None}
        wanted = [formal for formal, name in zip(function.output, outputs, strict=False) if name]
        self._translate_nodes([_without(n, absent) for n in function.node], wanted, inner)
        self._scope = scope
        return [inner.find(formal) if formal in wanted else None for formal in function.output]

    # What the file declares

    def _note_parameters(self, value: Value, scale: Value | None, zero: Value | None) -> None:
        """Note what the integers stand for that an operator on integers gives, which reads that."""
        if scale is not None and zero is not None:
            self.translation.quantised[value.name] = (scale.name, zero.name)

    def _note(self, info: onnx.ValueInfoProto, type: Type) -> None:
        """Note a value inside of the graph whose declaration, which nothing reads, is not what the nodes give."""
        if not isinstance(type, TensorType):
            return
        declared = info.type.tensor_type
        if _has_other_rank(declared, type) or declared.elem_type not in (0, ELEM_TYPES[type.dtype]):
            self.translation.contradictions.setdefault(
                f"value '{shown(info.name)}'", f"what value_info declares is not taken: the nodes give {type}"
            )

    def declared_rank(self, name: str) -> int | None:
        """The rank that the file declares for a value of the graph around the current node, if it does."""
        assert self._scope is not None
        info = self._scope.results.get(name) or self._scope.declared.get(name)
        if info is None or not info.type.tensor_type.HasField("shape"):
            return None
        return len(info.type.tensor_type.shape.dim)

    def _compare(self, info: onnx.ValueInfoProto, type: Type, where: str) -> None:
        """Hold what a value is declared as against what the nodes make of it. ModelError for another element type,
        which would be misread; a rank that differs is noted, and the nodes' is taken."""
        if info.type.WhichOneof("value") is None:
            return
        if not isinstance(type, TensorType) or not info.type.HasField("tensor_type"):
            wanted = element_type(info.type, where)
            if not is_like(wanted, type):
                raise ModelError(f"declared as {wanted}, but the nodes give {type}", where=where, hint=_AGAIN)
            return
        declared = info.type.tensor_type
        if declared.elem_type and (dtype := dtype_of(declared.elem_type, where)) != type.dtype:
            raise ModelError(f"declared as {dtype}, but the nodes give {type}", where=where, hint=_AGAIN)
        if _has_other_rank(declared, type):
            self.translation.contradictions[where] = (
                f"the declared shape {_declared_shape(declared)} is not taken: the nodes give {type}"
            )

    def _checked_output(self, info: onnx.ValueInfoProto, scope: Scope) -> Value:
        """The value of a graph output; ModelError where it is none, or not what it is declared as."""
        where = f"graph output '{shown(info.name)}'"
        value = scope.values.get(info.name)
        if value is None:
            raise ModelError(
                "no node gives this output", where=where, hint="the model is incomplete; export it again"
            )
        type, declared = value.type, info.type.tensor_type
        self._compare(info, type, where)
        if not isinstance(type, TensorType):
            return value
        if _has_other_rank(declared, type) or all(
            not d.HasField("dim_value") or not s.is_const or d.dim_value in (s.value, -1)
            for d, s in zip(declared.shape.dim, type.shape, strict=False)
        ):
            return value
        shape = _declared_shape(declared)
        if type.is_static:
            raise ModelError(f"declared with shape {shape}, but the nodes give {type}", where=where, hint=_AGAIN)
        # Converters that work out sizes by formulas of their own are wrong about some; the nodes are what was meant
        self.translation.contradictions[where] = f"the declared shape {shape} is not taken: the nodes give {type}"
        return value


def opsets_of(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """The version of each domain's operators."""
    opsets: dict[str, int] = {}
    for imported in proto.opset_import:
        domain = "" if imported.domain == "ai.onnx" else imported.domain
        opsets[domain] = max(imported.version, opsets.get(domain, imported.version))
    return opsets


def _has_other_rank(declared: onnx.TypeProto.Tensor, type: TensorType) -> bool:
    return declared.HasField("shape") and len(declared.shape.dim) != type.rank


def _declared_shape(type: onnx.TypeProto.Tensor) -> str:
    dims = (
        str(d.dim_value) if d.HasField("dim_value") else shown(d.dim_param) or "?" for d in type.shape.dim
    )
    return f"[{', '.join(dims)}]"


def _without(node: NodeProto, absent: set[str]) -> NodeProto:
    """The node with inputs that the call leaves out made empty."""
    if not absent.intersection(node.input):
        return node
    new = NodeProto()
    new.CopyFrom(node)
    del new.input[:]
    new.input.extend("" if name in absent else name for name in node.input)
    return new
