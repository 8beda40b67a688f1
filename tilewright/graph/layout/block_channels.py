"""Blocked channels: convolutions and what lies between them compute on [n, c / b, *space, b].

One walk over the program in order: convolutions start blocks, operators that treat channels alike go on in them, and
all others read plain values. A change of layout is made when a reader asks for it. Lanes beyond the last channel hold
finite numbers that no result depends on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.graph.layout.blocked_convs import starts_blocks
from tilewright.graph.layout.blocked_ops import layout_op
from tilewright.graph.layout.conv_window import is_of_unit
from tilewright.graph.layout.layout_map import LayoutMap
from tilewright.ir.core import Module, Op, replace_in_block
from tilewright.ir.dtype import DType
from tilewright.ops.define import OPERATORS
from tilewright.passes import PassContext


@dataclass(frozen=True)
class BlockChannels:
    """Give f32 convolutions, and the operators around them, blocks of `block` channels."""

    name: ClassVar[str] = "block-channels"
    block: int = 16
    units: frozenset[DType] = frozenset()
    """Of 16-bit floats that units of the machine multiply."""

    def run(self, module: Module, ctx: PassContext) -> None:
        body = module.main.body
        if not any(starts_blocks(op, self.block, ctx.target) and not is_of_unit(op, self.units) for op in body.ops):
            return
        layouts = LayoutMap(module, self.block)
        replaced: list[Op] = []
        for op in body.ops:
            with layouts.emitting(op):
                made = op.name in OPERATORS and not is_of_unit(op, self.units) and layout_op(op, layouts, ctx)
            if made:
                replaced.append(op)
            else:
                layouts.keep(op)
        replace_in_block(body, layouts.ops)
        for op in reversed(replaced):
            op.drop()
