"""Walks the nodes of a captured graph and calls their adapters; subgraphs are translated in place."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sympy
import torch

from tilewright.frontends.problems import shown
from tilewright.frontends.torch import registry
from tilewright.frontends.torch.capture import Captured, has_complex, op_name
from tilewright.frontends.torch.contradictions import contradiction
from tilewright.frontends.torch.node import AtenNode
from tilewright.frontends.torch.origins import Origin, origin_of
from tilewright.frontends.torch.symbols.guards import GivenSizes, Place, require_guards
from tilewright.frontends.torch.symbols.sizes import Sizes, hint_of
from tilewright.frontends.torch.tensors import COMPLEX, DTYPES, array_of, dtype_of, part_of
from tilewright.frontends.translation import BrokenInputError, DifferentRanksError, Translation, type_of
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import InternalError, Loc, ModelError, UnsupportedError
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.complex import ComplexPair, apart, joined
from tilewright.ops.composites.text import literal
from tilewright.ops.source import sym_tensor

SymNumber = torch.SymInt | torch.SymFloat | torch.SymBool

Given = Value | ComplexPair | Sym | tuple[Any, ...] | float | None
"""What a node stands for: a tensor, complex numbers, a size, several of them, a number; None for what could not be
translated."""


class GraphImporter:
    """Writes the program of one captured graph."""

    def __init__(self, translation: Translation, captured: Captured) -> None:
        self.translation, self._captured = translation, captured
        self._sizes = Sizes(translation)
        self._literals: dict[tuple[Any, ...], Value | ComplexPair] = {}

    def main(self, inputs: Mapping[str, Value | None]) -> list[Value]:
        """The results of the graph; the inputs have the values given by name."""
        graph = self._captured.graph
        values: dict[torch.fx.Node, Given] = {}
        placeholders = graph.graph.find_nodes(op="placeholder")
        for node in sorted(placeholders, key=_is_number):  # sizes of tensors need not be read from memory
            if node.name in inputs:
                values[node] = self._input(node, inputs[node.name])
        for node in placeholders:
            if node.name in inputs:
                self._check_input(node, values[node])
            elif node.name in self._captured.state:
                values[node] = self._state(*self._captured.state[node.name])
            elif _is_number(node) and self._sizes.knows(node.meta["val"].node.expr):
                values[node] = self._sizes.of(node.meta["val"])
        self._require_guards({node.name: values.get(node) for node in placeholders})
        self._walk(graph, values)
        self.translation.problems.raise_if_any()
        found = [self._argument(result, values) for result in self._captured.results]
        self.translation.complex_results = {k for k, held in enumerate(found) if isinstance(held, ComplexPair)}
        stated = [getattr(result, "meta", {}).get("val") for result in self._captured.results]
        return [self._result(held, kind) for held, kind in zip(found, stated, strict=True)]

    # Inputs

    def _input(self, node: torch.fx.Node, value: Value | None) -> Given:
        """The value of a placeholder; the symbols that its dims are, are those of the value."""
        result = node.meta.get("val")
        if isinstance(result, torch.Tensor) and value is not None:
            # Complex numbers have their parts along a last axis more.
            for size, d in zip(result.shape, type_of(value).shape, strict=not result.is_complex()):
                if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                    self._sizes.bind(size.node.expr, d)
            if result.is_complex():
                return apart(value)
        elif isinstance(result, torch.SymInt) and value is not None:
            symbols = self.translation.measure(value)
            assert symbols is not None
            size = symbols.reshape(-1)[0]
            self._sizes.bind(result.node.expr, size)
            known = self._sizes.of(result)
            if known is not size:
                self.translation.require(
                    s.eq(size, known), f"the input '{node.name}' is {known} in the exported program"
                )
            return known
        return value

    def _check_input(self, node: torch.fx.Node, value: Given) -> None:
        """Calls are refused whose dims are not the expressions that the program declares, and symbols that only occur
        in expressions get their values from these."""
        result = node.meta.get("val")
        value = value.real if isinstance(value, ComplexPair) else value
        if not isinstance(result, torch.Tensor) or not isinstance(value, Value):
            return
        for axis, (size, d) in enumerate(zip(result.shape, type_of(value).shape, strict=True)):
            if not isinstance(size, torch.SymInt) or isinstance(size.node.expr, sympy.Symbol):
                continue
            self._solve(size.node.expr, d)
            condition = s.eq(self._sizes.of(size), d)
            words = f"axis {axis} of the input '{node.name}' is {size.node.expr} in the exported program"
            if condition.is_const and not condition.value:
                raise ModelError(words, hint=self.translation.fixing(d))
            if not condition.is_const:
                self.translation.require(condition, words)

    def _require_guards(self, inputs: Mapping[str, Given]) -> None:
        def size_of(place: Place) -> Sym | None:
            name, axis = place
            held = inputs.get(name)
            held = held.real if isinstance(held, ComplexPair) else held
            if axis is None or not isinstance(held, Value):
                return held if axis is None and isinstance(held, Sym) else None
            shape = type_of(held).shape
            return shape[axis] if axis < len(shape) else None

        given = GivenSizes(size_of, dict(self._examples()))
        require_guards(self._captured.guards, self.translation, self._sizes, given)

    def _examples(self) -> Iterator[tuple[Place, int | None]]:
        """The sizes that a call decides on, and what they were when PyTorch traced the program."""
        for node in self._captured.graph.graph.find_nodes(op="placeholder"):
            stated = node.meta.get("val")
            if node.name in self._captured.inputs and isinstance(stated, torch.SymInt):
                yield (node.name, None), hint_of(stated)
            elif node.name in self._captured.inputs and isinstance(stated, torch.Tensor):
                for axis, size in enumerate(stated.shape):
                    if isinstance(size, torch.SymInt):
                        yield (node.name, axis), hint_of(size)

    def _solve(self, expression: sympy.Expr, d: Sym) -> None:
        """Bind the symbol of an expression `a * x + b` that nothing has bound so far."""
        unknown = [x for x in expression.free_symbols if not self._sizes.knows(x)]
        if len(unknown) != 1:
            return
        (x,) = unknown
        poly = sympy.Poly(expression, x) if expression.is_polynomial(x) else None
        if poly is not None and poly.degree() == 1:
            a, b = poly.all_coeffs()
            if self._sizes.knows(a) and self._sizes.knows(b):
                self._sizes.bind(x, (d - self._sizes.of(b)) // self._sizes.of(a))

    def _state(self, name: str, tensor: torch.Tensor) -> Value | ComplexPair:
        """A parameter, buffer or constant of the module; those that share memory are one value."""
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_meta)
        found = self._literals.get(key)
        if found is None or not tensor.numel():
            with self.translation.builder.at(Loc(node=shown(name), op="parameter")):
                array = array_of(tensor, f"'{name}'")
                if np.iscomplexobj(array):
                    found = ComplexPair(
                        literal(array.real.copy(), f"{name}.real"), literal(array.imag.copy(), f"{name}.imag")
                    )
                else:
                    found = literal(array, name)
                self._literals[key] = found
        return found

    # The walk

    def _walk(self, graph: torch.fx.GraphModule, values: dict[torch.fx.Node, Given]) -> None:
        for node in graph.graph.nodes:
            if node.op == "get_attr":
                values[node] = self._attribute(graph, str(node.target))
            elif node.op == "call_function":
                values[node] = self._call(node, values)
            elif node.op not in ("placeholder", "output"):
                raise InternalError(f"a captured graph has a node of kind {node.op}")

    def _attribute(self, graph: torch.fx.GraphModule, target: str) -> Any:
        found = operator.attrgetter(target)(graph)
        return self._state(target, found) if isinstance(found, torch.Tensor) else found

    def _call(self, node: torch.fx.Node, values: Mapping[torch.fx.Node, Given]) -> Given:
        if isinstance(node.meta.get("val"), SymNumber):
            known = self._known_size(node)
            if known is not None:
                return known
        place, kind = origin_of(node), _kind(node.target)
        loc = Loc(node=shown(place.name), op=shown(kind))

        found: list[Given] = []

        def translate() -> Sequence[Value | None]:
            found.append(self._given(node, values))
            return []

        self.translation.node(loc, _label(place, kind), kind, translate)
        result = found[0] if found else None
        for value in (result.real, result.imaginary) if isinstance(result, ComplexPair) else (result,):
            if isinstance(value, Value) and not value.name:
                value.name = node.name
        return result

    def _known_size(self, node: torch.fx.Node) -> Given:
        """A number that follows from sizes which are known; None for others."""
        number = node.meta["val"]
        if not self._sizes.knows(number.node.expr):
            return None
        try:
            return (
                self._sizes.number(number) if isinstance(number, torch.SymFloat) else self._sizes.of(number)
            )
        except UnsupportedError:
            return None

    def _given(self, node: torch.fx.Node, values: Mapping[torch.fx.Node, Given]) -> Given:
        target = node.target
        if target is operator.getitem:
            whole, index = self._arguments(node.args, values)
            if whole[index] is None:
                (of, _) = node.args
                raise UnsupportedError(f"result {index} of {_kind(getattr(of, 'target', of))} is not translated")
            return whole[index]
        result = node.meta.get("val")
        context = AtenNode(node.name, _kind(target), result, self.translation, self._sizes.of, self._body)
        context.operands = torch.fx.map_arg(node.args, lambda a: a.meta.get("val"))
        try:
            found = self._translated(context, target, node, values)
            self._check(context, result, found)
        except (BrokenInputError, DifferentRanksError, UnsupportedError):
            raise
        except Exception as error:
            if reason := contradiction(node):
                raise ModelError(
                    f"{context.op}: {reason}", hint="the program contradicts itself: export it again"
                ) from error
            raise
        return found

    def _translated(
        self, context: AtenNode, target: Any, node: torch.fx.Node, values: Mapping[torch.fx.Node, Given]
    ) -> Any:
        """What the adapter of a call's target gives."""
        positional: tuple[Any, ...] = ()
        if isinstance(target, torch._ops.OpOverload):
            name, what = op_name(target), f"the operator {target}"
        elif isinstance(target, torch._ops.HigherOrderOperator):
            name, what = f"higher_order::{target.name()}", f"the higher-order operator {target.name()}"
        else:
            raise UnsupportedError(f"{_kind(target)} of numbers that depend on data is not followed")
        is_complex = has_complex(node)
        adapter = registry.find_complex(name) if is_complex else registry.find_adapter(name)
        if adapter is None and name.startswith("higher_order::auto_functionalized"):
            what = f"the custom operator {node.args[0]}, which writes to its arguments,"
        elif adapter is None and is_complex:
            raise UnsupportedError(
                f"{what} is not supported for complex numbers",
                hint="compute with torch.view_as_real of them; torch.compile(backend='tilewright') runs it eagerly",
            )
        if adapter is None:
            raise UnsupportedError(
                f"{what} has no binding",
                hint="docs/frontends.md says how to add one; torch.compile(backend='tilewright') runs it eagerly",
            )
        if isinstance(target, torch._ops.OpOverload):
            named = self._bound(target, node, values)
        else:
            positional = self._arguments(node.args, values)
            named = {k: self._argument(a, values) for k, a in node.kwargs.items()}
        operands = _tensors((*positional, *named.values()))
        return self.translation.fit(operands, lambda: adapter(context, *positional, **named))

    def _bound(
        self, target: torch._ops.OpOverload, node: torch.fx.Node, values: Mapping[torch.fx.Node, Given]
    ) -> dict[str, Any]:
        """The arguments of a call by the names of the schema, those that are left out too."""
        found: dict[str, Any] = {}
        for k, argument in enumerate(target._schema.arguments):
            if k < len(node.args):
                given = node.args[k]
            elif argument.name in node.kwargs:
                given = node.kwargs[argument.name]
            else:
                given = argument.default_value if argument.has_default_value() else None
            found[_identifier(argument.name)] = self._argument(given, values)
        return found

    def _arguments(self, given: Iterable[Any], values: Mapping[torch.fx.Node, Given]) -> tuple[Any, ...]:
        return tuple(self._argument(a, values) for a in given)

    def _argument(self, given: Any, values: Mapping[torch.fx.Node, Given]) -> Any:
        if isinstance(given, torch.fx.Node):
            found = values[given]
            if found is None:
                raise BrokenInputError
            return found
        if isinstance(given, list | tuple):
            return self._arguments(given, values)
        if isinstance(given, torch.dtype):
            return dtype_of(given) if given in DTYPES else given
        if isinstance(given, SymNumber):
            return self._sizes.number(given) if isinstance(given, torch.SymFloat) else self._sizes.of(given)
        return given

    def _check(self, node: AtenNode, expected: Any, found: Any) -> None:
        """Bind the symbols that a result's shape defines; InternalError for a result of another type than PyTorch
        says: what follows would be wrong."""
        pairs = (
            zip(expected, found, strict=False) if isinstance(expected, tuple | list) else [(expected, found)]
        )
        for theirs, ours in pairs:
            if isinstance(theirs, tuple | list):
                self._check(node, theirs, ours)
            if isinstance(theirs, torch.SymInt) and isinstance(theirs.node.expr, sympy.Symbol):
                if isinstance(ours, Value):
                    (ours,) = node.symbols(ours)
                if isinstance(ours, Sym):
                    self._sizes.bind(theirs.node.expr, ours)
            if not isinstance(theirs, torch.Tensor) or not isinstance(ours, Value | ComplexPair):
                continue
            is_complex = isinstance(ours, ComplexPair)
            type = type_of(ours.real if isinstance(ours, ComplexPair) else ours)
            for size, d in zip(theirs.shape, type.shape, strict=False):
                if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                    self._sizes.bind(size.node.expr, d)
            is_known = theirs.dtype in DTYPES or theirs.dtype in COMPLEX
            if is_known and not (is_complex == theirs.is_complex() and self._fits(theirs, type)):
                raise InternalError(
                    f"{node.op} gives {type} here, and {theirs.dtype} {list(theirs.shape)} in PyTorch",
                    hint="please report this with the module",
                )

    def _fits(self, theirs: torch.Tensor, type: TensorType) -> bool:
        return (
            part_of(theirs.dtype) is type.dtype
            and theirs.dim() == type.rank
            and all(
                not isinstance(a, int) or not d.is_const or d.value == a
                for a, d in zip(theirs.shape, type.shape, strict=True)
            )
        )

    # Subgraphs and results

    def _body(self, graph: torch.fx.GraphModule) -> Callable[..., tuple[Value, ...]]:
        def inlined(*arguments: Any) -> tuple[Any, ...]:
            # What is written in a block, and sizes that are measured there, are not known outside of it.
            outer = self._sizes, self._literals
            self._sizes, self._literals = self._sizes.inner(), dict(self._literals)
            try:
                placeholders = graph.graph.find_nodes(op="placeholder")
                pairs = list(zip(placeholders, arguments, strict=True))
                values: dict[torch.fx.Node, Given] = {node: self._bound_input(node, x) for node, x in pairs}
                self._walk(graph, values)
                (output,) = graph.graph.find_nodes(op="output")
                given = output.args[0] if isinstance(output.args[0], tuple | list) else (output.args[0],)
                results = [self._argument(g, values) for g in given if g is not None]
                # Complex numbers are given only to adapters that know them.
                return tuple(x if isinstance(x, ComplexPair) else self._result(x) for x in results)
            finally:
                self._sizes, self._literals = outer

        return inlined

    def _bound_input(self, node: torch.fx.Node, value: Given) -> Given:
        """What a placeholder of a subgraph stands for."""
        if isinstance(value, Value):
            return self._input(node, value)
        result = node.meta.get("val")
        if isinstance(value, Sym) and isinstance(result, torch.SymInt) and isinstance(result.node.expr, sympy.Symbol):
            self._sizes.bind(result.node.expr, value)
        return value

    def _result(self, given: Given, stated: Any = None) -> Value:
        """A result of the graph as a tensor: sizes and numbers are scalars of 64 bits, what is `stated` to be a truth
        of sizes is a bool."""
        if isinstance(given, Value):
            return given
        if isinstance(given, ComplexPair):
            return joined(given)
        if isinstance(given, Sym):
            number = sym_tensor(values=(given,), scalar=True)
            return ew.cast(number, dtype=dt.bool_) if isinstance(stated, torch.SymBool) else number
        if isinstance(given, bool | int | float):
            return literal(np.array(given), "")
        raise UnsupportedError(f"the module gives {type(given).__name__} {given!r:.80}, which is no tensor")


def _is_number(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), SymNumber)


def _tensors(arguments: Iterable[Any]) -> list[Value | None]:
    found: list[Value | None] = []
    for a in arguments:
        a = (a.real, a.imaginary) if isinstance(a, ComplexPair) else a
        found += _tensors(a) if isinstance(a, tuple) else [a] if isinstance(a, Value) else []
    return found


def _identifier(name: str) -> str:
    """Names of schemas that are keywords of Python get an underscore."""
    return f"{name}_" if name in ("from", "lambda", "is") else name


def _kind(target: Any) -> str:
    return (
        str(target)
        if isinstance(target, torch._ops.OperatorBase)
        else getattr(target, "__name__", str(target))
    )


def _label(place: Origin, kind: str) -> str:
    source = f", {place.source}" if place.source else ""
    return f"{place.name} ({kind}{source})"
