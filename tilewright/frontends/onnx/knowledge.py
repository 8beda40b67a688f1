"""What is known about values while the graph is being built: constants, integers over dims, their origin."""

from __future__ import annotations

import math

import numpy as np

from tilewright.ir.core import Module, Op, Value
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.ops.interp import evaluate_op
from tilewright.ops.symbolic import symbolic_value

MAX_ELEMENTS = 1 << 16
"""Larger tensors are not evaluated here: they are no shapes, axes, scales or limits."""

MAX_DEPTH = 100


class Knowledge:
    """Evaluates values on demand, each once."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._arrays: dict[Value, np.ndarray | None] = {}

    def constant_of(self, value: Value) -> np.ndarray | None:
        """The value's array when it does not depend on graph inputs; None when it does, or is large."""
        found = self._evaluate(value, MAX_DEPTH)
        if found is None and isinstance(value.type, TensorType) and not value.type.dtype.is_float:
            found = self._arrays[value] = self._from_symbols(value)
        return found

    def symbols_of(self, value: Value) -> np.ndarray | None:
        return symbolic_value(value, self._module)

    def inputs_behind(self, value: Value) -> tuple[str, ...]:
        """Names of the graph inputs that the value is computed from."""
        names: dict[str, None] = {}
        seen, stack = {value}, [value]
        while stack:
            v = stack.pop()
            if v.op is None:
                names[v.name] = None
                continue
            for operand in v.op.operands:
                if operand not in seen:
                    seen.add(operand)
                    stack.append(operand)
        return tuple(names)

    def _evaluate(self, value: Value, depth: int) -> np.ndarray | None:
        if value in self._arrays:
            return self._arrays[value]
        op = value.op
        if op is None or not isinstance(value.type, TensorType):
            return None
        if op.name == "constant":
            return self._module.constants[op.attrs["name"]]
        found = self._evaluate_results(op, depth) if depth and _is_small(value) else None
        for k, result in enumerate(op.results):
            self._arrays[result] = None if found is None else found[k]
        return self._arrays[value]

    def _evaluate_results(self, op: Op, depth: int) -> list[np.ndarray] | None:
        if op.name == "sym_tensor" or op.name not in OPERATORS or op.blocks:
            return None
        arrays = []
        for operand in op.operands:
            array = self._evaluate(operand, depth - 1)
            if array is None or array.size > MAX_ELEMENTS:
                return None
            arrays.append(array)
        results = evaluate_op(op, arrays, {})
        return list(results) if isinstance(results, tuple | list) else [results]

    def _from_symbols(self, value: Value) -> np.ndarray | None:
        symbols = self.symbols_of(value) if _is_small(value) else None
        if symbols is None or not all(s.is_const for s in symbols.reshape(-1)):
            return None
        assert isinstance(value.type, TensorType)
        flat = [s.value for s in symbols.reshape(-1)]
        return np.array(flat, value.type.dtype.storage).reshape(symbols.shape)


def _is_small(value: Value) -> bool:
    assert isinstance(value.type, TensorType)
    return value.type.is_static and math.prod(d.value for d in value.type.shape) <= MAX_ELEMENTS
