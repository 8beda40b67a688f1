"""What an executor asks of a device: memory, launches, and copies between its memory and that of the host.

A new device is a `Device`; `executor.py` does the rest of a call. Docs/devices.md has a whole example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

ARENA, CONSTANTS, INPUTS, OUTPUTS, ERRORS = range(5)
"""The buffers of a program. Behind the outputs is what states hold, and what they will."""
ALIGNMENT = 256
"""Of each tensor in the buffers of inputs and outputs, and of the device memory of kernels behind the arena."""
NO_ERROR = 0xFFFFFFFF
"""What the word of ERRORS holds before a call; kernels write the least number of their errors there."""


@dataclass(frozen=True)
class BufferSizes:
    """The bytes of inputs, outputs, arena, memory of kernels behind it, constants and states. Of `swapped` states what
    they will hold lies beside what they hold."""

    inputs: Sequence[int]
    outputs: Sequence[int]
    arena: int
    room: int
    constants: int
    states: Sequence[int] = ()
    swapped: Sequence[bool] = ()

    @cached_property
    def input_places(self) -> list[int]:
        """Where each input begins, and last how long the buffer is."""
        return _places(self.inputs)

    @cached_property
    def output_places(self) -> list[int]:
        """Of outputs, of states, and of what takes their place."""
        return _places([*self.outputs, *self.states, *self.following])

    @property
    def following(self) -> list[int]:
        """The bytes of what takes the place of states, where it lies beside them."""
        return [size if apart else 0 for size, apart in zip(self.states, self.swapped, strict=True)]

    def updates(self, states: Sequence[np.ndarray], written: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, int]]:
        """The memory of states after a call, and where on the device that is: where they were, or beside that in
        what a call writes, behind the outputs."""
        first, count = len(self.outputs), len(states)
        for k, apart in enumerate(self.swapped):
            yield (written[first + k] if apart else states[k]), self.output_places[first + k + count * apart]

    @property
    def buffers(self) -> list[int]:
        """Bytes of each buffer."""
        return [self.arena + self.room, self.constants, self.input_places[-1], self.output_places[-1], 4]

    def __str__(self) -> str:
        arena, constants, inputs, outputs, _ = self.buffers
        return f"{constants} bytes of weights, {arena} between kernels, and {inputs + outputs} of inputs and outputs"


@dataclass(frozen=True)
class DeviceCall:
    """A call of a kernel with the sizes of one call of the program: `places` are the buffer of each argument and the
    byte there, `dims` its sizes, `room` the byte of ARENA where its device memory begins, and `errors` what is added
    to the numbers of its errors. `launches` are entry point, groups along x, y and z, and what else its code generator
    says of each; `described` is all that this says of the call."""

    kernel: str
    places: tuple[tuple[int, int], ...]
    dims: tuple[int, ...]
    room: int
    errors: int
    launches: tuple[tuple[str, tuple[int, ...], tuple[Any, ...]], ...]
    described: Mapping[str, Any]


class Device(ABC):
    """The memory and the kernels of one artefact on a device. What a method raises becomes a DeviceError of the call;
    after that the executor releases the device, and the next call opens it anew."""

    name = "the device"
    """In messages."""

    def active(self) -> AbstractContextManager[Any]:
        """In which all else is called, by one thread at a time."""
        return nullcontext()

    @abstractmethod
    def allocate(self, sizes: BufferSizes) -> bool:
        """Make each buffer at least so large (`sizes.buffers`), and say whether CONSTANTS has lost what it held, as all
        others may. DeviceError with the figures where there is no room."""

    @abstractmethod
    def load(self, kernels: Mapping[str, str], calls: Sequence[Mapping[str, Any]]) -> None:
        """Get kernels ready, by name, which `calls` of the artefact launch."""

    @abstractmethod
    def write(self, buffer: int, at: int, data: np.ndarray) -> None:
        """Copy bytes to a buffer."""

    @abstractmethod
    def prepare(self, calls: Sequence[DeviceCall]) -> None:
        """Keep what `launch` launches from now on. The buffers stay as they are until the next `allocate`."""

    @abstractmethod
    def launch(self) -> None:
        """Launch what was prepared, in order: each launch finds what the ones before it have written."""

    @abstractmethod
    def read(self) -> tuple[int, np.ndarray]:
        """What stands in ERRORS when all launches have ended, and the bytes of OUTPUTS (a view that the next launch may
        change)."""

    @abstractmethod
    def release(self) -> None:
        """Give everything back; also after an error, and twice."""


def _places(sizes: Sequence[int]) -> list[int]:
    return list(accumulate((-(-n // ALIGNMENT) * ALIGNMENT for n in sizes), initial=0))
