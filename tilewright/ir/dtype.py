"""Element types: frozen facts about every dtype that ONNX has."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    `kind` is one of "bool", "int", "uint", "float", "string"; `bits` is the width of a value, `storage` the
    NumPy dtype that holds one element (those of less than 8 bits take a byte each).
    """

    name: str
    kind: str
    bits: int
    storage: np.dtype

    @property
    def bytes(self) -> int:
        """Bytes that one element takes in a buffer."""
        return self.storage.itemsize

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """Signed or unsigned integer (bool is neither)."""
        return self.kind in ("int", "uint")

    def holds(self, other: DType) -> bool:
        """Whether each integer of `other` is one of this dtype."""
        if not (self.is_int and other.is_int):
            return False
        return self is other or (other.bits < self.bits and not (self.kind == "uint" and other.kind == "int"))

    def integer(self, kind: str = "int") -> DType:
        """The integers that have as many bits, with a sign ("int") or without one ("uint")."""
        return BY_NAME[f"{kind[0]}{self.bits}"]

    @property
    def accumulator(self) -> DType:
        """The dtype in which sums of this dtype are kept."""
        if self.kind == "float":
            return self if self.bits >= 32 else f32
        if self.is_int and self.bits < 32:
            return i32 if self.kind == "int" else u32
        return self

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


def _dtype(name: str, kind: str, bits: int, storage: object) -> DType:
    return DType(name, kind, bits, np.dtype(storage))  # type: ignore[call-overload]


bool_ = _dtype("bool", "bool", 8, np.bool_)
i2 = _dtype("i2", "int", 2, ml_dtypes.int2)
i4 = _dtype("i4", "int", 4, ml_dtypes.int4)
i8 = _dtype("i8", "int", 8, np.int8)
i16 = _dtype("i16", "int", 16, np.int16)
i32 = _dtype("i32", "int", 32, np.int32)
i64 = _dtype("i64", "int", 64, np.int64)
u2 = _dtype("u2", "uint", 2, ml_dtypes.uint2)
u4 = _dtype("u4", "uint", 4, ml_dtypes.uint4)
u8 = _dtype("u8", "uint", 8, np.uint8)
u16 = _dtype("u16", "uint", 16, np.uint16)
u32 = _dtype("u32", "uint", 32, np.uint32)
u64 = _dtype("u64", "uint", 64, np.uint64)
f16 = _dtype("f16", "float", 16, np.float16)
bf16 = _dtype("bf16", "float", 16, ml_dtypes.bfloat16)
f32 = _dtype("f32", "float", 32, np.float32)
f64 = _dtype("f64", "float", 64, np.float64)
f8e4m3 = _dtype("f8e4m3", "float", 8, ml_dtypes.float8_e4m3fn)
f8e4m3fnuz = _dtype("f8e4m3fnuz", "float", 8, ml_dtypes.float8_e4m3fnuz)
f8e5m2 = _dtype("f8e5m2", "float", 8, ml_dtypes.float8_e5m2)
f8e5m2fnuz = _dtype("f8e5m2fnuz", "float", 8, ml_dtypes.float8_e5m2fnuz)
f8e8m0 = _dtype("f8e8m0", "float", 8, ml_dtypes.float8_e8m0fnu)
f6e2m3 = _dtype("f6e2m3", "float", 6, ml_dtypes.float6_e2m3fn)
f6e3m2 = _dtype("f6e3m2", "float", 6, ml_dtypes.float6_e3m2fn)
f4e2m1 = _dtype("f4e2m1", "float", 4, ml_dtypes.float4_e2m1fn)
string = _dtype("string", "string", 64, np.object_)

ALL: tuple[DType, ...] = (
    bool_, i2, i4, i8, i16, i32, i64, u2, u4, u8, u16, u32, u64, f16, bf16, f32, f64,
    f8e4m3, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0, f6e2m3, f6e3m2, f4e2m1, string,
)  # fmt: skip
BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
_BY_STORAGE: dict[np.dtype, DType] = {d.storage: d for d in ALL}


def from_numpy(dtype: object) -> DType:
    """The element type stored by a NumPy dtype; TypeError when there is none."""
    found = _BY_STORAGE.get(np.dtype(dtype))  # type: ignore[call-overload]
    if found is None:
        raise TypeError(f"NumPy dtype {dtype} has no counterpart; allowed: {', '.join(BY_NAME)}")
    return found
