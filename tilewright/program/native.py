"""Which ops of a program native code runs one after the other, without the host.

Calls of parts, branches and loops of tensors need nothing of the host. Where several of them stand together, they go
into the block of one op, `native`, which a function of native code runs. So is a call alone whose sizes are read from
data: planning it costs the host more than handing over the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from tilewright.ir.core import Block, Module, Op, Value
from tilewright.ir.types import is_native
from tilewright.ops.define.staged import BRANCH, LOOP, MEASURE
from tilewright.passes import PassContext
from tilewright.program.lifetimes import makes, reads
from tilewright.program.sizes import Sizes, sizes_of
from tilewright.program.spec import NATIVE


@dataclass(frozen=True)
class GroupNative:
    """Put what needs no host into `native` ops, in the main function of a program and in what the host runs of it."""

    name: ClassVar[str] = "group-native"

    def run(self, module: Module, ctx: PassContext | None = None) -> None:
        _group(module.main.body, sizes_of(module.main))


def native_ops(module: Module) -> list[Op]:
    """The ops whose blocks native code runs, in the order of their numbers."""
    return [op for op in module.main.body.walk() if op.name == NATIVE]


def _group(block: Block, sizes: Sizes) -> None:
    ops: list[Op] = []
    for native, run in groupby(block.ops, lambda op: _is_native(op, sizes)):
        together = list(run)
        steps = [op for op in together if op.name != MEASURE]
        if native and steps and (len(steps) > 1 or steps[0].name != "call" or steps[0].attrs["sizes"]):
            ops += _joined(together, sizes)
        else:
            ops += together
            for inner in (b for op in together if op.name != NATIVE for b in op.blocks):
                _group(inner, sizes)
    block.ops = ops
    for op in ops:
        op.parent = block


def _is_native(op: Op, sizes: Sizes) -> bool:
    inner = [*op.walk()]
    if not all(o.name in ("call", BRANCH, LOOP, MEASURE, "yield") for o in inner) or op.name == "yield":
        return False
    return all(is_native(value.type) for value in (*makes(op), *reads(op, sizes)))


def _joined(ops: Sequence[Op], sizes: Sizes) -> list[Op]:
    """One op in place of some. What is measured in it is measured behind it again, of values that it gives."""
    own = {inner for op in ops for inner in op.walk()}
    asked = {v for op, wanted in sizes.items() if op not in own for v in wanted}
    of_sizes = {size.value for size in asked if not isinstance(size, int)}
    given = [
        value for op in ops for value in op.results
        if value in of_sizes or any(user not in own and user.name != MEASURE for user in value.users)
    ]  # fmt: skip
    measured = [op for op in ops if op.name == MEASURE and op.operands[0] in of_sizes]
    block = Block()
    for op in ops:
        block.append(op)
    native = Op(NATIVE, (), [value.type for value in given], blocks=[block])
    block.append(Op("yield", given))
    new = dict(zip(given, native.results, strict=True))
    for value, result in new.items():
        result.name = value.name
        for user in dict.fromkeys(value.users):
            if user not in own and user is not block.ops[-1]:
                user.set_operands([result if v is value else v for v in user.operands])
    again = [Op(MEASURE, [new.get(op.operands[0], op.operands[0])], (), op.attrs) for op in measured]
    return [native, *again]


def slots_of(op: Op, sizes: Sizes) -> list[Value]:
    """The values that the block of a `native` op is about, each once: those that it reads from outside, makes and
    gives."""
    return list(dict.fromkeys((*reads(op, sizes), *makes(op))))
