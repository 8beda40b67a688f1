"""Inputs and outputs that are bound to memory before a session runs."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.onnxruntime.element_types import dtype_of
from tilewright.onnxruntime.ort_value import OrtValue, check_device
from tilewright.onnxruntime.suggesting import Suggesting


class IOBinding(Suggesting):
    """What one session reads and writes; made by `InferenceSession.io_binding`."""

    def __init__(self, session: Any) -> None:
        self._inputs = {arg.name for arg in (*session.get_inputs(), *session.get_overridable_initializers())}
        self._outputs = {arg.name for arg in session.get_outputs()}
        self.feed: dict[str, OrtValue] = {}
        self.wanted: dict[str, OrtValue | None] = {}
        """The outputs in the order in which they were bound, each with the memory that it is written to, if any."""
        self._found: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Read an array."""
        self.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(arr_on_cpu))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read a value; RuntimeError for a name that is none of an input."""
        _check_name(name, self._inputs, "input")
        self.feed[name] = ortvalue

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Read what lies at an address, C-contiguous; whoever binds it keeps it alive."""
        check_device(device_type)
        self.bind_ortvalue_input(name, _value_at(buffer_ptr, shape, element_type))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Write to the memory of a value."""
        _check_name(name, self._outputs, "output")
        self.wanted[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Write to an address, or to new memory where none is given."""
        check_device(device_type)
        _check_name(name, self._outputs, "output")
        self.wanted[name] = None if buffer_ptr is None else _value_at(buffer_ptr, shape or (), element_type)

    def clear_binding_inputs(self) -> None:
        self.feed.clear()

    def clear_binding_outputs(self) -> None:
        self.wanted.clear()
        self._found.clear()

    def synchronize_inputs(self) -> None:
        """Nothing: calls are over when they return."""

    def synchronize_outputs(self) -> None:
        """Nothing: calls are over when they return."""

    def store(self, results: Sequence[np.ndarray]) -> None:
        """Write the outputs of a run to where they are bound; RuntimeError where one does not fit."""
        found = []
        for result, (name, value) in zip(results, self.wanted.items(), strict=True):
            if value is None:
                value = OrtValue(result)
            elif value.shape() != list(result.shape) or value.numpy().dtype != result.dtype:
                raise RuntimeError(
                    f"Error in execution: output '{name}' is bound to {value.numpy().dtype}{value.shape()}, "
                    f"and is {result.dtype}{list(result.shape)} in this run"
                )
            else:
                np.copyto(value.numpy(), result)
            found.append(value)
        self._found = found

    def get_outputs(self) -> list[OrtValue]:
        """What the last run has written, in the order in which outputs were bound."""
        return list(self._found)

    get_outputs_as_ortvaluevector = get_outputs

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Copies of what the last run has written."""
        return [value.numpy().copy() for value in self._found]


def _check_name(name: str, names: set[str], what: str) -> None:
    if name not in names:
        raise RuntimeError(f"there is no {what} {name!r:.80}; there are: {', '.join(sorted(names)) or 'none'}")


def _value_at(address: int, shape: Sequence[int], element_type: Any) -> OrtValue:
    dtype = dtype_of(element_type)
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return OrtValue(np.empty(tuple(shape), dtype))
    memory: Any = (ctypes.c_char * size).from_address(address)
    return OrtValue(np.ndarray(tuple(shape), dtype, memory))
