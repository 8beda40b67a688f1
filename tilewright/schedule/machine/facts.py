"""What strategies read from the texts of an accelerator's intrinsics."""

from __future__ import annotations

from functools import lru_cache

from tilewright.cost.machine.ways import MatrixUnit
from tilewright.ir.core import Op
from tilewright.loops.analysis.deps import accumulation_of
from tilewright.loops.edit import buffer_type, is_loop
from tilewright.loops.machine.intrinsics import kernel_of
from tilewright.target.machine import Accelerator, Intrinsic


@lru_cache(maxsize=64)
def matrix_units(machine: Accelerator) -> tuple[MatrixUnit, ...]:
    """The intrinsics of products whose loops are rows, depth and columns, with sizes m, k and n, each with the one
    that sets such sums to zero."""
    made = []
    for intrinsic in machine.intrinsics:
        kernel = kernel_of(intrinsic)
        stores = [op for op in kernel.body.walk() if op.name == "store"]
        loops = [op for op in kernel.body.walk() if is_loop(op)]
        if len(stores) != 1 or len(loops) != 3 or len(kernel.args) != 3 or not set("mnk") <= intrinsic.sizes.keys():
            continue
        found = accumulation_of(stores[0])
        clear = _clear_of(machine, intrinsic, stores[0])
        if found is not None and found.products() and clear is not None:
            types = [buffer_type(a) for a in kernel.args]
            dtypes, memories = (tuple(getattr(t, name) for t in types) for name in ("dtype", "space"))
            made.append(MatrixUnit(intrinsic, clear, dtypes, memories))
    return tuple(made)


def _clear_of(machine: Accelerator, unit: Intrinsic, store: Op) -> Intrinsic | None:
    """The intrinsic that stores a number into sums of the same kind, on the same queue."""
    sums = buffer_type(store.operands[-1])
    for other in machine.intrinsics:
        kernel = kernel_of(other)
        stores = [op for op in kernel.body.walk() if op.name == "store"]
        if other.queue == unit.queue and len(kernel.args) == len(stores) == 1:
            type, source = buffer_type(kernel.args[0]), stores[0].operands[0].op
            if (type.dtype, type.space) == (sums.dtype, sums.space) and source is not None and source.name == "const":
                return other
    return None
