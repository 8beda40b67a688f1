"""What an executor asks of a device: memory, launches, and copies between its memory and that of the host.

A new device is a `Device`; `executor.py` does the rest of a call. Docs/devices.md has a whole example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

ARENA, CONSTANTS, INPUTS, OUTPUTS, ERRORS, STATES = range(6)
"""The buffers of a program. Behind the outputs is what comes back with them of states, and then what others will
hold."""
ALIGNMENT = 256
"""Of each tensor in the buffers of inputs and outputs, and of the device memory of kernels behind the arena."""
NO_ERROR = 0xFFFFFFFF
"""What the word of ERRORS holds before a call; kernels write the least number of their errors there."""


@dataclass(frozen=True)
class BufferSizes:
    """The bytes of inputs, outputs, arena, memory of kernels behind it, constants and states. Of `swapped` states what
    they will hold lies beside what they hold. Those that are `known` to the host come back with the outputs."""

    inputs: Sequence[int]
    outputs: Sequence[int]
    arena: int
    room: int
    constants: int
    states: Sequence[int] = ()
    swapped: Sequence[bool] = ()
    known: Sequence[bool] = ()

    @cached_property
    def input_places(self) -> list[int]:
        """Where each input begins, and last how long the buffer is."""
        return _places(self.inputs)

    @cached_property
    def output_places(self) -> list[int]:
        """Of outputs, of states that come back with them, of what takes the place of these, and of others."""
        back = self._sized(lambda k: self.known[k])
        following = self._sized(lambda k: self.swapped[k] and self.known[k])
        others = self._sized(lambda k: self.swapped[k] and not self.known[k])
        return _places([*self.outputs, *back, *following, *others])

    @cached_property
    def state_places(self) -> list[int]:
        """In the buffer of states, of those that stay there."""
        return _places(self._sized(lambda k: not self.known[k]))

    def _sized(self, has: Callable[[int], bool]) -> list[int]:
        return [size if has(k) else 0 for k, size in enumerate(self.states)]

    @property
    def back(self) -> int:
        """How much of the buffer of outputs comes back with a call."""
        return self.output_places[len(self.outputs) + 2 * len(self.states)]

    def place_of_state(self, number: int) -> tuple[int, int]:
        """The buffer of what a state holds, and the byte there."""
        if self.known[number]:
            return OUTPUTS, self.output_places[len(self.outputs) + number]
        return STATES, self.state_places[number]

    def place_of_following(self, number: int) -> tuple[int, int]:
        """The same of what it will hold."""
        if not self.swapped[number]:
            return self.place_of_state(number)
        before = len(self.outputs) + (1 if self.known[number] else 2) * len(self.states)
        return OUTPUTS, self.output_places[before + number]

    @property
    def buffers(self) -> list[int]:
        """Bytes of each buffer."""
        inputs, outputs, states = self.input_places[-1], self.output_places[-1], self.state_places[-1]
        return [self.arena + self.room, self.constants, inputs, outputs, 4, states]

    def __str__(self) -> str:
        arena, constants, inputs, outputs, _, states = self.buffers
        kept = f"{states} of states, " if states else ""
        return (
            f"{constants} bytes of weights, {kept}{arena} between kernels, and {inputs + outputs} of inputs and outputs"
        )


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
        others may but STATES, whose size is the same in all calls. DeviceError with the figures where there is no
        room."""

    @abstractmethod
    def load(self, kernels: Mapping[str, str], calls: Sequence[Mapping[str, Any]]) -> None:
        """Get kernels ready, by name, which `calls` of the artefact launch."""

    @abstractmethod
    def write(self, buffer: int, at: int, data: np.ndarray) -> None:
        """Copy bytes to a buffer. A call begins with those to INPUTS and ERRORS."""

    @abstractmethod
    def fetch(self, buffer: int, at: int, size: int) -> np.ndarray:
        """So many bytes of a buffer, when all launches have ended."""

    def copy(self, source: int, at: int, target: int, to: int, size: int) -> None:
        """Copy bytes of a buffer to another one, behind all launches."""
        self.write(target, to, self.fetch(source, at, size))

    @abstractmethod
    def prepare(self, calls: Sequence[DeviceCall]) -> None:
        """Keep what `launch` launches from now on. The buffers stay as they are until the next `allocate`."""

    @abstractmethod
    def launch(self) -> None:
        """Launch what was prepared, in order: each launch finds what the ones before it have written."""

    @abstractmethod
    def read(self) -> tuple[int, np.ndarray]:
        """What stands in ERRORS when all launches have ended, and the bytes of OUTPUTS (at least `sizes.back`; a view
        that the next launch may change)."""

    # Parts of a model, if the executor `hands_over`

    def take(self, other: Device, at: int, to: int, size: int) -> None:
        """Copy bytes of OUTPUTS of another device of the same class, or of this one, to INPUTS."""
        raise NotImplementedError

    def put(self, at: int, data: np.ndarray) -> None:
        """Copy bytes of the host to INPUTS."""
        raise NotImplementedError

    def run(self) -> int:
        """As `launch`, without copies; what stands in ERRORS when all launches have ended, which was `NO_ERROR`
        before."""
        raise NotImplementedError

    @abstractmethod
    def release(self) -> None:
        """Give everything back; also after an error, and twice."""


def _places(sizes: Sequence[int]) -> list[int]:
    return list(accumulate((-(-n // ALIGNMENT) * ALIGNMENT for n in sizes), initial=0))
