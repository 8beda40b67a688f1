"""The memory that a call of a planned program takes, all but weights and code."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.core import Func, Module, Value
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.program.memory.places import arena_of, places_of
from tilewright.program.memory.views import bytes_of

SCRATCH_ALIGNMENT = 64
"""Bytes to a multiple of which memory of one thread is aligned."""


def bytes_of_call(module: Module, threads: int) -> Sym:
    """Bytes of the inputs, the outputs, the arena, the scratch memory of so many threads, and the states (twice, where
    the next one is written beside it)."""
    return given_bytes(module.main) + arena_of(module.main) + _scratch(module) * threads


def most_threads(module: Module, most: int) -> int:
    """How many threads, whose scratch memory counts, a call may have that takes `most` bytes; 0 for any number."""
    scratch = _scratch(module).value
    return (most - bytes_of_call(module, 0).value) // scratch if scratch else 0


def _scratch(module: Module) -> Sym:
    """Bytes of scratch memory of each thread."""
    kernels = (f for f in module.funcs.values() if f.level == "loops")
    return max((scratch_of(kernel) for kernel in kernels), key=_known, default=sym(0))


def given_bytes(main: Func) -> Sym:
    """Bytes of what callers see: the inputs, the outputs and the states of a program."""
    states = [op.result for op in main.body.ops if op.name == "state"]
    beside = {p.index for p in places_of(main).values() if p.base == "next"}
    swapped = [state for k, state in enumerate(states) if k in beside]
    return _total((*main.args, *main.returns, *states, *swapped))


def scratch_of(kernel: Func) -> Sym:
    """Bytes of scratch memory of one thread in a kernel."""
    found = sym(0)
    for op in kernel.body.walk():
        if op.name == "alloc" and op.result.buffer.space != "reg":
            type = op.result.buffer
            size = product(type.shape) * type.dtype.bytes
            found = found + (size + (SCRATCH_ALIGNMENT - 1)) // SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT
    return found


def _known(size: Sym) -> int:
    return size.value if size.is_const else 0


def _total(values: Iterable[Value]) -> Sym:
    return sum(map(bytes_of, values), sym(0))
