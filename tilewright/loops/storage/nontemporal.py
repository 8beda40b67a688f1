"""Stores that go past the caches."""

from __future__ import annotations

from tilewright.ir.core import Func, Op
from tilewright.ir.sym import Sym
from tilewright.ir.symbolic.prove import affine_in
from tilewright.loops.edit import (
    address_of,
    buffer_type,
    describe,
    enclosing_loops,
    extent_of,
    kind_of,
    loop_var,
    refuse,
)
from tilewright.loops.primitive import primitive
from tilewright.target.target import LINE_BYTES

STEP = "nontemporal"


@primitive
def nontemporal(func: Func, store: Op, condition: Sym) -> Op:
    """Where `condition` holds of the dims, let a vector that is stored to an argument go to memory at once.

        for jo { for j in 0..16 vector { y[16*jo + j] = S(jo, j) } }

    becomes

        for jo { for j in 0..16 vector { y[16*jo + j] = S(jo, j) with {stream=8388608 <= n} } }

    A cache reads a line from memory before it takes a store to it. A line that is written whole, and read again only
    when the cache would have lost it, is better not brought there. Results stay the same: the attribute is a hint,
    which holds for vectors that begin with a cache line. Lines that were prefetched to be written are no longer.
    ScheduleError where the kernel reads the buffer, or the store is no vector of whole lines.
    """
    buffer = store.operands[-1]
    if buffer not in func.args:
        refuse(STEP, buffer, "it is no argument")
    others = [op for op in func.body.walk() if op.operands and op.operands[-1] is buffer]
    if any(op.name == "load" for op in others):
        refuse(STEP, buffer, "the kernel reads it")
    _check_whole_lines(store)
    for op in others:
        if op.name == "prefetch":
            op.erase()
    store.attrs["nontemporal"] = condition
    return store


def _check_whole_lines(store: Op) -> None:
    buffer = store.operands[-1]
    if store.attrs.get("guard"):
        refuse(STEP, buffer, "the store has a condition")
    vector = next((o for o in enclosing_loops(store) if kind_of(o) == "vector"), None)
    if vector is None:
        refuse(STEP, buffer, "the store is no vector")
    step = affine_in(address_of(store), loop_var(vector))
    if step is None or step[0] != 1:
        refuse(STEP, buffer, f"the lanes of {describe(vector)} are not contiguous")
    if extent_of(vector).value * buffer_type(buffer).dtype.bytes % LINE_BYTES:
        refuse(STEP, buffer, f"{describe(vector)} is not a number of whole cache lines")
