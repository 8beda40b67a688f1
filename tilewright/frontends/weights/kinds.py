"""The kinds of stored weights: one table of layouts.

What a file's reader checks, the decoder to float32 and the expression of a graph all follow from an entry here. Those
in blocks are the kinds of ggml (llama.cpp), which are in use; kinds of single elements have the names that files give
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.frontends.weights.layout import BlockLayout, Codes, Number, PlainLayout, Plane, codes
from tilewright.ir import dtype as dt

CODEBOOK_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""Of IQ4_NL and IQ4_XS: levels that lie closer to each other around zero, as weights do."""
CODEBOOK_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Of MXFP4: twice the floats of 4 bits that the OCP specification of microscaling formats has, without a negative zero;
scales are half of the powers there, so that float32 holds all of them."""


@dataclass(frozen=True)
class Kind:
    """A kind of stored weights: `elements` of a row share a block of so many `bytes`."""

    name: str
    elements: int
    bytes: int
    layout: BlockLayout | PlainLayout

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row; the last block of a row may hold fewer elements than it has room for."""
        return -(-columns // self.elements) * self.bytes

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor, whose rows are along the last axis (a number has one element)."""
        return math.prod(shape[:-1]) * self.row_bytes(shape[-1] if shape else 1)

    @property
    def bits(self) -> float:
        """For an element, with its share of scales."""
        return 8 * self.bytes / self.elements

    def __str__(self) -> str:
        return self.name


def _nibbles(at: int, size: int, run: int, zero: int = 0) -> Codes:
    return codes(Plane(at, size, 4, run), zero=zero)


def _pairs_of_6_bits(at: int, first: int) -> Codes:
    """Eight numbers of 6 bits in the 12 bytes of Q4_K and Q5_K: factors (`first` 0) or those of the minimums (4). The
    last four have their low bits in nibbles of bytes 8 to 11, and their high ones above those of the first four."""
    low = Plane(at + first, 4, 6, 4, fields=1)
    nibble = Plane(at + 8, 4, 4, 4, shift=first, fields=1)
    return Codes(((low,), (nibble, Plane(at + first, 4, 2, 4, shift=6, fields=1))))


def _single(name: str, dtype: dt.DType) -> Kind:
    return Kind(name, 1, dtype.bytes, PlainLayout(dtype))


_BLOCKS = (
    Kind("Q4_0", 32, 18, BlockLayout(_nibbles(2, 16, 16, zero=8), Number(0))),
    Kind("Q4_1", 32, 20, BlockLayout(_nibbles(4, 16, 16), Number(0), Number(2))),
    Kind("Q5_0", 32, 22, BlockLayout(codes(Plane(6, 16, 4, 16), Plane(2, 4, 1, 1), zero=16), Number(0))),
    Kind("Q5_1", 32, 24, BlockLayout(codes(Plane(8, 16, 4, 16), Plane(4, 4, 1, 1)), Number(0), Number(2))),
    Kind("Q8_0", 32, 34, BlockLayout(codes(Plane(2, 32, 8, 32), signed=True), Number(0))),
    Kind(
        "Q2_K", 256, 84,
        BlockLayout(
            codes(Plane(16, 64, 2, 32)), Number(80), Number(82), group=16,
            factors=codes(Plane(0, 16, 4, 16, fields=1)),
            minimum_factors=codes(Plane(0, 16, 4, 16, shift=4, fields=1)),
        ),
    ),
    Kind(
        "Q3_K", 256, 110,
        BlockLayout(
            codes(Plane(32, 64, 2, 32), Plane(0, 32, 1, 32), zero=4), Number(108), group=16,
            factors=codes(Plane(96, 8, 4, 8), Plane(104, 4, 2, 4), zero=32),
        ),
    ),
    Kind(
        "Q4_K", 256, 144,
        BlockLayout(
            _nibbles(16, 128, 32), Number(0), Number(2), group=32,
            factors=_pairs_of_6_bits(4, 0), minimum_factors=_pairs_of_6_bits(4, 4),
        ),
    ),
    Kind(
        "Q5_K", 256, 176,
        BlockLayout(
            codes(Plane(48, 128, 4, 32), Plane(16, 32, 1, 32)), Number(0), Number(2), group=32,
            factors=_pairs_of_6_bits(4, 0), minimum_factors=_pairs_of_6_bits(4, 4),
        ),
    ),
    Kind(
        "Q6_K", 256, 210,
        BlockLayout(
            codes(Plane(0, 128, 4, 64), Plane(128, 64, 2, 32), zero=32), Number(208), group=16,
            factors=codes(Plane(192, 16, 8, 16), signed=True),
        ),
    ),
    Kind("IQ4_NL", 32, 18, BlockLayout(_nibbles(2, 16, 16), Number(0), codebook=CODEBOOK_NL)),
    Kind(
        "IQ4_XS", 256, 136,
        BlockLayout(
            _nibbles(8, 128, 16), Number(0), codebook=CODEBOOK_NL, group=32,
            factors=codes(Plane(4, 4, 4, 1), Plane(2, 2, 2, 1), zero=32),
        ),
    ),
    Kind("MXFP4", 32, 17, BlockLayout(_nibbles(1, 16, 16), Number(0, dt.f8e8m0), codebook=CODEBOOK_E2M1)),
)  # fmt: skip

_SINGLES = (
    _single("BOOL", dt.bool_),
    *(_single(d.name.upper(), d) for d in (dt.i8, dt.i16, dt.i32, dt.i64, dt.u8, dt.u16, dt.u32, dt.u64)),
    *(_single(d.name.upper(), d) for d in (dt.f16, dt.bf16, dt.f32, dt.f64)),
    *(_single("F8_" + d.name[2:].upper(), d) for d in (dt.f8e4m3, dt.f8e4m3fnuz, dt.f8e5m2, dt.f8e5m2fnuz, dt.f8e8m0)),
)


def _by_name(kinds: Iterable[Kind]) -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds}


KINDS: dict[str, Kind] = _by_name((*_SINGLES, *_BLOCKS))
"""By name: F32, BF16, Q4_K, ..."""
