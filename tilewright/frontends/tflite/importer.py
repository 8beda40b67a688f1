"""Walks the operators of a model and calls their adapters; subgraphs of branches and loops are written in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontends.problems import shown
from tilewright.frontends.tflite.model import ModelInfo, OperatorInfo, SubgraphInfo, TfliteTensor
from tilewright.frontends.tflite.node import OperatorNode
from tilewright.frontends.tflite.registry import ADAPTERS, MOVES
from tilewright.frontends.tflite.tensors import WIDEST, array_of, dtype_of_tensor, quantized
from tilewright.frontends.tflite.variables import STATE_OPERATORS, Variables, is_state
from tilewright.frontends.translation import BrokenInputError, Results, Translation, type_of
from tilewright.ir.core import Value
from tilewright.ir.diag import Loc, ModelError, UnsupportedError
from tilewright.ops.composites.text import literal
from tilewright.ops.reduce import dtype_of

MAX_DEPTH = 100
MAX_OPERATORS = 500_000

_AGAIN = "the model contradicts itself; export it again"


@dataclass
class _Scope:
    """Values of the tensors of a subgraph, by number; None for one that could not be translated."""

    graph: SubgraphInfo
    values: dict[int, Value | None]
    depth: int = 0


class TfliteImporter:
    """Writes the program of a model; what cannot be translated is left to the problems of the translation."""

    def __init__(
        self, translation: Translation, model: ModelInfo, states: Variables, kept: Sequence[int] = ()
    ) -> None:
        """`kept` are the tensors of operators' states that are inputs, and of which the new values are results."""
        self.translation = translation
        self._model, self._states, self._kept = model, states, kept
        self._variables: dict[str, Value | None] = {}
        self._scope: _Scope | None = None
        self._budget = MAX_OPERATORS
        self._arrays: dict[int, np.ndarray] = {}

    def main(self, values: dict[int, Value | None], variables: dict[str, Value | None]) -> Results:
        """The results of the model's subgraph, whose inputs, kept states and variables have these values, the variables
        that it assigns, and the states."""
        graph = self._model.subgraphs[0]
        self._variables = variables
        scope = _Scope(graph, values)
        self._translate(scope)
        self.translation.problems.raise_if_any()
        assigned = [self._variables[name] for name in self._states.assigned]
        kept = [scope.values[number] for number in self._kept]
        return [*(self._read(scope, number) for number in graph.outputs), *assigned, *kept]

    # What operators ask

    def array(self, tensor: TfliteTensor) -> np.ndarray:
        """The elements of a constant, decoded once."""
        key = id(tensor)
        if key not in self._arrays:
            self._arrays[key] = array_of(tensor)
        return self._arrays[key]

    def keep(self, number: int, value: Value) -> None:
        """Note what a state of an operator becomes, by its tensor; nothing where it is not kept."""
        scope = self._scope
        assert scope is not None
        if number in self._kept and not scope.depth:
            scope.values[number] = _as_declared(value, scope.graph.tensors[number])

    def body(self, number: int) -> Callable[..., tuple[Value, ...]]:
        """A function that translates a subgraph in place, its inputs bound to the arguments."""
        outer = self._scope
        assert outer is not None
        if not 0 < number < len(self._model.subgraphs):
            raise ModelError(f"there is no subgraph {number} to call")
        graph = self._model.subgraphs[number]

        def inlined(*arguments: Value) -> tuple[Value, ...]:
            if len(arguments) != len(graph.inputs):
                raise ModelError(
                    f"the subgraph {number} takes {len(graph.inputs)} inputs, not {len(arguments)}"
                )
            inner = _Scope(graph, dict(zip(graph.inputs, arguments, strict=True)), outer.depth + 1)
            try:
                self._translate(inner)
                results = [self._read(inner, k) for k in graph.outputs]
            finally:
                self._scope = outer
            found = tuple(v for v in results if v is not None)
            if len(found) < len(results):
                raise BrokenInputError
            return found

        return inlined

    # Operators

    def _translate(self, scope: _Scope) -> None:
        if scope.depth > MAX_DEPTH:
            raise ModelError(f"subgraphs are nested deeper than {MAX_DEPTH}")
        for k, operator in enumerate(scope.graph.operators):
            self._scope = scope
            self._budget -= 1
            if self._budget < 0:
                raise ModelError(f"the model unfolds to more than {MAX_OPERATORS} operators")
            self._translate_operator(k, operator, scope)

    def _translate_operator(self, k: int, operator: OperatorInfo, scope: _Scope) -> None:
        results = [scope.graph.tensors[n] for n in operator.outputs if n >= 0]
        name, kind = shown(results[0].name) if results else "", shown(operator.kind)
        loc = Loc(node=name, op=kind)
        label = f"operator {k} '{name}' ({kind})"
        if operator.kind in STATE_OPERATORS and not scope.depth:
            self._move_state(operator, scope)
            return
        found = self.translation.node(loc, label, kind, lambda: self._results(operator, results, scope))
        for tensor, value in zip(results, found or [None] * len(results), strict=False):
            scope.values[tensor.number] = value
            if value is not None and not value.name:
                value.name = tensor.name

    def _move_state(self, operator: OperatorInfo, scope: _Scope) -> None:
        if operator.kind == "READ_VARIABLE" and operator.outputs:
            scope.values[operator.outputs[0]] = self._variables[self._states.handles[operator.inputs[0]]]
        elif operator.kind == "ASSIGN_VARIABLE":
            if len(operator.inputs) != 2 or operator.inputs[1] < 0:
                raise ModelError("ASSIGN_VARIABLE takes a variable and a value")
            self._variables[self._states.handles[operator.inputs[0]]] = self._read(scope, operator.inputs[1])

    def _results(self, operator: OperatorInfo, results: Sequence[TfliteTensor], scope: _Scope) -> Results:
        adapter = ADAPTERS.find(operator.kind)
        if adapter is None:
            raise UnsupportedError("the operator is not supported")
        operands = [
            None
            if n < 0 or (n not in scope.values and is_state(scope.graph.tensors[n]))
            else scope.graph.tensors[n]
            for n in operator.inputs
        ]
        values = [None if t is None else self._read(scope, t.number) for t in operands]
        if any(t is not None and v is None for t, v in zip(operands, values, strict=True)):
            raise BrokenInputError
        keeps = operator.kind in MOVES and _quantised_alike(
            [*(t for t in operands if t is not None), *results]
        )
        node = OperatorNode(operator, values, operands, results, self, keeps=keeps)
        made = self.translation.fit(values, lambda: adapter(node))
        made = made if isinstance(made, tuple) else (made,)
        if len(made) < len(results):
            raise ModelError(f"{operator.kind} has {len(results)} results, not {len(made)}")
        return [_as_declared(v, t) for v, t in zip(made, results, strict=False)]

    def _read(self, scope: _Scope, number: int) -> Value | None:
        """The value of a tensor; constants become values when they are read first."""
        if number in scope.values:
            return scope.values[number]
        tensor = scope.graph.tensors[number]
        if tensor.data is not None:
            array = self.array(tensor)
        elif 0 in (tensor.shape or ()) and -1 not in (tensor.shape or ()):  # a constant without elements
            array = np.zeros(tensor.shape or (), dtype_of_tensor(tensor).storage)
        else:
            raise ModelError(f"the tensor '{shown(tensor.name)}' is read, but no operator before gives it")
        value = literal(array, tensor.name or f"tensor_{number}")
        scope.values[number] = value
        return value


def is_quantised(tensor: TfliteTensor) -> bool:
    """Whether a tensor holds integers that stand for floats, other than a bias."""
    return (
        tensor.quantization is not None and (dtype := dtype_of_tensor(tensor)).is_int and dtype.bits <= WIDEST
    )


def _quantised_alike(tensors: Sequence[TfliteTensor]) -> bool:
    found = [t for t in tensors if is_quantised(t)]
    first = found[0] if found else None
    if first is None or first.quantization is None:
        return False
    return all(
        t.quantization is not None
        and t.quantization.scales.size == 1
        and t.type == first.type
        and first.quantization.same_as(t.quantization)
        for t in found
    )


def _as_declared(value: Value, tensor: TfliteTensor) -> Value:
    """What an operator gives, quantised where the file has it so."""
    declared = dtype_of_tensor(tensor)
    if is_quantised(tensor) and dtype_of(value).is_float:
        assert tensor.quantization is not None
        return quantized(value, tensor.quantization, declared, tensor.name)
    if dtype_of(value) is not declared:
        what = f"'{shown(tensor.name)}' is declared as {declared}, but the operator gives {type_of(value)}"
        raise ModelError(what, hint=_AGAIN)
    return value
