"""Walks a graph and writes each operator: by its form, by the ONNX operator bound to it, or by what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tilewright.exporters.onnx import forms as forms
from tilewright.exporters.onnx import sizes
from tilewright.exporters.onnx.bodies import in_operators
from tilewright.exporters.onnx.forms.registry import NoFormError, forms_of, rewrites_of
from tilewright.exporters.onnx.scope import Names, OnnxConstants, OnnxScope
from tilewright.frontends.onnx.schema import NEWEST_OPSET, attributes_of, check_types, schema_of
from tilewright.frontends.onnx.tensors import ELEM_TYPES
from tilewright.frontends.onnx.types import onnx_type
from tilewright.frontends.problems import Problems, shown
from tilewright.ir.core import Block, Builder, Func, Module, Op, Value
from tilewright.ir.diag import Loc, ModelError, UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import ANY_DIM, HostType, TensorType, Type
from tilewright.ops.define import OPERATORS, Operator
from tilewright.ops.define.binding import input_variables
from tilewright.ops.define.operator import exact_items
from tilewright.ops.define.symbolic import Values
from tilewright.ops.traits.derive import traits_of

MOST_FOLDED = 1 << 22
"""Elements of constants that are written in the form in which they are read."""

WAY_OUT = (
    "a model of tilewright has them all (`tilewright compile`); to have ONNX, leave these layers out of the model that "
    "is converted, or say them by other operators"
)


@cache
def element_types(opset: int) -> frozenset[DType]:
    """The types that tensors of a version of the operator set may have."""
    schema = schema_of("Identity", opset, "")
    assert schema is not None
    allowed = {text for constraint in schema.type_constraints for text in constraint.allowed_type_strs}
    return frozenset(dtype for dtype in ELEM_TYPES if onnx_type(TensorType(dtype, ())) in allowed)


class OnnxWriter:
    """Writes the functions of a module as graphs of one version of the operator set of ONNX. What has no form is left
    to `problems`, with the place in the model."""

    def __init__(self, module: Module, opset: int, taken: Sequence[str] = ()) -> None:
        self.opset = opset
        self.scope = OnnxScope()
        self.problems = Problems("ONNX cannot express all of the model")
        self.needed = opset
        """The first version of the operator set that has all that was asked for."""
        self.is_composed = False
        """Whether what is written now is part of another operator, and not what a model says by itself."""
        self._names = Names(taken)
        self._named = {v.name for f in module.funcs.values() for op in f.body.walk() for v in op.results}
        self._node_names = Names()
        self.constants = OnnxConstants(self._names)
        self._module = Module({}, module.constants)
        self._initializers: dict[str, str] = {}
        self._known = Values(self._module)
        self._loc = Loc()
        self._base = ""
        self._around: list[object] = []
        self._has_open_dims = bool(module.main.attrs.get("open_dims"))

    # What forms call

    @property
    def label(self) -> str:
        """What names within the operator that is written begin with."""
        return self._base

    def name(self, value: Value) -> str:
        """The name of a value in ONNX."""
        return self.scope.values[value]

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Write a node with one result; gives the name of that."""
        return self.several(op, 1, *inputs, **attrs)[0]

    def several(self, op: str, outputs: int, *inputs: str, **attrs: Any) -> tuple[str, ...]:
        """Write a node with so many results; attributes that are None, and inputs at the end that are "", are left
        out."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        names = tuple(self._names.fresh(f"{self._base}/{op}") for _ in range(outputs))
        given = {name: value for name, value in attrs.items() if value is not None}
        self.scope.nodes.append(helper.make_node(op, inputs, names, **given))
        return names

    def constant(self, array: np.ndarray, wanted: str = "") -> str:
        """The name of a constant."""
        return self.constants.add(array, wanted or f"{self._base}/constant")

    def ints(self, values: Sequence[int]) -> str:
        """The name of an i64 vector."""
        return self.constant(np.array(values, np.int64).reshape(-1))

    def number(self, value: Any, dtype: DType) -> str:
        """The name of one number as a tensor of rank 0."""
        return self.constant(np.asarray(value).astype(dtype.storage).reshape(()))

    def dims(self, shape: Sequence[Sym | int]) -> str:
        """The name of an i64 vector of these sizes."""
        return sizes.vector(self, tuple(map(sym, shape)))

    def size(self, d: Sym | int) -> str:
        """The name of a vector of one i64 that holds the size."""
        return sizes.size(self, sym(d))

    def code(self, dtype: DType) -> int:
        """The number that ONNX gives an element type; NoFormError for one that this version does not have."""
        if dtype not in element_types(self.opset):
            later = next((v for v in range(self.opset, NEWEST_OPSET + 1) if dtype in element_types(v)), None)
            hint = "" if later is None else f"version {later} of the operator set has it: opset={later} (--opset)"
            self.has(later or self.opset)
            raise NoFormError(f"version {self.opset} of the operator set has no element type {dtype}", hint)
        return ELEM_TYPES[dtype]

    def has(self, version: int) -> bool:
        """Whether this version of the operator set has what came with another one, which is noted as needed."""
        self.needed = max(self.needed, version)
        return self.opset >= version

    def takes(self, onnx_name: str, *values: Value) -> bool:
        """Whether this version of the operator set has the ONNX operator for first operands of these types."""
        schema = schema_of(onnx_name, self.opset, "")
        if schema is None or schema.deprecated:
            return False
        try:
            check_types([v.type for v in values], schema)
        except ModelError:
            return False
        return True

    def known(self, value: Value) -> np.ndarray | None:
        """The elements of a value that follow from constants alone."""
        found = self._known.of(value)
        return found.elements if found is not None and found.is_number and not found.conditions else None

    def composed(self, write: Callable[[], Value | Sequence[Value]]) -> tuple[str, ...]:
        """What operators give that `write` calls with values of the graph: they are written in its place."""
        found = self._tried(write)
        assert found is not None
        return found

    def _tried(self, write: Callable[[], Value | Sequence[Value] | None]) -> tuple[str, ...] | None:
        """The same; None where `write` gives None."""
        block = Block()
        outer = self.is_composed
        self.is_composed = True
        try:
            with Builder(block, self._module, self._loc):
                results = write()
            if results is None:
                return None
            for op in block.ops:
                self._write(op)
            found = (results,) if isinstance(results, Value) else tuple(results)
            return tuple(self.name(v) for v in found)
        finally:
            self.is_composed = outer
            for op in reversed(block.ops):
                op.drop()

    def bound(
        self, op: Op, onnx_name: str, attrs: dict[str, str], since: int = 1
    ) -> str | tuple[str, ...] | None:
        """The results of an ONNX operator with the operands of a graph operator, whose attributes `attrs` names (of
        ONNX: ours). None where this version of the operator set does not have it for these types or attributes."""
        operator = OPERATORS[op.name]
        schema = schema_of(onnx_name, self.opset, "") if self.opset >= since else None
        if schema is None or schema.deprecated:
            return None
        ours = {ours: theirs for theirs, ours in attrs.items()}
        given: dict[str, Any] = {}
        for name, value in op.attrs.items():
            theirs = ours.get(name)
            if theirs is not None and theirs in attributes_of(schema):
                given[theirs] = value
            elif exact_items({name: value}) != exact_items({name: operator.defaults.get(name)}):
                return None
        if not self.takes(onnx_name, *op.operands):
            return None
        names = self.several(onnx_name, len(op.results), *map(self.name, op.operands), **given)
        return names if len(names) > 1 else names[0]

    def block(self, block: Block, name: str) -> onnx.GraphProto:
        """The body of a branch or a loop as a graph."""
        outer, base = self.scope, self._base
        self.scope = outer.inner()
        try:
            inputs = []
            for k, arg in enumerate(block.args):
                self.scope.values[arg] = self._names.fresh(arg.name or f"{name}/{k}")
                self._declare(arg, self.name(arg))
                inputs.append(self._declared(self.name(arg), arg.type))
            for op in block.ops[:-1]:
                self._write(op)
            results = block.ops[-1].operands
            outputs = self._outputs(results, [f"{name}/result_{k}" for k in range(len(results))])
            return self._graph(name, inputs, outputs)
        finally:
            self.scope, self._base = outer, base

    # The walk

    def main(self, func: Func, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.GraphProto:
        """The graph of a function, its inputs and outputs under the names that users know. What has no form is left to
        the problems, and the graph is not to be used then."""
        declared = []
        for arg, given in zip(func.args, inputs, strict=True):
            self.scope.values[arg] = given
            try:
                declared.append(self._declared(given, arg.type))
            except NoFormError as error:
                self._problem("input", f"graph input '{shown(given)}'", error)
            self._declare(arg, given)
        for arg, given in zip(func.args, inputs, strict=True):
            variables = input_variables(arg)
            if variables is not None:
                sizes.declare_elements(self, given, variables)
        for op in func.body.ops[:-1]:
            self._write(op)
        return self._graph(func.name, declared, self._outputs(func.returns, outputs, exactly=True))

    def _write(self, op: Op) -> None:
        loc, base = self._loc, self._base
        if op.loc.node or op.loc.op:
            self._loc = op.loc
        hint = op.results[0].name if op.results else ""
        if not self._around or hint:
            self._base = hint or self._loc.node or self._loc.value or op.name
        start = len(self.scope.nodes)
        try:
            for result in op.results:
                if isinstance(result.type, TensorType):
                    self.code(result.type.dtype)
            names = self._results_of(op)
        except NoFormError as error:
            self._note(op, error)
            names = [self._names.fresh(f"{self._base}/none") for _ in op.results]
        self._bind(op, names, start)
        self._loc, self._base = loc, base

    def _results_of(self, op: Op) -> Sequence[str]:
        """The names of what nodes give that say the operator."""
        if op.name == "constant":
            return [self._initializer(op.attrs["name"])]
        folded = self._folded(op)
        if folded is not None:
            return [folded]
        for write in forms_of(op.name):
            names = write(self, op)
            if names is not None:
                return [names] if isinstance(names, str) else names
        operator = OPERATORS.get(op.name)
        if operator is None:
            raise NoFormError("it is known to the host of tilewright alone")
        for binding in operator.onnx_bindings:
            if not binding.domain:
                names = self.bound(op, binding.name, dict(binding.attrs))
                if names is not None:
                    return [names] if isinstance(names, str) else names
        return self._by_others(op, operator)

    def _initializer(self, key: str) -> str:
        """The name of a constant of the module."""
        if key not in self._initializers:
            self._initializers[key] = self.constants.add(self._module.constants[key], key)
        return self._initializers[key]

    def _by_others(self, op: Op, operator: Operator) -> Sequence[str]:
        """An operator by others: those that say it here, those that it is composed of, or those of its body."""
        with self._within(op):
            for rewrite in rewrites_of(op.name):
                names = self._tried(partial(rewrite, op))
                if names is not None:
                    return names
            if operator.kind == "composite":
                return self.composed(lambda: operator.expand(op.operands, op.attrs))
            if operator.kind == "primitive":
                return self.composed(lambda: in_operators(operator, op.operands, op.attrs))
        types = ", ".join(str(v.type) for v in op.operands)
        raise NoFormError(f"ONNX has no operator for {op.name}({types}), which has loops of its own")

    def _folded(self, op: Op) -> str | None:
        """A constant that is only laid out otherwise, as a constant."""
        if len(op.results) != 1 or op.name not in OPERATORS or not op.operands:
            return None
        result = op.result.type
        if not isinstance(result, TensorType) or not result.is_static or result.size.value > MOST_FOLDED:
            return None
        if self.name(op.operands[0]) not in self.constants.arrays:
            return None
        source = op.operands[0].tensor
        if len(op.operands) > 1 or result.size.value > source.size.value or not traits_of(op).moves_one:
            return None
        elements = self.known(op.result)
        return None if elements is None else self.constant(elements, f"{self.name(op.operands[0])}/{op.name}")

    def _bind(self, op: Op, names: Sequence[str], start: int) -> None:
        """The results have these names from here on; what nodes of the operator gave gets the name of the result."""
        made = {name for node in self.scope.nodes[start:] for name in node.output}
        renamed: dict[str, str] = {}
        for result, name in zip(op.results, names, strict=True):
            if name in made and name not in renamed and not self._around:
                wanted = result.name or self._name_on_the_way(op)
                renamed[name] = self._names.fresh(wanted)
            self.scope.values[result] = renamed.get(name, name)
            self._declare(result, self.scope.values[result])
        if renamed:
            self._rename(start, renamed)
        if not self._around:
            self._tell(op, start)

    def _name_on_the_way(self, op: Op) -> str:
        """For a value without a name: that of its layer, unless the result of the layer, or another value, has it."""
        layer = self._loc.node or op.name
        return f"{layer}/{op.name}" if layer in self._named else layer

    def _tell(self, op: Op, start: int) -> None:
        """Types of what an operator of the model gives, and names of its nodes."""
        own = self._loc.node or (op.results[0].name if op.results else "") or op.name
        made = {name for node in self.scope.nodes[start:] for name in node.output}
        for result in (v for v in op.results if self.name(v) in made):
            with suppress(NoFormError):
                self.scope.types[self.name(result)] = self._declared(self.name(result), self._certain(result.type))
        for node in self.scope.nodes[start:]:
            is_last = node is self.scope.nodes[-1]
            node.name = node.name or (own if is_last else f"{own}/{node.op_type}")

    def _rename(self, start: int, names: dict[str, str]) -> None:
        """Give other names to what nodes from `start` on give."""
        self.scope.rename(start, names)
        values, sizes_of, sources = self.scope.values.maps[0], self.scope.sizes.maps[0], self.scope.sources.maps[0]
        if not start:
            values.update({value: names[name] for value, name in values.items() if name in names})
        sizes_of.update({e: names[name] for e, name in sizes_of.items() if name in names})
        for variable, source in sources.items():
            if source.tensor in names:
                sources[variable] = source._replace(tensor=names[source.tensor])
        for name in names:
            self.scope.types.pop(name, None)

    @contextmanager
    def _within(self, op: Op) -> Iterator[None]:
        """What is written is what the operator is made of."""
        key = (op.name, tuple(v.type for v in op.operands), exact_items(op.attrs))
        if key in self._around:
            types = ", ".join(str(v.tensor.dtype) for v in op.operands)
            raise NoFormError(f"ONNX has no operator for {op.name} of {types}")
        self._around.append(key)
        try:
            yield
        finally:
            self._around.pop()

    def _note(self, op: Op, error: NoFormError) -> None:
        listed = ", ".join(f"'{shown(v.name)}'" for v in op.results if v.name)
        label = str(self._loc) if self._loc.node or self._loc.op else f"operator {op.name}"
        name = op.name if op.name != "host" else str(op.attrs.get("function"))
        self._problem(name, f"{label}, which gives {listed}" if listed else label, error)

    def _problem(self, name: str, label: str, error: NoFormError) -> None:
        self.problems.add(name, label, UnsupportedError(error.reason, hint=error.hint or WAY_OUT))

    # Graphs

    def _declare(self, value: Value, name: str) -> None:
        """Dims of the value that are variables are read from it, where nothing else has told them."""
        if isinstance(value.type, TensorType):
            sizes.declare_dims(self, name, value.type.shape)

    def _certain(self, type: Type) -> Type:
        """The type without dims that are others in calls which broadcast what the graph takes for equal."""
        if not self._has_open_dims or not isinstance(type, TensorType) or type.is_static:
            return type
        return TensorType(type.dtype, tuple(d if d.is_const else ANY_DIM for d in type.shape))

    def _declared(self, name: str, type: Type) -> onnx.ValueInfoProto:
        return helper.make_value_info(name, self.type(type))

    def type(self, type: Type) -> onnx.TypeProto:
        if isinstance(type, TensorType):
            shape = [d.value if d.is_const else None if d is ANY_DIM else str(d) for d in type.shape]
            return helper.make_tensor_type_proto(self.code(type.dtype), shape)
        assert isinstance(type, HostType)
        if type.kind == "tensor" and type.dtype is not None:
            return helper.make_tensor_type_proto(self.code(type.dtype), None)
        if type.element is None or type.kind not in ("sequence", "optional"):
            raise NoFormError(f"{type} is no type of a value of ONNX")
        make = helper.make_sequence_type_proto if type.kind == "sequence" else helper.make_optional_type_proto
        return make(self.type(type.element))

    def _outputs(
        self, values: Sequence[Value], wanted: Sequence[str], *, exactly: bool = False
    ) -> list[onnx.ValueInfoProto]:
        """The values as results of the graph, each under a name of its own, which is the one wanted where `exactly`.
        Only what nodes of the graph itself give can be a result."""
        given: list[str] = []
        for value, target in zip(values, wanted, strict=True):
            name = self.name(value)
            is_own = name not in given and self.scope.defines(name)
            if is_own and exactly:
                self._rename(0, {name: target})
            elif exactly or not is_own:
                new = target if exactly else self._names.fresh(target)
                self.scope.nodes.append(helper.make_node("Identity", [name], [new], name=new))
            given.append(target if exactly else name if is_own else new)
        found = []
        for name, value in zip(given, values, strict=True):
            try:
                found.append(self._declared(name, value.type))
            except NoFormError as error:
                self._problem("output", f"result '{shown(name)}'", error)
        return found

    def _graph(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        told = {info.name for info in (*inputs, *outputs)}
        nodes = self.scope.live_nodes(info.name for info in outputs)
        for node in nodes:
            node.name = self._node_names.fresh(node.name or f"{name}/{node.op_type}")
        types = [self.scope.types[n] for node in nodes for n in node.output if n in self.scope.types and n not in told]
        return helper.make_graph(nodes, name, inputs, outputs, value_info=types)
