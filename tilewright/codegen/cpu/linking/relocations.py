"""What the relocations of each architecture mean: tables, after the ELF supplements of their ABIs.

An architecture is added by a table: its kinds of relocations, and a stub that jumps to where a word of the image says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

To = Literal["symbol", "branch", "slot", "address", "other", "nothing"]
"""What a relocation refers to: a symbol; a symbol that is called, or the stub that jumps to it; the word that holds a
symbol's address; a symbol's address in memory, which only the loader knows; the symbol that another relocation, at the
symbol of this one, refers to; nothing."""


@dataclass(frozen=True)
class RelocationKind:
    """A kind of relocation. `value` takes the offset of what it refers to, with the addend, and of its own place;
    `write` puts the value at places of the image, and gives which of them it fits."""

    name: str
    to: To
    value: Callable[[np.ndarray, np.ndarray], np.ndarray]
    write: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ElfMachine:
    """An architecture of ELF files. `stub` is code that jumps to where the word says to which its `stub_places` refer:
    an offset, a kind, an addend. `filler` is what stands between functions."""

    name: str
    machine: int
    order: str
    page: int
    stub: bytes
    stub_places: tuple[tuple[int, int, int], ...]
    kinds: Mapping[int, RelocationKind]
    filler: int = 0


def _distance(target: np.ndarray, place: np.ndarray) -> np.ndarray:
    return target - place


def _itself(target: np.ndarray, place: np.ndarray) -> np.ndarray:
    return target


def _pages(target: np.ndarray, place: np.ndarray) -> np.ndarray:
    return (target >> 12) - (place >> 12)


def _bytes_of(code: np.ndarray, at: np.ndarray, count: int) -> np.ndarray:
    return code[at[:, None] + np.arange(count)]


def _integer(dtype: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """An integer of this type."""
    kind = np.dtype(dtype)
    limits = np.iinfo(kind)

    def write(code: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
        code[at[:, None] + np.arange(kind.itemsize)] = values.astype(kind).view(np.uint8).reshape(-1, kind.itemsize)
        return (values >= limits.min) & (values <= limits.max)

    return write


def _added(dtype: str, sign: int) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """What is added to an integer that is there; several may be added to one."""
    kind = np.dtype(dtype)

    def write(code: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
        for place, value in zip(at.tolist(), values.tolist(), strict=True):
            word = code[place : place + kind.itemsize].view(kind)
            word += np.asarray(sign * value).astype(kind)
        return np.ones(len(at), np.bool_)

    return write


def _field(
    mask: int, encode: Callable[[np.ndarray], np.ndarray], bits: int = 0, align: int = 1
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Some bits of an instruction of 32. Values are signed numbers of so many `bits` (0: any) that are multiples."""

    def write(code: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
        words = np.ascontiguousarray(_bytes_of(code, at, 4)).view("<u4").reshape(-1).astype(np.int64)
        words = (words & ~mask) | (encode(values) & mask)
        code[at[:, None] + np.arange(4)] = words.astype("<u4").view(np.uint8).reshape(-1, 4)
        fits = values % align == 0
        return fits & (values >= -(1 << bits - 1)) & (values < 1 << bits - 1) if bits else fits

    return write


def _nothing(code: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.ones(len(at), np.bool_)


_NEAR, _WORD = _integer("<i4"), _integer("<i8")

X86_64 = ElfMachine(
    "x86_64", 62, "<", 4096,
    stub=b"\xff\x25\0\0\0\0\x66\x90",  # jmp *slot(%rip)
    stub_places=((2, 2, -4),),
    kinds={
        1: RelocationKind("R_X86_64_64", "address", _itself, _WORD),
        2: RelocationKind("R_X86_64_PC32", "symbol", _distance, _NEAR),
        4: RelocationKind("R_X86_64_PLT32", "branch", _distance, _NEAR),
        9: RelocationKind("R_X86_64_GOTPCREL", "slot", _distance, _NEAR),
        24: RelocationKind("R_X86_64_PC64", "symbol", _distance, _WORD),
        41: RelocationKind("R_X86_64_GOTPCRELX", "slot", _distance, _NEAR),
        42: RelocationKind("R_X86_64_REX_GOTPCRELX", "slot", _distance, _NEAR),
    },
    filler=0xCC,
)  # fmt: skip


def _page_field(values: np.ndarray) -> np.ndarray:
    return (values & 3) << 29 | (values >> 2 & 0x7FFFF) << 5


def _low(scale: int) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """The offset within a page of a load or store of 1 << scale bytes, or of an addition."""
    return _field(0xFFF << 10, lambda v: (v & 0xFFF) >> scale << 10, align=1 << scale)


_ADRP = _field(0x60FFFFE0, _page_field, bits=21)
_BRANCH26 = _field(0x3FFFFFF, lambda v: v >> 2, bits=28, align=4)

AARCH64 = ElfMachine(
    "aarch64", 183, "<", 65536,
    # adrp x16, slot; ldr x17, [x16, slot]; br x17
    stub=b"".join(word.to_bytes(4, "little") for word in (0x90000010, 0xF9400211, 0xD61F0220)),
    stub_places=((0, 275, 0), (4, 286, 0)),
    kinds={
        257: RelocationKind("R_AARCH64_ABS64", "address", _itself, _WORD),
        260: RelocationKind("R_AARCH64_PREL64", "symbol", _distance, _WORD),
        261: RelocationKind("R_AARCH64_PREL32", "symbol", _distance, _NEAR),
        275: RelocationKind("R_AARCH64_ADR_PREL_PG_HI21", "symbol", _pages, _ADRP),
        277: RelocationKind("R_AARCH64_ADD_ABS_LO12_NC", "symbol", _itself, _low(0)),
        278: RelocationKind("R_AARCH64_LDST8_ABS_LO12_NC", "symbol", _itself, _low(0)),
        282: RelocationKind("R_AARCH64_JUMP26", "branch", _distance, _BRANCH26),
        283: RelocationKind("R_AARCH64_CALL26", "branch", _distance, _BRANCH26),
        284: RelocationKind("R_AARCH64_LDST16_ABS_LO12_NC", "symbol", _itself, _low(1)),
        285: RelocationKind("R_AARCH64_LDST32_ABS_LO12_NC", "symbol", _itself, _low(2)),
        286: RelocationKind("R_AARCH64_LDST64_ABS_LO12_NC", "symbol", _itself, _low(3)),
        299: RelocationKind("R_AARCH64_LDST128_ABS_LO12_NC", "symbol", _itself, _low(4)),
        311: RelocationKind("R_AARCH64_ADR_GOT_PAGE", "slot", _pages, _ADRP),
        312: RelocationKind("R_AARCH64_LD64_GOT_LO12_NC", "slot", _itself, _low(3)),
    },
)  # fmt: skip

_UPPER = _field(0xFFFFF000, lambda v: v + 0x800, bits=32)
_LOWER = _field(0xFFF00000, lambda v: v << 20)
_LOWER_OF_STORE = _field(0xFE000F80, lambda v: (v & 0x1F) << 7 | (v >> 5 & 0x7F) << 25)
_JUMP = _field(
    0xFFFFF000,
    lambda v: (v >> 20 & 1) << 31 | (v >> 1 & 0x3FF) << 21 | (v >> 11 & 1) << 20 | (v >> 12 & 0xFF) << 12,
    bits=21, align=2,
)  # fmt: skip
_BRANCH = _field(
    0xFE000F80,
    lambda v: (v >> 12 & 1) << 31 | (v >> 5 & 0x3F) << 25 | (v >> 1 & 0xF) << 8 | (v >> 11 & 1) << 7,
    bits=13, align=2,
)  # fmt: skip


def _call(code: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The distance in two instructions, the upper bits first."""
    return _UPPER(code, at, values) & _LOWER(code, at + 4, values)


RISCV64 = ElfMachine(
    "riscv64", 243, "<", 4096,
    # auipc t3, slot; ld t3, slot(t3); jr t3; nop
    stub=b"".join(word.to_bytes(4, "little") for word in (0x00000E17, 0x000E3E03, 0x000E0067, 0x00000013)),
    stub_places=((0, 23, 0), (4, 24, 0)),
    kinds={
        2: RelocationKind("R_RISCV_64", "address", _itself, _WORD),
        16: RelocationKind("R_RISCV_BRANCH", "symbol", _distance, _BRANCH),
        17: RelocationKind("R_RISCV_JAL", "symbol", _distance, _JUMP),
        18: RelocationKind("R_RISCV_CALL", "branch", _distance, _call),
        19: RelocationKind("R_RISCV_CALL_PLT", "branch", _distance, _call),
        20: RelocationKind("R_RISCV_GOT_HI20", "slot", _distance, _UPPER),
        23: RelocationKind("R_RISCV_PCREL_HI20", "symbol", _distance, _UPPER),
        24: RelocationKind("R_RISCV_PCREL_LO12_I", "other", _distance, _LOWER),
        25: RelocationKind("R_RISCV_PCREL_LO12_S", "other", _distance, _LOWER_OF_STORE),
        35: RelocationKind("R_RISCV_ADD32", "symbol", _itself, _added("<i4", 1)),
        36: RelocationKind("R_RISCV_ADD64", "symbol", _itself, _added("<i8", 1)),
        39: RelocationKind("R_RISCV_SUB32", "symbol", _itself, _added("<i4", -1)),
        40: RelocationKind("R_RISCV_SUB64", "symbol", _itself, _added("<i8", -1)),
        43: RelocationKind("R_RISCV_ALIGN", "nothing", _itself, _nothing),
        51: RelocationKind("R_RISCV_RELAX", "nothing", _itself, _nothing),
        57: RelocationKind("R_RISCV_32_PCREL", "symbol", _distance, _NEAR),
    },
)  # fmt: skip


def _halves(target: np.ndarray, place: np.ndarray) -> np.ndarray:
    return (target - place) >> 1


_BIG_NEAR = _integer(">i4")

S390X = ElfMachine(
    "s390x", 22, ">", 4096,
    stub=b"\xc4\x18\0\0\0\0\x07\xf1",  # lgrl %r1, slot; br %r1
    stub_places=((2, 19, 2),),
    kinds={
        5: RelocationKind("R_390_PC32", "symbol", _distance, _BIG_NEAR),
        19: RelocationKind("R_390_PC32DBL", "symbol", _halves, _BIG_NEAR),
        20: RelocationKind("R_390_PLT32DBL", "branch", _halves, _BIG_NEAR),
        22: RelocationKind("R_390_64", "address", _itself, _integer(">i8")),
        23: RelocationKind("R_390_PC64", "symbol", _distance, _integer(">i8")),
        26: RelocationKind("R_390_GOTENT", "slot", _halves, _BIG_NEAR),
    },
)  # fmt: skip

ELF_MACHINES = (X86_64, AARCH64, RISCV64, S390X)
