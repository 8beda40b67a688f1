"""Views of the bits of tensors as elements of another type, in the order of bytes that x86-64 and AArch64 have."""

from __future__ import annotations

from tilewright.frontends.torch.node import AtenNode
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ops import elementwise as ew
from tilewright.ops.source import full
from tilewright.ops.view import concat, reshape, section, shape_of

_UNSIGNED = {1: dt.u8, 2: dt.u16, 4: dt.u32, 8: dt.u64}
"""By the number of bytes."""


@aten("view.dtype", "view_copy.dtype")
def bits_as(node: AtenNode, self: Value, dtype: DType) -> Value:
    """The last axis has as many bytes as before. Bools are bytes."""
    given, wanted = type_of(self).dtype, node.dtype
    if dt.bool_ in (given, wanted):
        if given.bytes != wanted.bytes:
            raise node.refuse(f"{wanted} of the bits of {given}")
        as_bytes = ew.cast(self, dtype=dt.u8) if given is dt.bool_ else self
        return ew.cast(as_bytes, dtype=wanted) if dt.bool_ is wanted else ew.bitcast(as_bytes, dtype=wanted)
    if given.bytes == wanted.bytes:
        return self if given is wanted else ew.bitcast(self, dtype=wanted)
    plain = ew.bitcast(self, dtype=_UNSIGNED[given.bytes])
    parts = _narrow(plain, wanted.bytes) if given.bytes > wanted.bytes else _wide(plain, wanted.bytes)
    return ew.bitcast(parts, dtype=wanted)


def _narrow(x: Value, width: int) -> Value:
    """Each element as several of `width` bytes, the lowest first."""
    dtype = type_of(x).dtype
    *outer, last = shape_of(x)
    count = dtype.bytes // width
    parts = [ew.cast(ew.shr(x, _number(8 * width * k, dtype)), dtype=_UNSIGNED[width]) for k in range(count)]
    rows = [reshape(part, shape=(*outer, last, 1)) for part in parts]
    return reshape(concat(*rows, axis=len(outer) + 1), shape=(*outer, last * count))


def _wide(x: Value, width: int) -> Value:
    """Several elements as one of `width` bytes."""
    narrow, dtype = type_of(x).dtype, _UNSIGNED[width]
    *outer, last = shape_of(x)
    count = width // narrow.bytes
    rows = reshape(x, shape=(*outer, last // count, count))
    found = None
    for k in range(count):
        part = ew.cast(reshape(section(rows, -1, k, 1), shape=(*outer, last // count)), dtype=dtype)
        part = ew.shl(part, _number(8 * narrow.bytes * k, dtype))
        found = part if found is None else ew.or_(found, part)
    assert found is not None
    return found


def _number(n: int, dtype: DType) -> Value:
    return full(value=n, dtype=dtype, shape=())
