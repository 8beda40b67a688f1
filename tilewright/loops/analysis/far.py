"""Accesses whose address may lie far from their buffer where their guard does not hold."""

from __future__ import annotations

from tilewright.ir.sym import Sym
from tilewright.ir.symbolic.extremes import lower, upper
from tilewright.ir.symbolic.prove import Ranges
from tilewright.ir.types import BufferType

NEAR_BYTES = 4096
"""The size of a page: what is nearer to a buffer is mostly mapped, as the buffer's own page or the next one is."""


def may_be_far(buffer: BufferType, address: Sym, ranges: Ranges) -> bool:
    """Whether an address, in elements, is not known to lie within a page of the buffer for all iterations.

    Memory that is not mapped may be touched under a mask of no lanes, but the processor looks for the page each time:
    a load takes hundreds of cycles there (AMD Zen 5: 300 ns).
    """
    if buffer.space == "reg":
        return False
    near = NEAR_BYTES // buffer.dtype.bytes
    least, most = lower(address, ranges), upper(address, ranges)
    if least is None or most is None:
        return True
    return (least + near).interval[0] < 0 or (buffer.size + near - 1 - most).interval[0] < 0
