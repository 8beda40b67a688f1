"""Ops of new loops, written one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym
from tilewright.ir.types import ScalarType
from tilewright.ir.types import buffer as dense
from tilewright.loops.edit import buffer_type


@dataclass(eq=False)
class Writer:
    """Ops of a body, one after the other."""

    ops: list[Op] = field(default_factory=list)

    def __call__(self, name: str, *operands: Value, type: ScalarType | None = None, **attrs: object) -> Value:
        self.ops.append(Op(name, list(operands), [type or operands[0].scalar], attrs))
        return self.ops[-1].result

    def number(self, value: float, dtype: DType = dt.f32) -> Value:
        return self("const", type=ScalarType(dtype), value=value)

    def load(self, buffer: Value, *idx: Sym) -> Value:
        return self("load", buffer, type=ScalarType(buffer_type(buffer).dtype), idx=idx)

    def store(self, value: Value, buffer: Value, *idx: Sym) -> None:
        self.ops.append(Op("store", [value, buffer], [], {"idx": idx}))

    def cast(self, value: Value, dtype: DType) -> Value:
        return self("cast", value, type=ScalarType(dtype))


def scratch(dtype: DType, shape: Sequence[Sym], name: str) -> Value:
    """A buffer in memory of the kernel's own, whose op is not placed yet."""
    op = Op("alloc", [], [dense(dtype, shape, "scratch")])
    op.result.name = name
    return op.result
