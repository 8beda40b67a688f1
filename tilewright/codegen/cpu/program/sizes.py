"""Sizes that nobody has checked yet as 64-bit LLVM arithmetic."""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.functions import intrinsic
from tilewright.codegen.cpu.kernel.indices import Indices, Number
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.ir.symbolic.reach import LARGEST_INTEGER


class SaturatingIndices(Indices):
    """Sums that are no i64 become the nearest that is, and products one that is as near as a factor allows: memory of
    so many bytes is refused, where a number modulo 2**64 might be had."""

    def in_lanes(self, x: Number, lanes: int) -> Reg:
        if isinstance(x, int):
            x = max(-LARGEST_INTEGER, min(x, LARGEST_INTEGER))
        return super().in_lanes(x, lanes)

    def add(self, a: Number, b: Number) -> Number:
        if (isinstance(a, int) and isinstance(b, int)) or 0 in (a, b):
            return super().add(a, b)
        return intrinsic("sadd.sat", *self._alike(a, b))

    def multiply(self, a: Number, b: Number) -> Number:
        if (isinstance(a, int) and isinstance(b, int)) or any(x in (0, 1) for x in (a, b)):
            return super().multiply(a, b)
        if isinstance(a, int):
            a, b = b, a
        return super().multiply(self._limited(a, b), b)

    def _limited(self, x: Number, factor: Number) -> Number:
        """`x`, or the nearest number whose product with `factor` is an i64. Without products of 128 bits, which some
        machines have no instruction for."""
        if isinstance(factor, int):
            most = self.in_lanes(LARGEST_INTEGER // abs(factor), 1)
        else:
            magnitude = intrinsic("smax", factor, intrinsic("ssub.sat", self.in_lanes(0, 1), factor))
            most = self.binary("udiv", LARGEST_INTEGER, intrinsic("smax", magnitude, 1))
        return intrinsic("smin", intrinsic("smax", self.in_lanes(x, 1), self.binary("sub", 0, most)), most)
