"""How stored elements are laid out in bytes, as data: sizes, the decoder and the constants of a graph follow from it.

A row of a matrix is stored in blocks, each of some elements. A block has codes of a few bits, and numbers that say what
the codes mean:

    element = scale * (code - zero)             Q4_0, Q8_0: the zero is that of the kind, or a number of the block
    element = scale * code + minimum            Q4_1: the least element of the block
    element = scale * codebook[code]            IQ4_NL, MXFP4

Where a block is divided into groups, each has a small integer `factor` of its own, by which the scale of the block is
multiplied, and another one for the minimum, which is then subtracted (the K-quants).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType


@dataclass(frozen=True)
class Plane:
    """Bits of codes, packed: of each `run` bytes first those from bit `shift` on, one element for each byte, then the
    next `bits` of these bytes, and so on, `fields` times. `at` is the first byte in the block, `bytes` their number."""

    at: int
    bytes: int
    bits: int
    run: int
    shift: int = 0
    fields: int = 0
    """0: as many as a byte has room for."""

    @property
    def count(self) -> int:
        return self.bytes * (self.fields or 8 // self.bits)

    def read(self, blocks: np.ndarray) -> np.ndarray:
        """u8[n, count] of blocks u8[n, bytes of a block]."""
        taken = blocks[:, self.at : self.at + self.bytes]
        if self.bits == 8:
            return taken
        if self.bits == self.run == 1 and not self.fields:
            return np.unpackbits(taken, axis=1, bitorder="little")
        fields, mask = self.fields or 8 // self.bits, np.uint8((1 << self.bits) - 1)
        runs = self.bytes // self.run
        apart = taken.reshape(len(blocks), runs, self.run)
        out = np.empty((len(blocks), runs, fields, self.run), np.uint8)
        for field in range(fields):
            shift = self.shift + field * self.bits
            np.right_shift(apart, np.uint8(shift), out=out[:, :, field])
            if shift + self.bits < 8:
                np.bitwise_and(out[:, :, field], mask, out=out[:, :, field])
        return out.reshape(len(blocks), self.count)

    def write(self, codes: np.ndarray, blocks: np.ndarray) -> None:
        """The reverse: codes u8[n, count] into blocks whose bits here are 0."""
        fields = self.fields or 8 // self.bits
        apart = codes.reshape(len(blocks), self.bytes // self.run, fields, self.run)
        mask = np.uint8((1 << self.bits) - 1)
        packed = np.zeros((len(blocks), self.bytes // self.run, self.run), np.uint8)
        for field in range(fields):
            packed |= (apart[:, :, field] & mask) << np.uint8(self.shift + field * self.bits)
        blocks[:, self.at : self.at + self.bytes] |= packed.reshape(len(blocks), self.bytes)


@dataclass(frozen=True)
class Codes:
    """Unsigned numbers of a block: pieces that follow one another, each made of planes, that with the lowest bits
    first. `zero` is what the code of zero is; signed ones are in two's complement, and their zero is 0."""

    pieces: tuple[tuple[Plane, ...], ...]
    zero: int = 0
    signed: bool = False

    @property
    def bits(self) -> int:
        return max(sum(plane.bits for plane in planes) for planes in self.pieces)

    @property
    def count(self) -> int:
        return sum(planes[0].count for planes in self.pieces)

    @property
    def dtype(self) -> DType:
        """The narrowest one of 4 or 8 bits that holds all codes less their zero: kernels read no others."""
        width = 4 if self.bits <= 4 else 8
        return dt.BY_NAME[f"{'i' if self.zero or self.signed else 'u'}{width}"]

    def read(self, blocks: np.ndarray) -> np.ndarray:
        """u8[n, count]; i8 where they are signed."""
        found = [_joined(planes, blocks) for planes in self.pieces]
        codes = found[0] if len(found) == 1 else np.concatenate(found, axis=1)
        return np.ascontiguousarray(codes).view(np.int8) if self.signed else codes

    def centred(self, blocks: np.ndarray) -> np.ndarray:
        """Codes less their zero: i8[n, count], or u8 where zero is 0 and they have no sign."""
        codes = self.read(blocks)
        if self.zero:
            codes = (codes - np.uint8(self.zero)).view(np.int8)
        return codes

    def read_centred(self, blocks: np.ndarray, out: np.ndarray) -> None:
        """What `centred` gives, in the dtype [n, count] of `out`, which has a byte for each."""
        out.view(np.uint8)[:] = self.centred(blocks).view(np.uint8)

    def write(self, codes: np.ndarray, blocks: np.ndarray) -> None:
        """What `centred` gives, into blocks whose bits here are 0."""
        plain = (codes.astype(np.int16) + self.zero).astype(np.uint8)
        start = 0
        for planes in self.pieces:
            part, shift = plain[:, start : start + planes[0].count], 0
            for plane in planes:
                plane.write(part >> np.uint8(shift), blocks)
                shift += plane.bits
            start += planes[0].count


