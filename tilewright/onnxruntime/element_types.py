"""Types of elements: ONNX's numbers, ONNX Runtime's texts, and dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.onnxruntime.errors import InvalidArgument
from tilewright.runtime.values.dtypes import numpy_dtype

# onnx.proto3, TensorProto.DataType: the text of a type is that of its dtype unless another follows
_NAMES = {
    1: ("float32", "float"),
    2: ("uint8", ""),
    3: ("int8", ""),
    4: ("uint16", ""),
    5: ("int16", ""),
    6: ("int32", ""),
    7: ("int64", ""),
    8: ("str", "string"),
    9: ("bool", ""),
    10: ("float16", ""),
    11: ("float64", "double"),
    12: ("uint32", ""),
    13: ("uint64", ""),
    14: ("complex64", ""),
    15: ("complex128", ""),
    16: ("bfloat16", ""),
    17: ("float8_e4m3fn", "float8e4m3fn"),
    18: ("float8_e4m3fnuz", "float8e4m3fnuz"),
    19: ("float8_e5m2", "float8e5m2"),
    20: ("float8_e5m2fnuz", "float8e5m2fnuz"),
    21: ("uint4", ""),
    22: ("int4", ""),
    23: ("float4_e2m1fn", "float4e2m1"),
}
_NUMBERS = {dtype: number for number, (dtype, _) in _NAMES.items()}


def text_of(number: int) -> str:
    """A type as `NodeArg.type` gives it; "" for an unknown one."""
    dtype, text = _NAMES.get(number, ("", ""))
    return f"tensor({text or dtype})" if dtype else ""


def number_of(dtype: np.dtype) -> int:
    """ONNX's number of a dtype, 0 for one that it does not have."""
    return _NUMBERS.get(dtype.name, 0)


def dtype_of(element_type: Any) -> np.dtype:
    """From a dtype, what NumPy takes for one, or ONNX's number; InvalidArgument for anything else."""
    try:
        if isinstance(element_type, int | np.integer):
            return numpy_dtype(_NAMES[int(element_type)][0])
        return np.dtype(element_type)
    except (KeyError, TypeError) as error:
        raise InvalidArgument.of(f"there is no type of elements {element_type!r:.80}") from error
