"""An op of a program, as adapters see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxlib.mlir import ir

from tilewright.frontends.adapters import AdapterTable
from tilewright.frontends.node import NodeWithOperands
from tilewright.frontends.stablehlo.types import TensorLike, tensor_type, text_of
from tilewright.frontends.stablehlo.values import Held, as_value
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.outside import Definitions
from tilewright.ops import elementwise as ew

if TYPE_CHECKING:
    from tilewright.frontends.stablehlo.importer import Inliner

Adapter = Callable[["ProgramOp"], "Held | Sequence[Held] | None"]
"""Translates an op: gives what its results are, one or several."""

STABLEHLO_DEFINITIONS = Definitions()

ADAPTERS: AdapterTable[str, Adapter] = AdapterTable(STABLEHLO_DEFINITIONS)
"""By the names of ops, with their dialects."""

BY_ELEMENT: set[str] = {"func.call"}
"""Those of them that bodies of scalars may have, which are computed for whole tensors."""

CUSTOM_CALLS: AdapterTable[str, Adapter] = AdapterTable(STABLEHLO_DEFINITIONS)
"""By the targets of `custom_call`, and the names of `composite`."""


def adapter(*names: str, by_element: bool = False) -> Callable[[Adapter], Adapter]:
    """The function translates ops of these names, of StableHLO where they name no dialect."""
    full_names = [name if "." in name else f"stablehlo.{name}" for name in names]
    BY_ELEMENT.update(full_names if by_element else ())
    return ADAPTERS.adds(full_names, by_element)


def custom_call(*targets: str) -> Callable[[Adapter], Adapter]:
    """The function translates calls of what these names stand for."""
    return CUSTOM_CALLS.adds(targets)


class ProgramOp(NodeWithOperands):
    """An op with its operands; `importer` writes its regions and the functions that it calls."""

    def __init__(self, op: ir.Operation, operands: Sequence[Held], importer: Inliner, frame: Any) -> None:
        self.operation, self.op, self.translation = op, op.name, importer.translation
        self.operands, self.importer, self.frame = operands, importer, frame

    # Operands

    def x(self, k: int) -> Value:
        """Operand `k`, a tensor of real numbers."""
        return as_value(self.held(k))

    stored = x

    def held(self, k: int) -> Held:
        if k >= len(self.operands):
            raise ModelError(f"{self.op} has no operand {k}")
        return self.operands[k]

    @property
    def values(self) -> list[Value]:
        return [as_value(o) for o in self.operands]

    def measured_operand(self, k: int) -> np.ndarray:
        """Operand `k`, integers of any type and shape, as Syms."""
        x = self.x(k)
        wide = x if type_of(x).dtype == dt.i64 else ew.cast(x, dtype=dt.i64)
        return self.measured(wide, f"the value of its operand {k}")

    # Attributes

    def has(self, name: str) -> bool:
        return name in self.operation.attributes

    def attribute(self, name: str) -> Any:
        if name not in self.operation.attributes:
            raise ModelError(f"{self.op} has no attribute '{name}'")
        return self.operation.attributes[name]

    def integer(self, name: str, default: int | None = None) -> int:
        if default is not None and not self.has(name):
            return default
        return int(self.attribute(name).value)

    def flag(self, name: str) -> bool:
        return self.has(name) and bool(self.attribute(name).value)

    def integers(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """An array of numbers."""
        if default is not None and not self.has(name):
            return tuple(default)
        found = self.attribute(name)
        if isinstance(found, ir.DenseElementsAttr):
            return tuple(int(n) for n in np.array(found).reshape(-1))
        return tuple(int(n) for n in found)

    def flags(self, name: str, count: int) -> tuple[bool, ...]:
        if not self.has(name):
            return (False,) * count
        found = self.attribute(name)
        if isinstance(found, ir.DenseElementsAttr):
            return tuple(bool(n) for n in np.array(found).reshape(-1))
        return tuple(map(bool, found))

    def pads(self, count: int) -> tuple[tuple[int, int], ...]:
        if not self.has("padding"):
            return ((0, 0),) * count
        return tuple((int(a), int(b)) for a, b in np.array(self.attribute("padding")).reshape(count, 2))

    def text(self, name: str) -> str:
        return text_of(self.attribute(name))

    # Results and regions

    @property
    def types(self) -> list[TensorLike]:
        return [tensor_type(r.type) for r in self.operation.results]

    @property
    def result_type(self) -> TensorLike:
        return self.types[0]

    def region(self, k: int) -> ir.Block:
        """The block of region `k`."""
        if k >= len(self.operation.regions) or len(self.operation.regions[k].blocks) != 1:
            raise ModelError(f"{self.op} has no region {k} of one block")
        return self.operation.regions[k].blocks[0]

    def written(self, block: ir.Block, arguments: Sequence[Held]) -> list[Held]:
        """What a region gives for arguments."""
        return self.importer.block(block, arguments, self.frame)
