"""The parts of a program that fusion makes kernels of."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.graph.fusion.classify import OpClass
from tilewright.ir.core import Op
from tilewright.ir.sym import Sym


@dataclass(eq=False)
class Region:
    """Ops that become one kernel, in program order. `domain` is the shape that its main loops run over."""

    ops: list[Op]
    kind: OpClass
    domain: tuple[Sym, ...]
    number: int
    merged_into: Region | None = field(default=None)

    def root(self) -> Region:
        region = self
        while region.merged_into is not None:
            region = region.merged_into
        return region

    def __str__(self) -> str:
        return "+".join(op.name for op in self.ops[:6]) + ("..." if len(self.ops) > 6 else "")
