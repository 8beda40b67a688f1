"""Kept composites that no kernel claims become the operators that they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.ir.core import Builder, Module, Op
from tilewright.ir.rewrite import Replacement, RewriteContext, Rule, rewrite
from tilewright.ops.define import OPERATORS
from tilewright.passes import PassContext


@dataclass(frozen=True)
class Expand:
    """Write out every composite but those named in `keep`."""

    name: ClassVar[str] = "expand"
    keep: tuple[str, ...] = ()

    def run(self, module: Module, ctx: PassContext) -> None:
        composites = [
            n for n, o in OPERATORS.items() if o.kind == "composite" and o.keep and n not in self.keep
        ]
        if composites:
            rewrite(module.main, [Rule("expand_composite", tuple(composites), expand_composite)], module)

    def run_plainly(self, module: Module, ctx: PassContext) -> None:
        """No kernel can be made of a composite."""
        self.run(module, ctx)


def expand_composite(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """The decomposition of a composite, in its place."""
    return OPERATORS[op.name].expand(op.operands, op.attrs)
