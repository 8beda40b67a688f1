"""Walks the nodes of a model and calls their adapters; functions and subgraphs are inlined."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto

from tilewright.frontends.choices import Choices
from tilewright.frontends.errors import shown
from tilewright.frontends.hints import dims_hint, in_words
from tilewright.frontends.knowledge import Knowledge
from tilewright.frontends.onnx import attributes as attrs
from tilewright.frontends.onnx import schema as spec
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import Adapter, find_adapter
from tilewright.frontends.onnx.structure import FunctionKey, function_key, live, node_label, ordered
from tilewright.frontends.onnx.tensors import ELEM_TYPES, dtype_of, from_sparse, to_array
from tilewright.frontends.problems import Problems
from tilewright.ir.core import Builder, Module, Value
from tilewright.ir.diag import (
    InternalError,
    Loc,
    ModelError,
    TilewrightError,
    TypeRuleError,
    UnsupportedError,
)
from tilewright.ir.sym import Sym, logical_not
from tilewright.ir.types import TensorType
from tilewright.ops.define import constant
from tilewright.ops.shape import UndecidedDimsError

MAX_DEPTH = 100
MAX_NODES = 500_000

Assumed = tuple[Sym, str, str, str]
"""A condition over dims, what it says in words, and the name and operator of the node that relies on it."""


@dataclass(frozen=True)
class Mark:
    """A place in the program that is being written: how many ops there are, and what they assume."""

    ops: int
    assumed: Mapping[Sym, Assumed]


@dataclass
class Scope:
    """Names of one graph or function body, and those it sees from outside. None stands for a value that could
    not be translated (the reason is among the problems)."""

    opsets: Mapping[str, int]
    values: dict[str, Value | None] = field(default_factory=dict)
    declared: Mapping[str, onnx.ValueInfoProto] = field(default_factory=dict)
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
    """Builds the body of one function; what it cannot translate it collects in `problems` and goes on.

    `given` names the inputs whose shapes or values the caller has chosen, `choices` decides on ranks.
    """

    def __init__(
        self,
        module: Module,
        builder: Builder,
        functions: Mapping[FunctionKey, onnx.FunctionProto],
        folder: Path | None,
        choices: Choices,
        given: Collection[str] = (),
    ) -> None:
        self.module = module
        self.builder = builder
        self.problems = Problems()
        self.contradictions: dict[str, str] = {}
        self._choices = choices
        self._given = given
        self._assumed: dict[Sym, Assumed] = {}
        self._attempts = 0
        self._functions = functions
        self._folder = folder
        self._knowledge = Knowledge(module, self.suppose_exact)
        self._scope: Scope | None = None
        self._budget = MAX_NODES

    # What nodes ask

    def constant_of(self, value: Value) -> np.ndarray | None:
        return self._knowledge.constant_of(value)

    def symbols_of(self, value: Value) -> np.ndarray | None:
        return self._knowledge.symbols_of(value)

    def origin(self, value: Value) -> tuple[tuple[str, ...], tuple[Sym, ...]]:
        return self._knowledge.origin(value)

    @property
    def graph_inputs(self) -> Sequence[Value]:
        return self.builder.block.args

    @property
    def assumed(self) -> tuple[Assumed, ...]:
        """What holds for all dims that the translated model may be called with, to be checked by each call."""
        return tuple(self._assumed.values())

    def suppose_exact(self, condition: Sym) -> None:
        self._suppose(condition, f"a size is computed from floats, and known where {self._worded(condition)}")

    def _suppose(self, condition: Sym, message: str) -> None:
        loc = self.builder.loc
        text = f"{message}; to compile the model for others, {dims_hint([condition], self.graph_inputs)}"
        self._assumed.setdefault(condition, (condition, text, loc.node, loc.op))

    def _worded(self, condition: Sym) -> str:
        return in_words(condition, self.graph_inputs)

    def choose(self, condition: Sym, what: str) -> bool:
        """Whether `condition`, on which the shape of `what` depends, is taken to hold in all calls.

        UnsupportedError in a branch that is computed whether it is taken or not: there nothing can be supposed.
        """
        if condition.is_const:
            return bool(condition.value)
        if self._attempts:
            raise UnsupportedError(
                f"the shape of {what} depends on whether {self._worded(condition)}",
                hint=dims_hint([condition], self.graph_inputs),
            )
        holds = self._choices.decide(condition)
        supposed = condition if holds else logical_not(condition)
        self._suppose(
            supposed, f"the shape of {what} depends on dims, and is known where {self._worded(supposed)}"
        )
        return holds

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
            self._compare(declared, _tensor_type(value), f"subgraph output '{shown(declared.name)}'")
        return tuple(r for r in results if r is not None)

    def attempt(self, graph: GraphProto) -> tuple[Value, ...] | TilewrightError:
        """`inline` of a graph without inputs that may not be needed: the reason where it cannot be translated."""
        problems, start = self.problems, self.mark()
        self.problems, self._attempts = Problems(), self._attempts + 1
        try:
            return self.inline(graph, ())
        except _BrokenInputError:
            if self.problems.first is None:
                raise
            self.rewind(start)
            return self.problems.first
        except TilewrightError as e:
            self.rewind(start)
            return e
        finally:
            self.problems, self._attempts = problems, self._attempts - 1

    def mark(self) -> Mark:
        return Mark(len(self.builder.block.ops), dict(self._assumed))

    def rewind(self, mark: Mark) -> None:
        """Take out what was written since, of which nothing is used, and what that assumes."""
        ops = self.builder.block.ops
        for op in reversed(ops[mark.ops :]):
            op.drop()
        del ops[mark.ops :]
        self._assumed = dict(mark.assumed)

    # The walk

    def check_presets(self, graph: GraphProto, scope: Scope) -> None:
        """Hold what inputs with initializers are declared as against these."""
        for info in graph.input:
            value = scope.values.get(info.name)
            if value is not None and value.op is not None:
                self._compare(info, _tensor_type(value), f"graph input '{shown(info.name)}'")

    def translate(self, graph: GraphProto, scope: Scope) -> None:
        """Define the graph's initializers and nodes in `scope`, which holds its inputs."""
        self.define_initializers(graph, scope)
        scope.declared = {v.name: v for v in graph.value_info}
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

    def _note(self, info: onnx.ValueInfoProto, type: TensorType) -> None:
        """Note a value inside of the graph whose declaration, which nothing reads, is not what the nodes give."""
        declared = info.type.tensor_type
        wrong_rank = declared.HasField("shape") and len(declared.shape.dim) != type.rank
        if wrong_rank or declared.elem_type not in (0, ELEM_TYPES[type.dtype]):
            self.contradictions.setdefault(
                f"value '{shown(info.name)}'", f"what value_info declares is not taken: the nodes give {type}"
            )

    def _compare(self, info: onnx.ValueInfoProto, type: TensorType, where: str) -> None:
        """Hold what a value is declared as against what the nodes make of it. ModelError for another element type,
        which would be misread; a rank that differs is noted, and the nodes' is taken."""
        declared = info.type.tensor_type
        if not info.type.HasField("tensor_type"):
            return
        if declared.elem_type and dtype_of(declared.elem_type, where) != type.dtype:
            raise ModelError(
                f"declared as {dtype_of(declared.elem_type, where)}, but the nodes give {type}",
                where=where,
                hint="the model contradicts itself; export it again",
            )
        if declared.HasField("shape") and len(declared.shape.dim) != type.rank:
            self.contradictions[where] = (
                f"the declared shape {declared_shape(declared)} is not taken: the nodes give {type}"
            )

    def check_output(self, info: onnx.ValueInfoProto, scope: Scope) -> Value:
        """The value of a graph output; ModelError where it is none, or not what it is declared as."""
        where = f"graph output '{shown(info.name)}'"
        if not scope.defines(info.name):
            raise ModelError(
                "no node gives this output", where=where, hint="the model is incomplete; export it again"
            )
        value = scope.find(info.name)
        assert value is not None
        type = _tensor_type(value)
        self._compare(info, type, where)
        declared = info.type.tensor_type
        if where not in self.contradictions and not _dims_fit(declared.shape, type):
            raise ModelError(
                f"declared with shape {declared_shape(declared)}, but the nodes give {type}",
                where=where,
                hint="the model contradicts itself; export it again",
            )
        return value

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
                if isinstance(e, UndecidedDimsError):
                    e.hint = dims_hint(e.dims, self.graph_inputs)
                self.problems.add(_qualified(node), node_label(node), e)
                results = (None,) * len(node.output)
            except TilewrightError as e:
                e.where = e.where or node_label(node)
                if self._given and isinstance(e, TypeRuleError | ModelError):
                    e.hint = f"do shapes= and constants= fit the model? given are: {', '.join(self._given)}"
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
                if value is not None and name in scope.declared:
                    self._note(scope.declared[name], _tensor_type(value))

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


def declared_shape(type: onnx.TypeProto.Tensor) -> str:
    """The shape that a file declares, for messages."""
    dims = (
        str(d.dim_value) if d.HasField("dim_value") else shown(d.dim_param) or "?" for d in type.shape.dim
    )
    return f"[{', '.join(dims)}]"


def _dims_fit(declared: onnx.TensorShapeProto, type: TensorType) -> bool:
    return all(
        not d.HasField("dim_value") or not s.is_const or d.dim_value in (s.value, -1)
        for d, s in zip(declared.dim, type.shape, strict=False)
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
