"""Tensors as clients of ONNX Runtime hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.onnxruntime.element_types import dtype_of, number_of, text_of
from tilewright.onnxruntime.suggesting import Suggesting


class OrtValue(Suggesting):
    """A tensor in the CPU's memory: an array, which is shared and not copied."""

    def __init__(self, array: np.ndarray, number: int | None = None) -> None:
        self._array = array
        self._number = number_of(array.dtype) if number is None else number

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """On the memory of a C-contiguous array, on that of a copy of another one."""
        check_device(device_type)
        return cls(np.require(numpy_obj, requirements="C"))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: np.ndarray, onnx_element_type: int) -> OrtValue:
        """The same memory, whose elements are of one of ONNX's types: uint16 as bfloat16, for example."""
        dtype = dtype_of(onnx_element_type)
        if dtype.itemsize != data.dtype.itemsize:
            raise RuntimeError(f"elements of {data.dtype} cannot be taken as {dtype}, which has another size")
        return cls(np.require(data, requirements="C").view(dtype), onnx_element_type)

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any = np.float32, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Of any content."""
        check_device(device_type)
        return cls(np.empty(tuple(shape), dtype_of(element_type)))

    @classmethod
    def from_dlpack(cls, data: Any, is_bool_tensor: bool = False) -> OrtValue:
        """On the memory of another package's tensor."""
        array = np.from_dlpack(data)
        return cls(array.view(np.bool_) if is_bool_tensor else array)

    def numpy(self) -> np.ndarray:
        """The array itself."""
        return self._array

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Write the elements of another array of the same shape and dtype; RuntimeError where they differ."""
        if np_arr.shape != self._array.shape or np_arr.dtype != self._array.dtype:
            raise RuntimeError(
                f"the value is {self._array.dtype}{list(self._array.shape)}, the given array is "
                f"{np_arr.dtype}{list(np_arr.shape)}"
            )
        np.copyto(self._array, np_arr)

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        """A text such as "tensor(float)"."""
        return text_of(self._number)

    def element_type(self) -> int:
        """ONNX's number of the type of the elements."""
        return self._number

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        return int(self._array.nbytes)

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True

    def is_sparse_tensor(self) -> bool:
        return False

    def is_tensor_sequence(self) -> bool:
        return False

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype=dtype, copy=True) if copy else np.asarray(self._array, dtype=dtype)

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def check_device(device_type: str) -> None:
    """RuntimeError for another device than the CPU."""
    if device_type.lower() not in ("cpu", "cpu_pinned"):
        raise RuntimeError(f"there is no device '{device_type}': tensors are in the CPU's memory ('cpu')")
