"""Compile kernels for this machine and run them on NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.zones.turned_on import arrays_between_zones
from tilewright.codegen.cpu.assemble import Effort, Unit, compile_all
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.codegen.cpu.linking.link import link
from tilewright.codegen.cpu.program.pool import pool_ir
from tilewright.codegen.program import KernelText
from tilewright.ir.core import Block, Builder, Func
from tilewright.ir.sym import Sym
from tilewright.ir.types import BufferType
from tilewright.loops.kernel_info import KernelInfo, new_kernel
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.runtime.storage.loader import LoadedImage
from tilewright.target.host import host_target
from tilewright.target.target import Target

Body = Callable[[ScalarBuilder, list[Array]], None]


def kernel(types: Sequence[BufferType], body: Body, *, dims: Sequence[Sym] = (), outputs: int = 1) -> Func:
    """A loop kernel whose statements `body(trace, arrays)` writes."""
    block = Block(list(types))
    func = new_kernel("k", block, dims, KernelInfo(outputs=outputs))
    builder = Builder(block)
    trace = ScalarBuilder(builder)
    body(trace, [trace.array(a) for a in block.args])
    builder.emit("return")
    return func


class Native:
    """Machine code in this process; `address` gives the address of a symbol."""

    def __init__(self, *objects: bytes) -> None:
        self.loaded = LoadedImage(link(objects))

    def address(self, symbol: str) -> int:
        found = self.loaded.address(symbol)
        assert found, symbol
        return found


@contextmanager
def pool(native: Native, threads: int) -> Iterator[int]:
    """The address of a thread pool whose workers poll for a second before they sleep."""
    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
    address = create(native.address("tw_pool_create"))(threads, None, 10**9)
    try:
        yield address
    finally:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(native.address("tw_pool_destroy"))(address)


def run_kernel(
    func: Func,
    arrays: Sequence[np.ndarray],
    dims: Sequence[int] = (),
    *,
    target: Target | None = None,
    slices: Sequence[tuple[int, int]] = ((0, 1 << 40),),
    threads: int = 1,
    effort: Effort = Effort.KERNEL,
) -> tuple[KernelText, int]:
    """Run on `arrays` in place, for each slice of the parallel loop, or on a pool of `threads` for a kernel that forks;
    gives the kernel and its error code. The kernel runs on copies between guard zones."""
    target = target or host_target()
    compiled = kernel_ir(func, target)
    units = [Unit(compiled.text, effort)] + [Unit(pool_ir(target.triple), Effort.SUPPORT)] * compiled.forks
    native = Native(*compile_all(units, target, 1))
    state = np.zeros(2, np.int32)
    env = dict(zip((d.name for d in func.dims), dims, strict=True))
    stride = (compiled.scratch.evaluate(env) + 63) // 64 * 64
    kinds: list[Any] = [ctypes.c_void_p] * (len(arrays) + 1) + [ctypes.c_int64] * len(dims)
    prototype = ctypes.CFUNCTYPE(None, *kinds, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    function = prototype(native.address(compiled.symbol))
    if compiled.parallel is not None:
        extent = compiled.parallel.evaluate(env)
        slices = [(begin, min(end, extent)) for begin, end in slices]
    names = [a.name or f"argument {k}" for k, a in enumerate(func.args)]
    with arrays_between_zones(f"kernel {func.name}", arrays, names, stride * threads) as (pointers, scratch):
        first = (state.ctypes.data, *pointers, *dims, scratch)
        if compiled.forks:
            with pool(native, threads) as address:
                prototype = ctypes.CFUNCTYPE(None, *kinds, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
                prototype(native.address(compiled.symbol))(*first, stride, address)
        else:
            for begin, end in slices:
                function(*first, begin, end)
    return compiled, int(state[0])
