"""Accesses whose address may lie far from their buffer where their guard does not hold."""

from __future__ import annotations

from tilewright.ir.sym import Sym
from tilewright.ir.symbolic.prove import Ranges, prove_ge0
from tilewright.ir.types import BufferType

NEAR_BYTES = 4096
"""The size of a page: what is nearer to a buffer is mostly mapped, as the buffer's own page or the next one is."""


def is_far(buffer: BufferType, address: Sym, ranges: Ranges) -> bool:
    """Whether an address, in elements, is not known to lie within a page of the buffer for all iterations.

    Memory that is not mapped may be touched under a mask of no lanes, but the processor looks for the page each time:
    a load takes hundreds of cycles there (AMD Zen 5: 300 ns).
    """
    if buffer.space == "reg":
        return False
    near = NEAR_BYTES // buffer.dtype.bytes
    return not (prove_ge0(address + near, ranges) and prove_ge0(buffer.size + near - 1 - address, ranges))
