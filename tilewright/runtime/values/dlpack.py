"""Tensors of other packages, as NumPy arrays on the same memory: also of dtypes that NumPy does not know."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tilewright.runtime.values.dtypes import numpy_dtype


class _DType(ctypes.Structure):
    """`DLDataType` of dlpack.h."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


_UNSIGNED = 1
_NAMES = {
    (4, 16): "bfloat16",
    (7, 8): "float8_e3m4",
    (8, 8): "float8_e4m3",
    (9, 8): "float8_e4m3b11fnuz",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
"""Names of ml_dtypes by the code and bits of DLPack."""
FOREIGN = frozenset(_NAMES.values())
"""Dtypes that packages exchange, and NumPy itself does not have."""

# Where the dtype lies in what a capsule of each name points to: after a data pointer, a device (8 bytes) and the
# number of dims (4); in the newer kind a version, a context, a deleter and flags come first, of 8 bytes each.
_PLACES = {b"dltensor": 20, b"dltensor_versioned": 32 + 20}

_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def shared_array(tensor: Any) -> np.ndarray:
    """The memory of anything that has `__dlpack__`, as an array; whatever error NumPy or the tensor raises."""
    try:
        return np.from_dlpack(tensor)
    except Exception as error:  # foreign code: anything can come
        bits = _Bits(tensor)
        try:
            array = np.from_dlpack(bits)
        except Exception:
            raise error from None
        return array.view(numpy_dtype(bits.name))


class _Bits:
    """Exports a tensor of a dtype that NumPy lacks as unsigned integers of the same bits."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self.name = ""

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._tensor.__dlpack__(**options)
        dtype = _dtype_in(capsule)
        self.name = _NAMES[dtype.code, dtype.bits]
        dtype.code = _UNSIGNED  # the capsule is ours: it is made for one consumer
        return capsule


def _dtype_in(capsule: Any) -> _DType:
    (name,) = (name for name in _PLACES if _is_valid(capsule, name))
    return _DType.from_address(_pointer(capsule, name) + _PLACES[name])
