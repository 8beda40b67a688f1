"""The parts of a program that fusion makes kernels of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.graph.fusion.classify import OpClass
from tilewright.ir.core import Op
from tilewright.ir.sym import Sym

if TYPE_CHECKING:
    from tilewright.graph.fusion.strategy import FusionStrategy


@dataclass(eq=False)
class Region:
    """Ops that become one kernel, in program order, as `strategy` makes it. `kind` is the class of the weightiest op,
    `domain` the shape that the kernel's main loops run over."""

    ops: list[Op]
    strategy: FusionStrategy
    kind: OpClass
    domain: tuple[Sym, ...]
    merged_into: Region | None = field(default=None)

    def root(self) -> Region:
        region = self
        while region.merged_into is not None:
            region = region.merged_into
        return region

    def __str__(self) -> str:
        return "+".join(op.name for op in self.ops[:6]) + ("..." if len(self.ops) > 6 else "")
