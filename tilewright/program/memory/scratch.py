"""Scratch memory: what a kernel needs for its own work, each thread for itself."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.core import Func, Module, Op, substitute
from tilewright.ir.sym import Sym, maximum, sym
from tilewright.ir.types import BufferType, product
from tilewright.loops.kernel_info import kernel_info

SCRATCH_ALIGNMENT = 64
"""Bytes to a multiple of which each buffer in it is aligned."""


def scratch_of(kernel: Func) -> Sym:
    """Bytes of scratch memory of one thread in a kernel, for its dims."""
    found = sym(0)
    if kernel_info(kernel).external:
        return found
    for op in kernel.body.walk():
        if op.name == "alloc" and op.result.buffer.space != "reg":
            found = found + bytes_in_scratch(op.result.buffer)
    return found


def bytes_in_scratch(type: BufferType) -> Sym:
    """Bytes that a buffer takes there. A region that a loop reads in steps has a size below 0 where the loop runs no
    time at all."""
    size = product(maximum(0, n) for n in type.shape) * type.dtype.bytes
    return (size + (SCRATCH_ALIGNMENT - 1)) // SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT


def scratch_of_calls(module: Module) -> Mapping[Op, Sym]:
    """Bytes of scratch memory of one thread in each call of a kernel that needs some."""
    of_kernels = {name: scratch_of(f) for name, f in module.funcs.items() if f.level == "loops"}
    found: dict[Op, Sym] = {}
    for op in module.main.body.ops:
        if op.name == "call" and op.attrs.get("kernel") in of_kernels:
            kernel = module.funcs[op.attrs["kernel"]]
            actual = dict(zip(kernel.dims, op.attrs["dims"], strict=True))
            found[op] = substitute(of_kernels[kernel.name], actual)
    return {op: size for op, size in found.items() if size != 0}
