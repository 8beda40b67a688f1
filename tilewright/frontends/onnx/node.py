"""A node as its adapter sees it: operands, attributes, and what is known about operands at compile time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from onnx import AttributeProto, GraphProto

from tilewright.frontends.errors import ConstantNeededError
from tilewright.frontends.hints import constants_hint, dims_hint
from tilewright.frontends.onnx.attributes import value_of
from tilewright.ir.core import Builder, Module, Value
from tilewright.ir.diag import ModelError, TilewrightError, UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.exact import Arithmetic
from tilewright.ops.floats import Element

_MISSING = object()


class Context(Protocol):
    """What a node may ask of the importer."""

    module: Module
    builder: Builder

    def constant_of(self, value: Value) -> np.ndarray | None:
        """The value of a tensor that is known now, if it is small."""

    def symbols_of(self, value: Value) -> np.ndarray | None:
        """The elements of a small integer tensor as Syms, if they are known in terms of dims and inputs."""

    def origin(self, value: Value) -> tuple[tuple[str, ...], tuple[Sym, ...]]:
        """Names of the graph inputs that a value is computed from, and the dims."""

    def array_of(self, proto: Any) -> np.ndarray:
        """The elements of a TensorProto or SparseTensorProto."""

    def inline(self, graph: GraphProto, arguments: Sequence[Value]) -> tuple[Value, ...]:
        """Translate a subgraph in place, its inputs bound to `arguments`; gives its outputs."""

    def attempt(self, graph: GraphProto) -> tuple[Value, ...] | TilewrightError:
        """`inline` of a graph without inputs that may not be needed: the reason where it cannot be translated."""

    def mark(self) -> Any:
        """The place in the program up to which it is written."""

    def rewind(self, mark: Any) -> None:
        """Take out what was written since, of which nothing is used."""

    def suppose_exact(self, condition: Sym) -> None:
        """Take for granted what floats are exact for; calls with other dims are refused."""

    def choose(self, condition: Sym, what: str) -> bool:
        """Whether `condition`, on which the shape of `what` depends, is taken to hold in all calls."""

    @property
    def graph_inputs(self) -> Sequence[Value]:
        """The inputs of the model that are not bound to constants."""


class Node:
    """One node during translation. `version` is the opset version of its domain."""

    def __init__(
        self,
        op: str,
        domain: str,
        version: int,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, AttributeProto],
        output_names: Sequence[str],
        context: Context,
    ) -> None:
        self.op = op
        self.domain = domain
        self.version = version
        self.inputs = tuple(inputs)
        self.output_names = tuple(output_names)
        self.context = context
        self._attributes = attributes

    # Operands

    def input(self, k: int) -> Value:
        """Operand `k`, which must be there."""
        value = self.optional(k)
        if value is None:
            raise ModelError(f"{self.op} needs an input {k}")
        return value

    def optional(self, k: int) -> Value | None:
        return self.inputs[k] if k < len(self.inputs) else None

    def type(self, k: int) -> TensorType:
        type = self.input(k).type
        assert isinstance(type, TensorType)
        return type

    def shape(self, k: int) -> tuple[Sym, ...]:
        return self.type(k).shape

    def rank(self, k: int) -> int:
        return self.type(k).rank

    def dtype(self, k: int) -> DType:
        return self.type(k).dtype

    def wants(self, k: int) -> bool:
        """Is output `k` used?"""
        return k < len(self.output_names) and bool(self.output_names[k])

    # Attributes

    def has(self, name: str) -> bool:
        return name in self._attributes

    def attr(self, name: str, default: Any = _MISSING) -> Any:
        """Attribute `name` as int, float, str, tuple, TensorProto or GraphProto.

        ModelError when it is missing and has no default.
        """
        if name in self._attributes:
            return value_of(self._attributes[name])
        if default is _MISSING:
            raise ModelError(f"{self.op} needs the attribute '{name}'")
        return default

    def axis(self, name: str = "axis", default: Any = _MISSING, rank: int | None = None) -> int:
        """An axis attribute, made non-negative for `rank` (that of operand 0)."""
        return self.checked_axis(self.attr(name, default), rank)

    def checked_axis(self, axis: int, rank: int | None = None) -> int:
        rank = self.rank(0) if rank is None else rank
        if not -rank <= axis < max(rank, 1):
            raise ModelError(f"axis {axis} is out of range for rank {rank}")
        return axis % rank if rank else 0

    def checked_axes(self, axes: Sequence[int], rank: int | None = None) -> tuple[int, ...]:
        found = tuple(self.checked_axis(a, rank) for a in axes)
        if len(set(found)) != len(found):
            raise ModelError(f"axes {list(axes)} name an axis twice")
        return found

    # What is known now

    def constant_or_none(self, k: int) -> np.ndarray | None:
        value = self.optional(k)
        return None if value is None else self.context.constant_of(value)

    def constant(self, k: int) -> np.ndarray:
        """The value of operand `k`; ConstantNeededError when it is computed from graph inputs."""
        found = self.context.constant_of(self.input(k))
        if found is None:
            raise self.needs_constant(k)
        return found

    def ints(self, k: int) -> tuple[int, ...]:
        """Operand `k`, a known integer scalar or vector."""
        found = self.constant(k)
        if found.ndim > 1:
            raise ModelError(f"input {k} of {self.op} must be a scalar or a vector, it has rank {found.ndim}")
        return tuple(int(i) for i in found.reshape(-1))

    def symbols(self, k: int) -> tuple[Sym, ...]:
        """Operand `k`, an integer scalar or vector, as Syms over dims and values of graph inputs."""
        type = self.type(k)
        if type.rank > 1:
            raise ModelError(f"input {k} of {self.op} must be a scalar or a vector, it has rank {type.rank}")
        found = self.context.symbols_of(self.input(k))
        if found is None:
            raise self.needs_constant(k)
        return tuple(found.reshape(-1))

    def elements(self, k: int) -> tuple[Element, ...]:
        """Operand `k`, a float scalar or vector, as numbers and floats of dims, which are finite."""
        found = self.context.symbols_of(self.input(k))
        if found is not None:
            return tuple(found.reshape(-1))
        if (known := self.context.constant_of(self.input(k))) is not None:
            raise ModelError(
                f"input {k} of {self.op} holds {known.size} numbers, or some that are not finite"
            )
        raise self.needs_constant(k)

    def rely_on(self, arithmetic: Arithmetic) -> None:
        """Take what the arithmetic found for granted, where its conditions hold."""
        for condition in arithmetic.conditions:
            self.context.suppose_exact(condition)

    def fixing(self, *dims: Sym) -> str:
        """A hint: how the dims in these expressions are fixed."""
        return dims_hint(dims, self.context.graph_inputs)

    def needs_constant(self, k: int) -> UnsupportedError:
        """The error that says that the value of operand `k` must be known, and how to make it so."""
        return self.must_be_known(
            self.input(k), f"{self.op} needs the value of its input {k} at compile time"
        )

    def must_be_known(self, value: Value, what: str) -> UnsupportedError:
        """The error that begins with `what`, and says how `value` becomes known."""
        names, dims = self.context.origin(value)
        inputs = [v for v in self.context.graph_inputs if v.name in names]
        if inputs:
            return ConstantNeededError(
                what, hint=f"it depends on graph inputs: {constants_hint(inputs)}", inputs=names
            )
        if dims:
            return UnsupportedError(what, hint=f"it depends on dims: {self.fixing(*dims)}")
        return UnsupportedError(f"{what}, but it has too many elements, or evaluating it fails")
