"""An operator as its adapter sees it: operands as floats where they are quantised, options, and what is known now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.frontends.adapters import REQUIRED
from tilewright.frontends.node import NodeWithOperands
from tilewright.frontends.problems import shown
from tilewright.frontends.tflite.model import OperatorInfo, TfliteTensor
from tilewright.frontends.tflite.schema import ACTIVATIONS
from tilewright.frontends.tflite.tensors import WIDEST, dequantized, dtype_of_tensor, float_bias
from tilewright.frontends.translation import type_of
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.text import literal
from tilewright.ops.reduce import dtype_of
from tilewright.ops.view import transpose

if TYPE_CHECKING:
    from tilewright.frontends.tflite.importer import TfliteImporter

_LIMITS: Mapping[str, tuple[float | None, float | None]] = {
    "RELU": (0.0, None),
    "RELU_N1_TO_1": (-1.0, 1.0),
    "RELU6": (0.0, 6.0),
}
"""Activations that limit numbers, by the least and the greatest."""


class OperatorNode(NodeWithOperands):
    """One operator during translation. `keeps` says that all its quantised tensors are quantised alike, and that it
    works on their integers."""

    def __init__(
        self,
        info: OperatorInfo,
        values: Sequence[Value | None],
        operands: Sequence[TfliteTensor | None],
        results: Sequence[TfliteTensor],
        importer: TfliteImporter,
        *,
        keeps: bool = False,
    ) -> None:
        self.info, self.op, self.options = info, info.kind, info.options
        self.translation = importer.translation
        self.results = tuple(results)
        self._values, self._operands = tuple(values), tuple(operands)
        self._importer, self._keeps = importer, keeps

    # Operands

    @property
    def count(self) -> int:
        return len(self._values)

    def has(self, k: int) -> bool:
        return k < len(self._values) and self._values[k] is not None

    def raw(self, k: int) -> Value:
        """Operand `k` as it is stored."""
        value = self._values[k] if k < len(self._values) else None
        if value is None:
            raise ModelError(f"{self.op} needs an operand {k}")
        return value

    stored = raw

    def tensor(self, k: int) -> TfliteTensor:
        """What the file says of operand `k`."""
        self.raw(k)
        found = self._operands[k]
        assert found is not None
        return found

    def input(self, k: int) -> Value:
        """Operand `k`: the floats that it stands for where it is quantised."""
        return self.permuted(k, None)

    def optional(self, k: int) -> Value | None:
        return self.input(k) if self.has(k) else None

    def permuted(self, k: int, perm: Sequence[int] | None) -> Value:
        """Operand `k`, with its axes in another order; a constant is stored so."""
        value, tensor = self.raw(k), self.tensor(k)
        array = None if tensor.data is None else self._importer.array(tensor)
        if perm is not None:
            if len(perm) != type_of(value).rank:
                raise ModelError(f"operand {k} of {self.op} must have {len(perm)} axes, it is {value.type}")
            if array is None:
                value = transpose(value, perm=tuple(perm))
            elif tuple(perm) != tuple(range(len(perm))):
                array = np.ascontiguousarray(array.transpose(perm))
                value = literal(array, tensor.name)
        how = tensor.quantization
        if how is None or self._keeps or not dtype_of(value).is_int:
            return value
        if dtype_of(value).bits > WIDEST and array is not None and perm is None:
            return literal(float_bias(array, how), tensor.name)
        axis = how.axis if perm is None or how.axis not in perm else perm.index(how.axis)
        return dequantized(value, how, tensor.name, axis)

    def keep(self, k: int, value: Value) -> None:
        """Let operand `k`, a state, be this in the next call, where the model keeps states."""
        if k < len(self.info.inputs) and self.info.inputs[k] >= 0:
            self._importer.keep(self.info.inputs[k], value)

    @property
    def inputs(self) -> list[Value]:
        """All operands, which must be there."""
        return [self.input(k) for k in range(len(self._values))]

    def require_rank(self, k: int, rank: int) -> None:
        if self.rank(k) != rank:
            raise ModelError(f"operand {k} of {self.op} must have {rank} axes, it is {self.type(k)}")

    def one_symbol(self, k: int) -> Sym:
        found = self.symbols(k)
        if len(found) != 1:
            raise ModelError(f"operand {k} of {self.op} must be one number, it is {self.type(k)}")
        return found[0]

    # Options

    def integer(self, name: str, least: int | None = None) -> int:
        """An option that is a number; ModelError where it is less than `least`."""
        value = int(self.options[name])
        if least is not None and value < least:
            raise ModelError(f"{self.op} has {name} {value}, which is less than {least}")
        return value

    def keyword(self, name: str, kind: str, default: Any) -> Any:
        if name not in self.options and default is not REQUIRED:
            return default
        return {"bool": bool, "int": int, "float": float}[kind](self.options[name])

    def flag(self, name: str) -> bool:
        return bool(self.options[name])

    def named(self, name: str, names: Sequence[str]) -> str:
        """An option that is the number of a name."""
        value = int(self.options[name])
        if not 0 <= value < len(names):
            raise ModelError(f"{self.op} has {name} {value}, which does not exist")
        return names[value]

    # Results

    def result_dtype(self, k: int = 0) -> DType:
        """The element type that the file declares of result `k`."""
        if k >= len(self.results):
            raise ModelError(f"{self.op} needs a result {k}")
        return dtype_of_tensor(self.results[k])

    def activated(self, x: Value, name: str | None = None) -> Value:
        """x after the activation that is fused with the operator. Limits that lie outside of what result 0 can hold
        are those of its integers, and left out."""
        name = self.named("activation", ACTIVATIONS) if name is None else name
        if name == "NONE":
            return x
        if name == "TANH":
            return ew.tanh(x)
        if name not in _LIMITS:
            raise UnsupportedError(f"{self.op} with the activation {name} is not supported")
        low, high = _LIMITS[name]
        if low is not None and not self._holds_only(low, -1):
            x = ew.max_(x, low)
        return x if high is None or self._holds_only(high, 1) else ew.min_(x, high)

    def _holds_only(self, limit: float, side: int) -> bool:
        """Whether result 0 is quantised, and its integers end at the limit, or before it, on that side of 0."""
        how, dtype = self.results[0].quantization if self.results else None, self.result_dtype()
        if how is None or not dtype.is_int or dtype.bits > WIDEST or how.scales.size > 1:
            return False
        limits = np.iinfo(dtype.storage)
        step = round(limit / float(how.scales[0])) + int(how.zeros[0])
        return step >= limits.max if side > 0 else step <= limits.min

    def body(self, number: int) -> Callable[..., tuple[Value, ...]]:
        """A subgraph as a function that translates it in place."""
        return self._importer.body(number)

    def refuse(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.op} with {shown(what)} is not supported")
