"""Walks the nodes of a model and calls their adapters; functions and subgraphs are inlined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto

from tilewright.frontends.onnx import attributes as attrs
from tilewright.frontends.onnx import schema as spec
from tilewright.frontends.onnx.errors import shown
from tilewright.frontends.onnx.knowledge import Knowledge
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.problems import Problems
from tilewright.frontends.onnx.registry import Adapter, find_adapter
from tilewright.frontends.onnx.structure import FunctionKey, function_key, live, node_label, ordered
from tilewright.frontends.onnx.tensors import dtype_of, from_sparse, to_array
from tilewright.ir.core import Builder, Module, Value
from tilewright.ir.diag import (
    InternalError,
    Loc,
    ModelError,
    TilewrightError,
    TypeRuleError,
    UnsupportedError,
)
from tilewright.ir.types import TensorType
from tilewright.ops.define import constant

MAX_DEPTH = 100
MAX_NODES = 500_000


@dataclass
class Scope:
    """Names of one graph or function body, and those it sees from outside. None stands for a value that could
    not be translated (the reason is among the problems)."""

    opsets: Mapping[str, int]
    values: dict[str, Value | None] = field(default_factory=dict)
    parent: Scope | None = None
    bound: Mapping[str, AttributeProto] = field(default_factory=dict)
    depth: int = 0

    def find(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise ModelError(f"the value '{shown(name)}' is read, but nothing defines it")

    def defines(self, name: str) -> bool:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return True
            scope = scope.parent
        return False


class Importer:
    """Builds the body of one function; what it cannot translate it collects in `problems` and goes on."""

    def __init__(
        self,
        module: Module,
        builder: Builder,
        functions: Mapping[FunctionKey, onnx.FunctionProto],
        folder: Path | None,
    ) -> None:
        self.module = module
        self.builder = builder
        self.problems = Problems()
        self._functions = functions
        self._folder = folder
        self._knowledge = Knowledge(module)
        self._scope: Scope | None = None
        self._budget = MAX_NODES

    # What nodes ask

    def constant_of(self, value: Value) -> np.ndarray | None:
        return self._knowledge.constant_of(value)

    def symbols_of(self, value: Value) -> np.ndarray | None:
        return self._knowledge.symbols_of(value)

    def inputs_behind(self, value: Value) -> tuple[str, ...]:
        return self._knowledge.inputs_behind(value)

    def array_of(self, proto: onnx.TensorProto | onnx.SparseTensorProto) -> np.ndarray:
        if isinstance(proto, onnx.SparseTensorProto):
            return from_sparse(proto, self._folder)
        return to_array(proto, self._folder)

    def inline(self, graph: GraphProto, arguments: Sequence[Value]) -> tuple[Value, ...]:
        """Translate a subgraph in place; names it captures are those of the graph around the current node."""
        outer = self._scope
        assert outer is not None
        if len(arguments) != len(graph.input):
            raise ModelError(f"the subgraph takes {len(graph.input)} inputs, not {len(arguments)}")
        inner = Scope(outer.opsets, parent=outer, bound=outer.bound, depth=outer.depth + 1)
        inner.values.update(zip((i.name for i in graph.input), arguments, strict=True))
        try:
            self.translate(graph, inner)
        finally:
            self._scope = outer
        results = tuple(inner.find(o.name) for o in graph.output)
        if any(r is None for r in results):
            raise _BrokenInputError
        for declared, value in zip(graph.output, results, strict=True):
            assert value is not None
            _check_declared(declared, _tensor_type(value))
        return tuple(r for r in results if r is not None)

    # The walk

    def translate(self, graph: GraphProto, scope: Scope) -> None:
        """Define the graph's initializers and nodes in `scope`, which holds its inputs."""
        self.define_initializers(graph, scope)
        self._translate_nodes(graph.node, [o.name for o in graph.output], scope)

    def define_initializers(self, graph: GraphProto, scope: Scope) -> None:
        names = [t.name for t in graph.initializer] + [s.values.name for s in graph.sparse_initializer]
        arrays = [*graph.initializer, *graph.sparse_initializer]
        seen: set[str] = set()
        for name, proto in zip(names, arrays, strict=True):
            if not name or name in seen:
                raise ModelError(
                    f"two initializers are named '{shown(name)}'" if name else "an initializer has no name"
                )
            seen.add(name)
            if name in scope.values:
                continue  # a subgraph input with a default, or bound by the caller
            array = self.array_of(proto)
            if array.dtype == np.object_:
                self.problems.add("string tensor", name, UnsupportedError("string tensors are not supported"))
                scope.values[name] = None
                continue
            with self.builder.at(Loc(node=shown(name), op="initializer")):
                scope.values[name] = constant(array, name)

    def _translate_nodes(self, nodes: Sequence[NodeProto], outputs: Sequence[str], scope: Scope) -> None:
        if scope.depth > MAX_DEPTH:
            raise ModelError(f"subgraphs and functions are nested more than {MAX_DEPTH} deep")
        outer = scope.parent.defines if scope.parent is not None else lambda name: False
        order = ordered(nodes, scope.values, outer)
        for node in live(order, outputs):
            self._scope = scope
            self._translate_node(node, scope)

    def _translate_node(self, node: NodeProto, scope: Scope) -> None:
        loc = Loc(node=shown(node.name), op=shown(node.op_type))
        self._budget -= 1
        if self._budget < 0:
            raise ModelError(f"the model unfolds to more than {MAX_NODES} nodes", where=node_label(node))
        with self.builder.at(loc):
            try:
                results = self._results(node, scope)
            except _BrokenInputError:
                results = (None,) * len(node.output)
            except UnsupportedError as e:
                self.problems.add(_qualified(node), node_label(node), e)
                results = (None,) * len(node.output)
            except TilewrightError as e:
                e.where = e.where or node_label(node)
                raise
            except RecursionError:
                raise
            except Exception as e:
                raise InternalError(
                    f"translating {_qualified(node)} failed: {type(e).__name__}: {e}",
                    where=node_label(node),
                    hint="please report this with the model",
                ) from e
        for name, value in zip(node.output, results, strict=False):
            if name:
                scope.values[name] = value
                if value is not None and not value.name:
                    value.name = name

    def _results(self, node: NodeProto, scope: Scope) -> Sequence[Value | None]:
        key = function_key(node)
        inputs = [scope.find(name) if name else None for name in node.input]
        if any(name and value is None for name, value in zip(node.input, inputs, strict=True)):
            if key not in self._functions:
                self._check_known(node, scope)
            raise _BrokenInputError
        attributes = attrs.resolve(node, scope.bound)
        if key in self._functions:
            return self._call(self._functions[key], inputs, attributes, node.output, scope)
        domain, version = key[0], _version(node, scope)
        schema = spec.schema_of(node.op_type, version, domain)
        types = [None if v is None else _tensor_type(v) for v in inputs]
        if schema is not None:
            spec.check_node(node, attributes, schema)
            spec.check_types(types, schema)
        adapter = find_adapter(domain, node.op_type, version)
        if adapter is None:
            if schema is None:
                raise UnsupportedError("the operator is unknown")
            return self._expand(node, schema, version, inputs, attributes, scope)
        view = Node(node.op_type, domain, version, inputs, attributes, node.output, self)
        results = _adapted(adapter, view, types)
        if len([o for o in node.output if o]) > len(results):
            raise UnsupportedError(f"only the first {len(results)} outputs of {node.op_type} are supported")
        return results

    def _check_known(self, node: NodeProto, scope: Scope) -> None:
        """Report an operator that nothing translates also where its inputs could not be made: a user wants to
        know all of them at once."""
        domain, version = function_key(node)[0], _version(node, scope)
        if find_adapter(domain, node.op_type, version) is None:
            schema: Any = spec.schema_of(node.op_type, version, domain)
            if schema is None:
                raise UnsupportedError("the operator is unknown")
            if not (schema.has_function or schema.has_context_dependent_function):
                raise UnsupportedError("the operator is not supported")

    def _expand(
        self,
        node: NodeProto,
        schema: onnx.defs.OpSchema,
        version: int,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, AttributeProto],
        scope: Scope,
    ) -> Sequence[Value | None]:
        """Use the decomposition of the specification."""
        resolved = NodeProto()
        resolved.CopyFrom(node)
        del resolved.attribute[:]
        resolved.attribute.extend(attributes.values())
        types = [None if v is None else _tensor_type(v) for v in inputs]
        body = spec.function_body(resolved, schema, version, types)
        if body is None:
            raise UnsupportedError("the operator is not supported")
        defaults = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}
        return self._call(body, inputs, defaults | dict(attributes), node.output, scope)

    def _call(
        self,
        function: onnx.FunctionProto,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, AttributeProto],
        outputs: Sequence[str],
        scope: Scope,
    ) -> Sequence[Value | None]:
        """Inline a function: a scope of its own, its attributes bound to those of the call.

        Of its results only those that the call names in `outputs` are computed.
        """
        for what, given, formal in (
            ("inputs", inputs, function.input),
            ("outputs", outputs, function.output),
        ):
            if len(given) > len(formal):
                raise ModelError(f"{shown(function.name)} has {len(formal)} {what}, not {len(given)}")
        imported = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in function.opset_import}
        opsets = dict(scope.opsets) | imported
        defaults = {a.name: a for a in function.attribute_proto}
        inner = Scope(opsets, bound=defaults | dict(attributes), depth=scope.depth + 1)
        padded = list(inputs) + [None] * (len(function.input) - len(inputs))
        inner.values.update(zip(function.input, padded, strict=True))
        absent = {name for name, value in inner.values.items() if value is None}
        wanted = [formal for formal, name in zip(function.output, outputs, strict=False) if name]
        self._translate_nodes([_without(n, absent) for n in function.node], wanted, inner)
        self._scope = scope
        return [inner.find(formal) if formal in wanted else None for formal in function.output]


