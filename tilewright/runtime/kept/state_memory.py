"""Where states lie from call to call: memory of a model, or apart from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.runtime.artifact import StateInfo, TensorInfo
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.kept.reserved import Reserved
from tilewright.runtime.values.dtypes import numpy_dtype


class MemoryOfState:
    """Where a state that is not swapped or handed on lies from call to call."""

    def __init__(self, state: StateInfo) -> None:
        dtype, shape = numpy_dtype(state.info.dtype), shape_of(state.info)
        self._row = math.prod(shape[state.grows + 1 :]) * dtype.itemsize
        self._whole = math.prod(shape[max(state.grows, 0) :]) * dtype.itemsize
        self._reserved = Reserved(math.prod(shape) * dtype.itemsize, f"state '{state.info.name}'")
        self.array: np.ndarray = self._reserved.array.view(dtype).reshape(shape)

    def forget_behind(self, filled: int) -> None:
        """Give back what lies behind so many rows of the axis along which it grows."""
        for begin in range(0, self.array.nbytes, self._whole) if self._whole else ():
            self._reserved.forget(begin + filled * self._row, begin + self._whole)


class StateMemory:
    """Memory for some states of a model, which holds at first what these hold before the first call.

    A model that is told to use it (`Model.use_state_memory`) reads and writes these states there. `arrays` are what the
    states hold, in their order.
    """

    def __init__(self, infos: Sequence[StateInfo], first: Sequence[np.ndarray | None]) -> None:
        self.infos = tuple(infos)
        self._memory = [MemoryOfState(info) for info in infos]
        self.arrays = [memory.array for memory in self._memory]
        for array, value in zip(self.arrays, first, strict=True):
            if value is not None:
                array[...] = value
        names = [info.info.name for info in infos]
        self._counters = [names.index(info.counter) if info.counter else -1 for info in infos]

    def set(self, number: int, value: int) -> None:
        """Set one of the states to a number: a counter, so that what grows with it is filled so far."""
        self.arrays[number][...] = value

    def copy_from(self, other: StateMemory) -> None:
        """Hold what another memory for the same states holds; of what grows that is what is filled."""
        for number, array in enumerate(self.arrays):
            part = other.filled(number)
            array[tuple(map(slice, part.shape))] = part

    def filled(self, number: int) -> np.ndarray:
        """What a state holds, up to where it is filled; not a copy."""
        counter = self._counters[number]
        count = None if counter < 0 else self.arrays[counter]
        return filled(self.arrays[number], self.infos[number].grows, count)

    def forget_behind(self) -> None:
        """Give the memory behind what is filled back to the operating system."""
        for number, memory in enumerate(self._memory):
            if self._counters[number] >= 0 and self.arrays[number] is memory.array:
                memory.forget_behind(self.filled(number).shape[self.infos[number].grows])


def filled(array: np.ndarray, axis: int, counter: np.ndarray | None) -> np.ndarray:
    """What a state holds, up to what its counter says; all of one that has none. Not a copy."""
    if counter is None:
        return array
    size = min(max(int(counter.reshape(-1)[0]), 0), array.shape[axis])
    found: np.ndarray = array[(slice(None),) * axis + (slice(size),)]
    return found


def shape_of(info: TensorInfo) -> tuple[int, ...]:
    """The sizes of a state, which are fixed."""
    return tuple(int(d) for d in info.shape)


def first_value(state: StateInfo, constants: bytes | bytearray | memoryview) -> np.ndarray | None:
    """What it holds at first; None for zeros."""
    if state.initial < 0:
        return None
    dtype, shape = numpy_dtype(state.info.dtype), shape_of(state.info)
    found = memoryview(constants)[state.initial : state.initial + math.prod(shape) * dtype.itemsize]
    if found.nbytes != math.prod(shape) * dtype.itemsize:
        what = f"the first value of state '{state.info.name}' is not in the artefact"
        raise ArtifactError(what, hint="compile the model again")
    return np.frombuffer(found, dtype).reshape(shape)
