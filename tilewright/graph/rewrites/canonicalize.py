"""Canonicalisation: each way to write a program becomes one, so that later passes need to know one only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.graph.algorithms.gathers import GATHER_RULES
from tilewright.graph.algorithms.large_windows import LARGE_WINDOW_RULES
from tilewright.graph.rewrites.arithmetic import ARITHMETIC_RULES, ROUNDING_RULES
from tilewright.graph.rewrites.convolutions import CONVOLUTION_RULES
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.graph.rewrites.duplicates import merge_duplicates
from tilewright.graph.rewrites.joined_parts import groups_of_one_convolution
from tilewright.graph.rewrites.sink import SINK_RULES
from tilewright.graph.rewrites.views import VIEW_RULES, repeated_heads, repeated_heads_of_one_query
from tilewright.ir.core import Module
from tilewright.ir.rewrite import rewrite
from tilewright.passes import PassContext


@dataclass(frozen=True)
class Canonicalize:
    """Apply identities until none is left, merge equal ops, and drop dead ones. With `heads_apart` heads that share
    their keys are rows of one product only where each has one query."""

    name: ClassVar[str] = "canonicalize"

    heads_apart: bool = False

    def run(self, module: Module, ctx: PassContext) -> None:
        apart = {repeated_heads: repeated_heads_of_one_query} if self.heads_apart else {}
        views = (apart.get(r, r) for r in VIEW_RULES)
        rules = (
            *ARITHMETIC_RULES, *views, *SINK_RULES, *CONVOLUTION_RULES, *LARGE_WINDOW_RULES,
            *GATHER_RULES, groups_of_one_convolution, *(() if ctx.strict else ROUNDING_RULES),
        )  # fmt: skip
        changed = True
        while changed:
            rewrite(module.main, rules, module, stage=self.name, within=ctx)
            changed = merge_duplicates(module.main, module) > 0
        drop_dead(module)