class _BrokenInputError(Exception):
    """A value that the node reads could not be translated; the problem is already recorded."""


def _check_declared(info: onnx.ValueInfoProto, type: TensorType) -> None:
    """ModelError when a subgraph's output is not of the element type that it is declared with."""
    where = f"subgraph output '{shown(info.name)}'"
    declared = info.type.tensor_type.elem_type
    if declared and dtype_of(declared, where) != type.dtype:
        raise ModelError(
            f"declared as {dtype_of(declared, where)}, but the nodes give {type}",
            where=where,
            hint="the model contradicts itself; export it again",
        )


def _without(node: NodeProto, absent: set[str]) -> NodeProto:
    """The node with inputs that the call leaves out made empty."""
    if not absent.intersection(node.input):
        return node
    new = NodeProto()
    new.CopyFrom(node)
    del new.input[:]
    new.input.extend("" if name in absent else name for name in node.input)
    return new


def _adapted(adapter: Adapter, node: Node, types: Sequence[TensorType | None]) -> tuple[Value | None, ...]:
    """Call the adapter; misfits that operators find become errors that show the operands."""
    try:
        found = adapter(node)
    except (ValueError, ZeroDivisionError, OverflowError) as e:
        listed = ", ".join("-" if t is None else str(t) for t in types)
        raise TypeRuleError(
            f"{node.op}({listed}): {e}", hint="the model contradicts itself; export it again"
        ) from e
    return found if isinstance(found, tuple) else (found,)


def _version(node: NodeProto, scope: Scope) -> int:
    """The opset version that the node's domain has here; UnsupportedError for a domain that is not imported."""
    domain = function_key(node)[0]
    version = scope.opsets.get(domain)
    if version is None:
        raise UnsupportedError(f"the domain '{shown(domain)}' is not imported by the model, or unknown")
    return version


def _tensor_type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _qualified(node: NodeProto) -> str:
    return shown(f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type)
