"""The operators of a graph and what flows between them, for what places them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.cost.machine.placement import TRIPS, Moved
from tilewright.cost.typical import TypicalSizes
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.staged import LOOP
from tilewright.program.split import is_free
from tilewright.settings.works import elements_of, size_of


def native_ops(block: Block) -> Iterator[Op]:
    """The operators of a graph that kernels compute, also those of branches and loops."""
    for op in block.ops:
        if op.name in OPERATORS and not is_free(op):
            yield op
        for inner in op.blocks:
            yield from native_ops(inner)


def block_of(op: Op) -> Block:
    """The block that holds an op."""
    assert isinstance(op.parent, Block)
    return op.parent


def times_of_blocks(block: Block, times: int = 1) -> dict[Block, int]:
    """How often a block, and those in it, are expected to run in a call."""
    found = {block: times}
    for op in block.ops:
        for inner in op.blocks:
            found |= times_of_blocks(inner, times * (TRIPS if op.name == LOOP else 1))
    return found


def moved_values(
    block: Block, ops: Sequence[Op], sizes: TypicalSizes, times: Mapping[Block, int]
) -> Iterator[Moved]:
    """What operators of a block, and of those in it, make and read. Blocks hand values on through the CPU, and what is
    none of the `ops` is there."""
    numbers = {op: k for k, op in enumerate(ops)}
    yield from _moved(block, numbers, sizes, times)


def _moved(
    block: Block, numbers: Mapping[Op, int], sizes: TypicalSizes, times: Mapping[Block, int]
) -> Iterator[Moved]:
    made = [value for op in block.ops if op.operands or op.blocks for value in op.results]
    for value in (*block.args, *made):
        maker = -1 if value.op is None else numbers.get(value.op, -1)
        size = float(size_of(elements_of(value), sizes))
        own: list[int] = []
        others: list[int] = []
        for user in value.users:
            number = numbers.get(user, -1)
            (own if user.parent is block else others).append(number)
            if user.parent is not block:
                yield Moved(-1, (number,), size, times[block_of(user)])
        readers = tuple(dict.fromkeys([*own, *([-1] if others else [])]))
        if any(reader != maker for reader in readers):
            yield Moved(maker, readers, size, times[block])
    for op in block.ops:
        for inner in op.blocks:
            yield from _moved(inner, numbers, sizes, times)


def bytes_of_all(values: Sequence[Value]) -> str:
    """Bytes of tensors, as an expression of dims."""
    total: Sym | int = 0
    for value in values:
        if isinstance(value.type, TensorType):
            total = value.type.size * value.type.dtype.storage.itemsize + total
    return str(total)


def time_text(seconds: float) -> str:
    """In words."""
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
