"""When values of a program that calls parts can be let go of, so that their memory serves later ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.ir.core import Block, Op, Value
from tilewright.ops.define.staged import LOOP, MEASURE
from tilewright.program.sizes import SizeOf, Sizes
from tilewright.program.spec import NATIVE, READ, STATE, UPDATE

Frees = dict[Op, tuple[Value, ...]]
"""By op the values that nobody needs after it."""

_NO_STEP = (MEASURE, STATE, READ, UPDATE)


def frees_in(block: Block, sizes: Sizes, given: Iterable[Value] = (), kept: Iterable[Value] = ()) -> Frees:
    """What the ops of a block let go of: values that are made in it, or `given`, and not read afterwards, nor by its
    terminator, nor `kept`. Blocks of branches and loops let go of what is made there; natively run blocks stand for
    themselves."""
    frees: Frees = {}
    *ops, final = (op for op in block.ops if op.name not in _NO_STEP)
    live = {*kept, *final.operands}
    made = {*given, *(value for op in ops for value in op.results)}
    for op in reversed(ops):
        touched = dict.fromkeys((*reads(op, sizes), *op.results))
        freed = [value for value in touched if value in made and value not in live]
        for inner in op.blocks if op.name != NATIVE else ():
            own = inner.args if op.name == LOOP else [value for value in freed if value not in op.results]
            frees |= frees_in(inner, sizes, own)
        frees[op] = tuple(freed)
        live.update(touched)
    return frees


def reads(op: Op, sizes: Sizes) -> Iterator[Value]:
    """Values that must be there before an op, and some that it makes for itself."""
    for inner in op.walk():
        if inner.name not in _NO_STEP:
            yield from inner.operands
        yield from (size.value for size in sizes.get(inner, ()) if isinstance(size, SizeOf))


def makes(op: Op) -> Iterator[Value]:
    """Values that an op makes, also for itself."""
    for inner in op.walk():
        yield from inner.results
        for block in inner.blocks:
            yield from block.args
