"""Kernels that a plugin brings for whole operators. Docs/external.md has a whole example."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tilewright.codegen.program import KernelText
from tilewright.ir.core import Op
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.external import Attributes
from tilewright.target.machine import Machine


@dataclass(frozen=True)
class WholeOperator:
    """An operator of a model by its name in docs/operators.md, the types of its operands and results, and its
    attributes. `dims` are the variables in the shapes, whose values a kernel is given in this order."""

    name: str
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    attributes: Mapping[str, Any]
    dims: tuple[Sym, ...] = ()

    @classmethod
    def of(cls, op: Op) -> WholeOperator:
        """That of an op of a graph."""
        operands, results = (tuple(v.tensor for v in values) for values in (op.operands, op.results))
        variables = (v for type in (*operands, *results) for d in type.shape for v in sorted(d.vars, key=str))
        return cls(op.name, operands, results, op.attrs, tuple(dict.fromkeys(variables)))

    def shape(self, operand: int) -> tuple[int | Sym, ...]:
        """The shape of an operand: numbers, and expressions of `dims`."""
        return tuple(d.value if d.is_const else d for d in self.operands[operand].shape)

    @cached_property
    def as_attributes(self) -> Attributes:
        """The attributes as one, in the order of their names."""
        return tuple(sorted(self.attributes.items()))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.operands))})"


class ExternalKernel(ABC):
    """Code for whole operators on machines of one kind, from outside of the compiler. It is asked for each operator of
    a model as the front end made it, before any pass; what is fused, moved or rewritten around it stays so."""

    name: str
    """In programs, reports and the key of the cache: letters, digits and underscores."""
    version: str = ""
    kind: str = "cpu"
    """The kind of machine that it is for (`Machine.kind`)."""
    operators: tuple[str, ...]
    """Their names in docs/operators.md."""

    def refuses(self, op: WholeOperator) -> str:
        """Why it has no code for an operator of these types, sizes and attributes; "" where it has."""
        return ""

    def seconds(self, op: WholeOperator) -> float | None:
        """How long it takes. It is used where that is less than what is expected of our own kernel; with None wherever
        it does not refuse."""
        return None

    @abstractmethod
    def code(self, op: WholeOperator, symbol: str, machine: Machine) -> KernelText:
        """The code of a kernel of this name, whose arguments are the operands, and then the results, as they lie in
        memory: dense, in row-major order. For CPUs that is what `c_function` makes."""


@dataclass(frozen=True)
class ExternalText(KernelText):
    """A kernel of LLVM IR that calls a function of a relocatable object, which is linked with it."""

    function: str = ""
    object: bytes = field(default=b"", repr=False)
