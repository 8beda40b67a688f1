"""Where states lie from call to call: memory of a model, or apart from it."""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.runtime.artifact import StateInfo, TensorInfo
from tilewright.runtime.errors import ArtifactError, InputError, OptionError
from tilewright.runtime.kept.away import bring_home, written
from tilewright.runtime.kept.reserved import HUGE_PAGE, Reserved
from tilewright.runtime.kept.shared_pages import PageFile
from tilewright.runtime.values.dtypes import numpy_dtype

SLACK = 256
"""Rows before the window of a state that are kept, so that a few positions can be forgotten again."""

PIECE = 256
"""Rows that are given back to the operating system together."""


class MemoryOfState:
    """Where a state that is not swapped or handed on lies from call to call. Of one that calls read a window of, rows
    before `first` were given back. `reserved` is its memory, where others have asked for it."""

    def __init__(self, state: StateInfo, reserved: Reserved | None = None) -> None:
        dtype, shape = numpy_dtype(state.info.dtype), shape_of(state.info)
        self._row = math.prod(shape[state.grows + 1 :]) * dtype.itemsize
        self._whole = math.prod(shape[max(state.grows, 0) :]) * dtype.itemsize
        nbytes = math.prod(shape) * dtype.itemsize
        self._reserved = Reserved(nbytes, f"state '{state.info.name}'") if reserved is None else reserved
        self._window = state.window
        self._settled = 0
        self.first = 0
        self.array: np.ndarray = self._reserved.array.view(dtype).reshape(shape)

    def forget_behind(self, filled: int) -> None:
        """Give back what lies behind so many rows of the axis along which it grows."""
        self._settled = 0
        for begin in self._begins:
            self._reserved.forget(begin + filled * self._row, begin + self._whole)

    def copy_from(self, other: MemoryOfState, filled: int, file: PageFile) -> None:
        """Hold what another one for the same state does, which is filled up to a row."""
        self.first = other.first
        self.written_from(0)
        for begin in self._begins:
            rows = begin + self.first * self._row, begin + filled * self._row
            self._reserved.copy_from(other._reserved, *rows, file)

    def written_from(self, row: int) -> None:
        """Rows from this one on may be written: none of them is shared any more."""
        for begin in self._begins:
            self._reserved.written(begin + row * self._row, begin + self._whole)

    @property
    def _begins(self) -> Iterable[int]:
        """The bytes at which its parts begin that grow apart from each other."""
        return range(0, self.array.nbytes, self._whole) if self._whole else ()

    def advance(self, counter: int) -> None:
        """Give back what lies so far before a counter that no call reads it, where that is worth the while."""
        first = counter - self._window - SLACK
        if self._window < 0 or first - self.first < PIECE:
            return
        before = max(self.first * self._row - mmap.PAGESIZE, 0)  # the page that was given back in part
        for begin in self._begins:
            self._reserved.forget(begin + before, begin + first * self._row)
        self.first = first

    def settle(self, counter: int) -> bool:
        """Let the next page that so many rows fill for the most part be a huge one, and of windows, whose rows come and
        go, none; whether there was one."""
        if self._window >= 0 or not self._row or not self._whole:
            return False
        step = max(min(HUGE_PAGE, self._whole) // (2 * self._row), 1)
        if counter // step <= self._settled:
            return False
        found = self._reserved.lie_in_huge_page(self._whole, min(counter * self._row, self._whole))
        if not found:
            self._settled = counter // step
        return found

    def expect(self, counter: int, rows: int) -> None:
        """Let pages that so many rows behind a counter fill for the most part be huge before they are written, if these
        rows are more than there are: other pages would be copied, and calls do that one by one."""
        last = (counter + rows) * self._row
        if self._window < 0 and rows > counter and 0 < last <= self._whole:
            while self._reserved.lie_in_huge_page(self._whole, last):
                pass

    def may_go_back(self, counter: int) -> bool:
        """Whether calls find all that they read behind a counter."""
        return not self.first or counter <= 0 or counter - self._window >= self.first

    def go_back(self, counter: int) -> None:
        """Let a counter be what it says; all is written anew where that is nothing."""
        if counter <= 0:
            self.first = 0


def memory_of_all(states: Sequence[StateInfo]) -> list[MemoryOfState]:
    """Where some states lie. Those that grow alike by one counter lie side by side."""
    alike: dict[tuple[str, int, tuple[int, ...], int], list[int]] = {}
    for number, state in enumerate(states):
        if state.counter and state.way == "in place" and state.window < 0 and state.grows >= 0:
            shape, size = shape_of(state.info), numpy_dtype(state.info.dtype).itemsize
            alike.setdefault((state.counter, state.grows, shape, size), []).append(number)
    places: dict[int, Reserved] = {}
    for (counter, _, shape, size), numbers in alike.items():
        purpose = f"state '{states[numbers[0]].info.name}' and others that grow by '{counter}'"
        if len(numbers) > 1:
            found = Reserved.side_by_side(math.prod(shape) * size, len(numbers), purpose)
            places.update(zip(numbers, found, strict=True))
    return [MemoryOfState(state, places.get(number)) for number, state in enumerate(states)]


class StateMemory:
    """Memory for some states of a model, which holds at first what these hold before the first call.

    A model that is told to use it (`Model.use_state_memory`) reads and writes these states there. `arrays` are what the
    states hold, in their order.
    """

    def __init__(self, infos: Sequence[StateInfo], first: Sequence[np.ndarray | None]) -> None:
        self.infos = tuple(infos)
        self._memory = memory_of_all(infos)
        self.arrays = [memory.array for memory in self._memory]
        for array, value in zip(self.arrays, first, strict=True):
            if value is not None:
                array[...] = value
        names = [info.info.name for info in infos]
        self._counters = [names.index(info.counter) if info.counter else -1 for info in infos]
        self._user: tuple[weakref.ref[object], tuple[int, ...]] | None = None

    def take(self, user: object, numbers: Sequence[int]) -> None:
        """It is for these states of a user alone from now on. OptionError where it is for others: calls would write to
        the same places."""
        if self._user is not None:
            before, places = self._user
            if before() is not None and (before() is not user or places != tuple(numbers)):
                raise OptionError(
                    f"the memory for {', '.join(info.info.name for info in self.infos)} is in use already, for other "
                    "states or by another model",
                    hint="use_state_memory(names, None) there first, or copy_from() into new memory",
                )
        self._user = weakref.ref(user), tuple(numbers)

    def leave(self) -> None:
        """Others may use it."""
        self._user = None

    def set(self, number: int, value: int) -> None:
        """Set one of the states to a number: a counter, so that what grows with it is filled so far. InputError where
        calls would read what was given back."""
        grown = [m for m, c in zip(self._memory, self._counters, strict=True) if c == number]
        check_going_back(grown, value)
        if value < int(self.arrays[number].reshape(-1)[0]):
            for memory in grown:
                memory.written_from(max(value, 0))
        written(self.arrays[number])
        self.arrays[number][...] = value

    def memory_of(self, number: int) -> MemoryOfState | None:
        """Where a state lies, unless it is elsewhere."""
        found = self._memory[number]
        return found if self.arrays[number] is found.array else None

    def copy_from(self, other: StateMemory) -> None:
        """Hold what another memory for the same states holds; of what grows that is what is filled, of which both
        share whole pages until they are written to."""
        file = PageFile()
        for number, array in enumerate(self.arrays):
            own, its, grows = self.memory_of(number), other.memory_of(number), self.infos[number].grows
            part = other.filled(number)
            written(array)
            if self._counters[number] >= 0 and own is not None and its is not None:
                own.copy_from(its, its.first + part.shape[grows], file)
                continue
            first = self._memory[number].first = other._memory[number].first
            array[place_of(part.shape, grows, first)] = part

    def filled(self, number: int) -> np.ndarray:
        """What a state holds, from what is kept up to where it is filled; not a copy."""
        bring_home(self.arrays[number])
        return self._part_filled(number)

    def _part_filled(self, number: int) -> np.ndarray:
        """The same, of which the memory may hold what it did before."""
        counter = self._counters[number]
        count = None if counter < 0 else self.arrays[counter]
        return filled(self.arrays[number], self.infos[number].grows, count, self._memory[number].first)

    def forget_behind(self) -> None:
        """Give the memory behind what is filled back to the operating system."""
        for number, memory in enumerate(self._memory):
            if self._counters[number] >= 0 and self.arrays[number] is memory.array:
                memory.forget_behind(memory.first + self._part_filled(number).shape[self.infos[number].grows])


def check_going_back(memory: Iterable[MemoryOfState], counter: int) -> None:
    """Set how far some states are filled; InputError where calls would read rows that were given back."""
    found = list(memory)
    gone = max((m.first for m in found if not m.may_go_back(counter)), default=0)
    if gone:
        raise InputError(
            f"cannot go back to {counter} positions: layers with a window would read rows before {gone}, which are "
            "not kept",
            hint="go back to 0, and give all tokens again; or keep a copy (fork) of what is returned to",
        )
    for m in found:
        m.go_back(counter)


def place_of(shape: Sequence[int], axis: int, first: int) -> tuple[slice, ...]:
    """Where a part of a state lies that begins at a row of the axis along which it grows."""
    return tuple(slice(first, first + n) if k == axis else slice(n) for k, n in enumerate(shape))


def filled(array: np.ndarray, axis: int, counter: np.ndarray | None, first: int = 0) -> np.ndarray:
    """What a state holds, from a row up to what its counter says; all of one that has none. Not a copy."""
    if counter is None:
        return array
    size = min(max(int(counter.reshape(-1)[0]), 0), array.shape[axis])
    found: np.ndarray = array[(slice(None),) * axis + (slice(min(first, size), size),)]
    return found


def shape_of(info: TensorInfo) -> tuple[int, ...]:
    """The sizes of a state, which are fixed."""
    return tuple(int(d) for d in info.shape)


def bytes_of(info: TensorInfo) -> int:
    """What a state takes."""
    return math.prod(shape_of(info)) * numpy_dtype(info.dtype).itemsize


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
