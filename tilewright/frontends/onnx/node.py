"""A node as its adapter sees it: operands, attributes, and what is known about operands at compile time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import AttributeProto

from tilewright.frontends.adapters import REQUIRED
from tilewright.frontends.axes import as_scalar, from_front
from tilewright.frontends.node import NodeWithOperands
from tilewright.frontends.onnx.attributes import checked_flag, value_of
from tilewright.frontends.onnx.schema import attributes_of
from tilewright.frontends.onnx.tensors import dtype_of
from tilewright.frontends.problems import shown
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, eq, logical_and, logical_or, sym
from tilewright.ops.define.demands import require
from tilewright.ops.define.exact import Arithmetic
from tilewright.ops.define.floats import Element
from tilewright.ops.elementwise import cast

if TYPE_CHECKING:
    from tilewright.frontends.onnx.importer import Importer

_MISSING = object()


class Node(NodeWithOperands):
    """One node during translation. `version` is the opset version of its domain, `schema` what the specification says
    of its operator, if anything."""

    called = "input"

    def __init__(
        self,
        op: str,
        version: int,
        schema: Any,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, AttributeProto],
        output_names: Sequence[str],
        importer: Importer,
    ) -> None:
        self.op = op
        self.version = version
        self.schema = schema
        self._inputs = tuple(inputs)
        self.output_names = tuple(output_names)
        self.translation = importer.translation
        self._importer = importer
        self._attributes = attributes
        self._seen: set[str | int] = set()

    def with_inputs(self, inputs: Sequence[Value | None]) -> Node:
        """The same node with other operands."""
        names = self.output_names
        return Node(self.op, self.version, self.schema, inputs, self._attributes, names, self._importer)

    @property
    def producer(self) -> str:
        """What the file says it was written by."""
        return self._importer.producer

    # Operands

    def input(self, k: int) -> Value:
        """Operand `k`; ModelError where it is left out."""
        value = self.optional(k)
        if value is None:
            raise ModelError(f"{self.op} needs an input {k}")
        return value

    stored = input

    @property
    def count(self) -> int:
        return len(self._inputs)

    def optional(self, k: int) -> Value | None:
        self._seen.add(k)
        return self._inputs[k] if k < len(self._inputs) else None

    @property
    def inputs(self) -> tuple[Value | None, ...]:
        """All operands, None for one that is left out."""
        self._seen.update(range(len(self._inputs)))
        return self._inputs

    @inputs.setter
    def inputs(self, values: Sequence[Value | None]) -> None:
        self._inputs = tuple(values)

    def scalar(self, k: int) -> Value:
        """Operand `k`, which must have one element, as a scalar; from here on it is one."""
        value = as_scalar(self.translation, self.input(k), f"input {k} of {self.op}")
        self._inputs = (*self._inputs[:k], value, *self._inputs[k + 1 :])
        return value

    @property
    def operands(self) -> list[Value]:
        """All operands, which must be there."""
        return [self.input(k) for k in range(len(self._inputs))]

    @property
    def given(self) -> list[Value]:
        """The operands that are there."""
        return [v for k in range(len(self._inputs)) if (v := self.optional(k)) is not None]

    def wants(self, k: int) -> bool:
        """Is output `k` used?"""
        return k < len(self.output_names) and bool(self.output_names[k])

    @property
    def declared_rank(self) -> int | None:
        """The rank that the file declares for output 0, if it does."""
        return self._importer.declared_rank(self.output_names[0]) if self.output_names else None

    # Attributes

    def has(self, name: str) -> bool:
        self._seen.add(name)
        return name in self._attributes

    def attr(self, name: str, default: Any = _MISSING) -> Any:
        """Attribute `name` as int, float, str or tuple: as given, or as the specification has it by default, or
        `default`. ModelError where there is none of these."""
        if self.has(name):
            return value_of(self._attributes[name])
        known = attributes_of(self.schema).get(name) if self.schema is not None else None
        if known is not None and known.default_value.type:
            return value_of(known.default_value)
        if default is _MISSING:
            raise ModelError(f"{self.op} needs the attribute '{name}'")
        return default

    def keyword(self, name: str, kind: str, default: Any) -> Any:
        read: Callable[..., Any] = {"bool": self.flag, "DType": self.dtype_attr}.get(kind, self.attr)
        value = read(name, *(() if default is REQUIRED else (default,)))
        if name != "axis" or not isinstance(value, int) or value >= 0:
            return value
        if value < -self.rank(0):
            raise ValueError(f"axis {value} does not exist: the tensor has {self.rank(0)} axes")
        return value + self.rank(0)

    def flag(self, name: str, default: Any = _MISSING) -> bool:
        """An attribute that is 0 or 1; ModelError for others."""
        return checked_flag(self.op, name, self.attr(name, default))

    def one_of(self, name: str, *allowed: str, default: Any = _MISSING) -> str:
        """A text attribute; ModelError for one that is not allowed."""
        value: str = self.attr(name, default)
        if value not in allowed:
            raise ModelError(f"{self.op} has no {name} '{value}'", hint=f"it is one of {', '.join(allowed)}")
        return value

    def dtype_attr(self, name: str, default: DType | None = None) -> DType:
        """The element type that an attribute names; `default` where it is not given, or 0."""
        code = self.attr(name, *(() if default is None else (0,)))
        return (
            default
            if default is not None and not code
            else dtype_of(code, f"attribute '{name}' of {self.op}")
        )

    def array(self, name: str) -> np.ndarray:
        """The elements of an attribute that is a tensor; an array of objects for strings."""
        return self._importer.array_of(self.attr(name))

    def body(self, name: str, *, forks: bool = False) -> Callable[..., tuple[Value, ...]]:
        """A subgraph as a function that translates it in place, and, where it `forks`, may raise a
        DifferentRanksError."""
        return self._importer.body(self.attr(name), forks=forks)

    def standard(
        self, op: str, *inputs: Value | None, outputs: int = 1, **attributes: Any
    ) -> tuple[Value | None, ...]:
        """The first outputs of an operator of the standard, in its newest form."""
        return self._importer.standard(op, inputs, attributes, outputs)

    def axis_attr(self, name: str = "axis", rank: int | None = None) -> int:
        """An axis attribute, counted from 0 for `rank` (that of operand 0)."""
        return self.axis(self.attr(name), rank)

    def checked_axes(self, axes: Sequence[int], rank: int | None = None) -> tuple[int, ...]:
        found = tuple(self.axis(a, rank) for a in axes)
        if len(set(found)) != len(found):
            raise ModelError(f"axes {list(axes)} name an axis twice")
        return found

    def require_nothing_else(self) -> None:
        """UnsupportedError for attributes and operands that were not asked for, which would be ignored otherwise."""
        extra = [f"the attribute '{shown(name)}'" for name in self._attributes if name not in self._seen]
        extra += [f"input {k}" for k, v in enumerate(self._inputs) if v is not None and k not in self._seen]
        if extra:
            raise UnsupportedError(f"{extra[0]} of {self.op} is not supported")

    # What is known now

    def constant_or_none(self, k: int) -> np.ndarray | None:
        """The same as of all nodes; None where the operand is left out, too."""
        return None if self.optional(k) is None else super().constant_or_none(k)

    def one_symbol(self, k: int) -> Sym:
        """Operand `k`, one integer."""
        self.scalar(k)
        return self.symbols(k)[0]

    def whole_number(self, k: int) -> Sym:
        """Operand `k`, one number of any type without its fraction."""
        self.scalar(k)
        if self.dtype(k).is_int:
            return self.one_symbol(k)
        if (known := self.constant_or_none(k)) is not None:
            return sym(int(known.reshape(())))
        found = self.translation.measure(cast(self.input(k), dtype=dt.i64))
        assert found is not None
        symbol: Sym = found.reshape(-1)[0]
        return symbol

    def listed(self, name: str, k: int) -> tuple[int, ...] | None:
        """Integers that are an attribute in early versions and operand `k` in later ones; None where neither is
        given."""
        if self.has(name):
            return tuple(self.attr(name))
        return None if self.optional(k) is None else self.ints(k)

    def axes(self, name: str, k: int, rank: int | None = None) -> tuple[Sym, ...] | None:
        """Axes that are an attribute in early versions and operand `k` in later ones, counted from 0 for `rank` (that
        of operand 0); None where neither is given."""
        rank = self.rank(0) if rank is None else rank
        found = self.listed_symbols(name, k)
        if found is None or not all(a.is_const for a in found):
            return None if found is None else from_front(self.translation, found, rank)
        return tuple(map(sym, self.checked_axes([a.value for a in found], rank)))

    def listed_symbols(self, name: str, k: int) -> tuple[Sym, ...] | None:
        """The same, of operands that may be computed from dims."""
        if self.has(name):
            return tuple(map(sym, self.attr(name)))
        return None if self.optional(k) is None else self.symbols(k)

    def elements(self, k: int) -> tuple[Element, ...]:
        """Operand `k`, a float scalar or vector, as numbers and floats of dims, which are finite."""
        found = self.translation.symbols_of(self.input(k))
        if found is not None:
            return tuple(found.reshape(-1))
        if (known := self.translation.constant_of(self.input(k))) is not None:
            raise ModelError(
                f"input {k} of {self.op} holds {known.size} numbers, or some that are not finite"
            )
        raise self.needs_constant(k)

    def elements_or_none(self, k: int) -> tuple[Element, ...] | None:
        """The same; None where they depend on data."""
        value = self.input(k)
        unknown = self.translation.symbols_of(value) is None and self.translation.constant_of(value) is None
        return None if unknown else self.elements(k)

    def rely_on(self, arithmetic: Arithmetic) -> None:
        """Take what the arithmetic found for granted, where its conditions hold."""
        for condition in arithmetic.conditions:
            self.translation.assume_exact(condition)

    def demand(self, condition: Sym | int, wrong: str) -> None:
        """ModelError, which says what is wrong, unless a condition on dims may hold; it is checked in calls then."""
        if sym(condition) == 0:
            raise ModelError(f"{self.op}: {wrong}")
        require(sym(condition), wrong)

    def demand_shape(self, k: int, shape: Sequence[Sym | int], wrong: str) -> None:
        """The same unless operand `k` may have this shape."""
        own = self.shape(k)
        self.demand(logical_and(len(own) == len(shape), *map(eq, own, shape)), wrong)

    def require_to_fit(self, k: int, shape: Sequence[Sym], wrong: str) -> None:
        """ModelError, or an error of the call, unless operand `k` can be broadcast to a shape, which is not broadcast
        to it."""
        own = self.shape(k)
        holds = [logical_or(eq(d, 1), eq(d, wanted)) for d, wanted in zip(own[::-1], shape[::-1], strict=False)]
        for condition in (sym(len(own) <= len(shape)), *holds):
            if not condition.is_const:
                self.translation.require(condition, f"{wrong}: it must be that {condition}")
            elif not condition.value:
                raise ModelError(wrong)
