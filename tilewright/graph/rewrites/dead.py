"""Dead code: ops whose results nobody reads, and constants that no op names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.ir.core import Block, Module, erase_dead
from tilewright.passes import PassContext


@dataclass(frozen=True)
class DropDead:
    """Remove what does not reach a result."""

    name: ClassVar[str] = "dead"

    def run(self, module: Module, ctx: PassContext) -> None:
        drop_dead(module)


def drop_dead(module: Module) -> None:
    """Remove dead ops of the functions of the graph level, then constants without a reader."""
    for func in module.funcs.values():
        if func.level == "graph":
            _drop_in(func.body)
    named = {
        op.attrs["name"] for func in module.funcs.values() for op in func.body.walk() if op.name == "constant"
    }
    named |= {initial for func in module.funcs.values() for _, _, initial in func.attrs.get("states", ())}
    for name in [n for n in module.constants if n not in named]:
        del module.constants[name]


def _drop_in(block: Block) -> None:
    erase_dead(block, lambda op: op.name not in ("return", "yield"))
    for op in block.ops:
        for nested in op.blocks:
            _drop_in(nested)