def _joined(planes: tuple[Plane, ...], blocks: np.ndarray) -> np.ndarray:
    codes, shift = planes[0].read(blocks), planes[0].bits
    for plane in planes[1:]:
        more = plane.read(blocks)
        np.left_shift(more, np.uint8(shift), out=more)
        codes |= more
        shift += plane.bits
    return codes


def codes(*planes: Plane, zero: int = 0, signed: bool = False) -> Codes:
    """One piece of planes, that with the lowest bits first."""
    return Codes((planes,), zero, signed)


@dataclass(frozen=True)
class Number:
    """A float at a byte of a block; of a power of two (f8e8m0) half."""

    at: int
    dtype: DType = dt.f16

    @property
    def stored(self) -> DType:
        """What holds all its values in a graph: the half powers of two are no f8e8m0, which has a NaN, but bf16."""
        return dt.bf16 if self.dtype is dt.f8e8m0 else self.dtype

    def read_stored(self, blocks: np.ndarray, out: np.ndarray) -> None:
        """Values in the dtype [n, 1] of `out`, which is `stored`."""
        taken = np.ascontiguousarray(blocks[:, self.at : self.at + self.dtype.bytes])
        if self.dtype is dt.f8e8m0:
            out[:] = np.ldexp(np.float32(1), taken.astype(np.int32) - 128)
        else:
            out[:] = taken.view(self.dtype.storage)

    def read(self, blocks: np.ndarray) -> np.ndarray:
        """f32[n, 1]."""
        out = np.empty((len(blocks), 1), self.stored.storage)
        self.read_stored(blocks, out)
        return out.astype(np.float32)

    def write(self, values: np.ndarray, blocks: np.ndarray) -> None:
        """Values f32[n, 1], rounded to the dtype."""
        stored = np.ascontiguousarray(values.astype(self.dtype.storage))
        blocks[:, self.at : self.at + self.dtype.bytes] = stored.view(np.uint8)


@dataclass(frozen=True)
class BlockLayout:
    """The layout of a block; see the module for what the fields mean. `group` is the number of elements that share a
    factor (0: no factors)."""

    codes: Codes
    scale: Number
    minimum: Number | None = None
    codebook: tuple[int, ...] = ()
    group: int = 0
    factors: Codes | None = None
    minimum_factors: Codes | None = None
    zeros: Codes | None = None

    @property
    def multiples(self) -> DType:
        """The narrowest dtype of what is multiplied by scales: codes less the zero of the kind, or levels."""
        return dt.i8 if self.codebook else self.codes.dtype

    def read_multiples(self, blocks: np.ndarray, out: np.ndarray) -> None:
        """In the dtype [n, elements] of `out`, which is `multiples`."""
        if self.codebook:
            np.take(np.array(self.codebook, np.int8), self.codes.read(blocks), out=out, mode="clip")
        else:
            self.codes.read_centred(blocks, out)

    def scales(self, blocks: np.ndarray) -> np.ndarray:
        """f32[n, groups]: what codes are multiplied by."""
        scale = self.scale.read(blocks)
        return scale if self.factors is None else scale * self.factors.centred(blocks).astype(np.float32)

    def minimums(self, blocks: np.ndarray) -> np.ndarray | None:
        """f32[n, groups]: what is subtracted then, or added where there are no factors."""
        if self.minimum is None:
            return None
        minimum = self.minimum.read(blocks)
        if self.minimum_factors is None:
            return minimum
        return minimum * self.minimum_factors.centred(blocks).astype(np.float32)

    def decode(self, blocks: np.ndarray, out: np.ndarray) -> None:
        """The elements of blocks u8[n, bytes] into f32[n, elements]."""
        values = self.codes.centred(blocks)
        if self.codebook:
            np.take(np.array(self.codebook, np.float32), values, out=out, mode="clip")
        else:
            out[:] = values
        if self.zeros is not None:
            np.subtract(out, self.zeros.centred(blocks).astype(np.float32), out=out)
        scales, minimums = self.scales(blocks), self.minimums(blocks)
        grouped = out.reshape(len(out), scales.shape[1], -1)
        np.multiply(grouped, scales[:, :, None], out=grouped)
        if minimums is None:
            return
        if self.minimum_factors is None:
            np.add(grouped, minimums[:, :, None], out=grouped)
        else:
            np.subtract(grouped, minimums[:, :, None], out=grouped)


@dataclass(frozen=True)
class PlainLayout:
    """Elements of a dtype, one after the other."""

    dtype: DType

    def decode(self, blocks: np.ndarray, out: np.ndarray) -> None:
        """As `BlockLayout.decode`, of blocks of one element each."""
        if self.dtype is dt.bf16:  # no sign of a NaN is lost on this way
            words = np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << np.uint32(16)
            out[:] = words.view(np.float32)
        else:
            out[:] = np.ascontiguousarray(blocks).view(self.dtype.storage)
