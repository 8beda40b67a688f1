"""What a model keeps from one call to the next."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.arena import address_of, aligned_bytes
from tilewright.runtime.artifact import StateInfo, TensorInfo
from tilewright.runtime.errors import ArtifactError, ExecutionError, InputError, OptionError, TilewrightError
from tilewright.runtime.executor import Executor, keeps_memory
from tilewright.runtime.kept.away import bring_home, is_lost, written
from tilewright.runtime.kept.shared_pages import PageFile
from tilewright.runtime.kept.state_memory import (
    MemoryOfState,
    StateMemory,
    check_going_back,
    filled,
    first_value,
    memory_of_all,
    place_of,
    shape_of,
)
from tilewright.runtime.process.forks import free_in_children
from tilewright.runtime.storage.files import check_replaced, replacing
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.runtime.values.inputs import as_array

LOOK_EVERY = 64
"""Rows that states grow by until it is looked again whether they fill huge pages."""


class States:
    """The memory of the states of a model, which one call at a time has.

    A call reads `current`; what it computes for the next one is written there, in place, or into memory beside it with
    which it is swapped. So a call that fails leaves states that are swapped as they were; those that are written in
    place are `lost` then, and calls are refused until somebody sets them. Of a state that grows such a call writes what
    lies behind its counter alone, and the counter is put back: neither is lost.

    Where a device has the memory of its own, what states hold stays there (`kept/away.py`), and `current` is what it
    was until somebody looks at it.
    """

    def __init__(self, infos: Sequence[StateInfo], constants: bytes | bytearray | memoryview) -> None:
        self.infos = tuple(infos)
        self._first = [first_value(info, constants) for info in infos]
        self._memory = memory_of_all(infos)
        self._used: dict[int, tuple[StateMemory, int]] = {}  # of states that lie apart, and which they are there
        self._own: dict[int, np.ndarray] = {}  # of these: what the model holds itself
        self.hand_on([memory.array for memory in self._memory])
        self._beside: list[np.ndarray | None] = [None] * len(self.infos)
        self._counters = [self._counter(state) for state in self.infos]
        windows = [n for n, state in enumerate(self.infos) if state.window >= 0 and state.way == "in place"]
        self._windows = tuple((n, self._counters[n]) for n in windows)
        grown = [n for n, state in enumerate(self.infos) if self._counters[n] >= 0 and state.way == "in place"]
        counters = dict.fromkeys(self._counters[n] for n in grown)
        self._grown = {own: [n for n in grown if self._counters[n] == own] for own in counters}
        self._look_again()
        self.lost: Sequence[str] = ()
        self._is_on_device = False
        self.start_process()
        self._begin_anew(range(len(self.infos)))

    def _counter(self, state: StateInfo) -> int:
        """The position of the state that counts how far another is filled; -1 for one that does not grow."""
        return self.number(state.counter) if state.counter else -1

    def start_process(self) -> None:
        """After a fork: a thread that is gone may hold the lock."""
        self._lock = free_in_children(threading.RLock())
        self._is_running = False

    def reset(self) -> None:
        """Begin anew; memory of what grows is given back."""
        with self._lock:
            self._begin_anew(range(len(self.infos)))
            for number, _ in self._windows:
                if (memory := self._memory_of(number)) is not None:
                    memory.first = 0
            self._release()
            self._beside = [None] * len(self.infos)  # with a counter of before, which nothing may take for one of now
            self.lost = ()

    def _begin_anew(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if (memory := self._memory_of(number)) is not None:
                memory.written_from(0)
            written(self.current[number])
            if self._first[number] is not None:
                self.current[number][...] = self._first[number]
            elif self._counters[number] < 0:
                self.current[number][...] = 0

    def filled(self, number: int) -> np.ndarray:
        """What a state holds, up to where it is filled; not a copy."""
        bring_home(self.current[number])
        return self._part_filled(number)

    def _part_filled(self, number: int) -> np.ndarray:
        """The same, of which the memory may hold what it did before."""
        counter = self._counters[number]
        count = None if counter < 0 else self.current[counter]
        return filled(self.current[number], self.infos[number].grows, count, self.first(number))

    def first(self, number: int) -> int:
        """The first row of a state that is kept."""
        memory = self._memory_of(number)
        return 0 if memory is None else memory.first

    def _memory_of(self, number: int) -> MemoryOfState | None:
        if number in self._used:
            used, place = self._used[number]
            return used.memory_of(place)
        memory = self._memory[number]
        return memory if self.current[number] is memory.array else None

    def _advance(self) -> None:
        """After a call: of states of which a window is read, what lies before that is given back, and what others have
        grown by may come to lie in a huge page, one in each call."""
        for counter, grown in () if self._is_on_device else self._grown.items():
            rows = int(self.current[counter].reshape(-1)[0])
            if rows // LOOK_EVERY != self._looked[counter]:
                if any(settling.settle(rows) for settling in filter(None, map(self._memory_of, grown))):
                    break
                self._looked[counter] = rows // LOOK_EVERY
        for number, counter in self._windows:
            if (windowed := self._memory_of(number)) is not None:
                windowed.advance(int(self.current[counter].reshape(-1)[0]))

    def expect(self, counter: int, rows: int) -> None:
        """So many rows will be written behind the counter by the next calls: pages that they fill for the most part
        are huge from the beginning."""
        with self._lock:
            for memory in map(self._memory_of, () if self._is_on_device else self._grown.get(counter, ())):
                if memory is not None:
                    memory.expect(int(self.current[counter].reshape(-1)[0]), rows)

    def _look_again(self) -> None:
        """States may lie in other memory, or in none, however far their counters are."""
        self._looked = dict.fromkeys(self._grown, 0)

    def _go_back(self, counter: int, value: int) -> None:
        memory = (self._memory_of(number) for number, own in self._windows if own == counter)
        check_going_back([m for m in memory if m is not None], value)

    def copies(self, names: Container[str] | None = None) -> dict[str, np.ndarray]:
        """What they hold (some of them), by name, between two calls; of those that grow what is filled."""
        with self._lock:
            self._check()
            return {
                state.info.name: self.filled(number).copy()
                for number, state in enumerate(self.infos)
                if names is None or state.info.name in names
            }

    def put(self, values: Mapping[str, np.ndarray]) -> None:
        """Set some, all at once, between two calls. The arrays fit, those that grow also as `copies` has them."""
        with self._lock:
            for number, state in enumerate(self.infos):
                if state.info.name in values:
                    self._put(number, values)
            self.lost = tuple(name for name in self.lost if name not in values)

    def _put(self, number: int, values: Mapping[str, np.ndarray]) -> None:
        """Set one of some states. Of one that grows there may be the last rows of those that are filled."""
        state, counter = self.infos[number], self._counters[number]
        value, first = values[state.info.name], 0
        if counter >= 0 and state.window >= 0:
            count = values.get(self.infos[counter].info.name, self.current[counter])
            rows = value.shape[state.grows]
            first = 0 if rows == self.current[number].shape[state.grows] else max(int(count.reshape(-1)[0]) - rows, 0)
            if (memory := self._memory_of(number)) is not None:
                memory.first = first
        elif any(own == number for _, own in self._windows):
            alone = all(self.infos[n].info.name not in values for n, own in self._windows if own == number)
            if alone:
                self._go_back(number, int(value.reshape(-1)[0]))
        if counter >= 0 and (memory := self._memory_of(number)) is not None:
            memory.written_from(0)
        for grown in (n for n, own in enumerate(self._counters) if own == number):
            if (memory := self._memory_of(grown)) is not None:
                memory.written_from(max(int(value.reshape(-1)[0]), 0))
        written(self.current[number])
        self.current[number][place_of(value.shape, state.grows, first)] = value

    def copy_to(self, other: States) -> None:
        """Give the states of another model of the same artefact what these hold, between two calls."""
        with self._lock, other._lock:
            self._check()
            file, values = PageFile(), {}
            for number, state in enumerate(self.infos):
                own, its, filled = self._memory_of(number), other._memory_of(number), self.filled(number)
                if self._counters[number] < 0 or own is None or its is None:
                    values[state.info.name] = filled
                else:  # whole pages are shared until they are written to
                    written(other.current[number])
                    its.copy_from(own, own.first + filled.shape[state.grows], file)
            other.put(values)
            other.lost = ()
            other._look_again()

    def number(self, name: str) -> int:
        """The position of a state; OptionError where there is none of that name."""
        names = [state.info.name for state in self.infos]
        if name not in names:
            kept = ", ".join(names) or "none; tilewright.compile(..., states=...) makes some"
            raise OptionError(f"the model keeps no state {name!r:.80}", hint=f"its states are: {kept}")
        return names.index(name)

    def trim(self) -> None:
        """Free the memory beside, and that of what grows behind what is filled; a call that is running has its own
        until it ends, and is not waited for."""
        self._beside = [None] * len(self.infos)
        if any(counter >= 0 for counter in self._counters) and self._lock.acquire(blocking=False):
            try:
                if not self._is_running:
                    self._release()
            finally:
                self._lock.release()

    def come_home(self) -> None:
        """Let the host have what devices hold; not while a call is running, whose device ends with it."""
        if self._is_on_device and self._lock.acquire(blocking=False):
            try:
                for array in self.current:
                    bring_home(array)
            except TilewrightError:  # it is lost
                pass
            finally:
                self._lock.release()

    def _release(self) -> None:
        self._look_again()
        for number, memory in enumerate(self._memory):
            if self._counters[number] >= 0 and self.current[number] is memory.array:
                memory.forget_behind(memory.first + self._part_filled(number).shape[self.infos[number].grows])

    def begin(self) -> None:
        """A call begins, which ends with `end`. ExecutionError where states are lost, and for a call within a call."""
        self._lock.acquire()
        try:
            if self._is_running:
                raise ExecutionError(
                    "a call of a model that keeps states began another one",
                    hint="call a copy (copy.copy(model)), which has states of its own",
                )
            self._check()
        except ExecutionError:
            self._lock.release()
            raise
        self._is_running = True

    def end(self) -> None:
        """A call has ended, in whatever way."""
        self._is_running = False
        self._lock.release()

    @contextmanager
    def set_aside(self) -> Iterator[Callable[[], None]]:
        """Calls within leave no traces; no others run meanwhile. Between them the function that it gives lets the next
        one find what the first one found."""
        if not self.infos:
            yield lambda: None
            return
        self.begin()
        try:
            before = self.copies()
            changed = {state.info.name: before[state.info.name] for state in changed_by_calls(self.infos)}
            try:
                yield lambda: self.put(changed)
            finally:
                self.put(before)
        finally:
            self.end()

    def _check(self) -> None:
        lost = list(self.lost)
        if self._is_on_device:
            lost += [info.info.name for info, array in zip(self.infos, self.current, strict=True) if is_lost(array)]
        if lost:
            raise ExecutionError(
                f"state '{lost[0]}' is lost: a call failed while it was written",
                hint="begin anew with reset(), or set it with set_state()",
            )

    # Native code

    def give(self, in_data: Any, inputs: int) -> None:
        """Write the addresses of all states behind those of the inputs."""
        in_data[inputs:] = self._addresses

    def runner(
        self, code: Executor, states: Sequence[StateInfo], out_data: Any, outputs: int
    ) -> Callable[[int], int]:
        """Runs a program that keeps its states so; what it has computed is what they hold afterwards."""
        self._is_on_device = keeps_memory(code)
        if self._is_on_device:
            device: Any = code
            return self._runner_on_device(device.run_keeping, states)
        run = code.run
        swapped = [number for number, state in enumerate(states) if state.way == "swapped"]
        counters = [number for number in self._grown if states[number].way == "in place"]
        own = [n for n, state in enumerate(states) if state.way == "in place" and not state.counter]
        written = tuple(states[n].info.name for n in own if n not in counters)

        def keeping(call: int) -> int:
            before = [(self.current[number], self.current[number].copy()) for number in counters]
            following = [self._memory_beside(number) for number in swapped]
            for number, array in zip(swapped, following, strict=True):
                out_data[outputs + number] = address_of(array)
            self.lost, code = written, -1
            try:
                code = run(call)
            finally:
                if code:  # or it is left by an error
                    for array, value in before:
                        array[...] = value
            if not code:
                self.lost = ()
                for number, array in zip(swapped, following, strict=True):
                    self._beside[number], self.current[number] = self.current[number], array
                    self._addresses[number] = address_of(array)
                self._note_moves(swapped)
                if self._grown:
                    self._advance()
            return code

        return keeping

    def _runner_on_device(
        self, run: Callable[[int, Sequence[np.ndarray]], int], states: Sequence[StateInfo]
    ) -> Callable[[int], int]:
        """The same for a program whose device keeps them, and says itself which are lost."""
        counters = [number for number in self._grown if states[number].way == "in place"]

        def keeping(call: int) -> int:
            before = [(self.current[number], self.current[number].copy()) for number in counters]
            code = -1
            try:
                code = run(call, self.current)
            finally:
                if code:
                    for array, value in before:
                        array[...] = value
            if not code:
                self._advance()
            return code

        return keeping

    def _memory_beside(self, number: int) -> np.ndarray:
        found = self._beside[number]
        if found is None:
            found = self._beside[number] = _empty(self.infos[number].info)
        return found

    # Arrays

    def hand_on(self, results: Sequence[np.ndarray]) -> None:
        """These are what they hold from now on; nobody else has the arrays."""
        self.current = list(results)
        self._addresses = [address_of(array) for array in self.current]
        self._note_moves(self._used)

    def _note_moves(self, numbers: Iterable[int]) -> None:
        """Of states that lie apart: where they are now."""
        for number in numbers if self._used else ():
            if number in self._used:
                memory, place = self._used[number]
                memory.arrays[place] = self.current[number]

    # Memory apart

    def memory_for(self, numbers: Sequence[int]) -> StateMemory:
        """Memory for some states, as these are before the first call."""
        return StateMemory([self.infos[number] for number in numbers], [self._first[number] for number in numbers])

    def use(self, numbers: Sequence[int], memory: StateMemory | None) -> None:
        """Keep these states in some memory from now on, or in the model's own, between two calls."""
        with self._lock:
            if memory is not None:
                memory.take(self, numbers)
            left = [self._used[number][0] for number in numbers if number in self._used]
            for place, number in enumerate(numbers):
                if number not in self._used:
                    self._own[number] = self.current[number]
                if memory is None:
                    self._used.pop(number, None)
                    array = self._own[number]
                else:
                    self._used[number] = memory, place
                    array = memory.arrays[place]
                self.current[number], self._addresses[number] = array, address_of(array)
            self._look_again()
            used = {id(found) for found, _ in self._used.values()}
            for found in left:
                if id(found) not in used:
                    found.leave()


def _empty(info: TensorInfo) -> np.ndarray:
    dtype, shape = numpy_dtype(info.dtype), shape_of(info)
    return aligned_bytes(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def changed_by_calls(infos: Sequence[StateInfo]) -> tuple[StateInfo, ...]:
    """The states that have to be set for a call to find what an earlier one found. What grows is written behind its
    counter alone, so that the counter is enough, where no rows before a window are given back."""
    if any(state.window >= 0 for state in infos):
        return tuple(infos)
    return tuple(state for state in infos if not state.counter)


class KeepsStates:
    """What models that keep states have for their callers; others keep none."""

    _states: States

    @property
    def states(self) -> tuple[StateInfo, ...]:
        """What is kept from one call to the next (see `tilewright.compile`'s `states`)."""
        return self._states.infos

    def state(self, name: str) -> np.ndarray:
        """A copy of what a state holds, after the calls that have ended, with zeros behind what is filled of one that
        grows. OptionError for an unknown name."""
        info = self.states[self._states.number(name)].info
        found = self._states.copies((name,))[name]
        if found.shape == info.shape:
            return found
        whole = np.zeros(shape_of(info), found.dtype)
        number = self._states.number(name)
        whole[place_of(found.shape, self.states[number].grows, self._states.first(number))] = found
        return whole

    def set_state(self, name: str, value: Any) -> None:
        """Set a state for the next call, to an array of its dtype and shape, a number or a list. InputError for what
        does not fit, OptionError for an unknown name."""
        info = self.states[self._states.number(name)].info
        array = as_array(value, info, numpy_dtype(info.dtype))
        if array.shape != info.shape:
            raise InputError(f"state '{info}' cannot be set to an array of shape {list(array.shape)}")
        self._states.put({name: array})

    def expect_rows(self, counter: str, rows: int) -> None:
        """Let the memory of states that grow with a counter be ready for so many more rows, which the next calls write:
        pages that are huge in the end are so from the beginning. Nothing else changes. OptionError for an unknown
        name."""
        self._states.expect(self._states.number(counter), rows)

    def reset(self) -> None:
        """Set all states to what they are before the first call."""
        self._states.reset()

    def new_state_memory(self, names: Sequence[str]) -> StateMemory:
        """Memory for some states, in which they are as before the first call. OptionError for an unknown name, and for
        states that grow without their counters."""
        numbers = [self._states.number(name) for name in names]
        for state in (self.states[number] for number in numbers):
            if state.counter and state.counter not in names:
                raise OptionError(f"state '{state.info.name}' grows with '{state.counter}', which is not among them")
        return self._states.memory_for(numbers)

    def use_state_memory(self, names: Sequence[str], memory: StateMemory | None) -> None:
        """Let the next calls read and write some states in `memory`, which is for as many of the same types, or (None)
        in the model's own, where they are as they were left. Nothing is copied. OptionError for an unknown name, for
        memory of other states, and for memory that is in use elsewhere."""
        numbers = [self._states.number(name) for name in names]
        if memory is not None:
            own = [(self.states[n].info.dtype, self.states[n].info.shape) for n in numbers]
            given = [(info.info.dtype, info.info.shape) for info in memory.infos]
            if own != given:
                raise OptionError(
                    f"the memory is for {', '.join(str(info.info) for info in memory.infos)}, and not for "
                    f"{', '.join(str(self.states[n].info) for n in numbers)}",
                    hint="new_state_memory() of these states makes some",
                )
        self._states.use(numbers, memory)

    def save_states(self, path: str | Path, *, force: bool = False) -> None:
        """Write what all states hold to a NumPy file (.npz), whole or not at all. A file of another kind is replaced
        only by `force`; otherwise ArtifactError says what is there."""
        path = Path(path)
        check_replaced(path, "a file of states", lambda begins: begins.startswith(b"PK"), force=force)
        arrays = {name: _storable(array) for name, array in self._states.copies().items()}
        with replacing(path) as file:
            np.savez(file, **{f"state {name}": array for name, array in arrays.items()})  # type: ignore[arg-type]

    def load_states(self, path: str | Path) -> None:
        """Set all states to what `save_states` wrote, also of a model that was loaded anew. ArtifactError for a file
        that is none of this model's states."""
        values = {}
        found = _arrays_of(Path(path))
        wanted = [state.info.name for state in self.states]
        if sorted(found) != sorted(wanted):
            raise ArtifactError(
                f"{path} has the states {', '.join(found) or 'none'}, and the model {', '.join(wanted) or 'none'}",
                hint="load the file that a model with these states has saved",
            )
        for state in self.states:
            dtype, array = numpy_dtype(state.info.dtype), found[state.info.name]
            stored = _storable(np.empty(0, dtype)).dtype
            if array.dtype != stored or not _fits(array.shape, state):
                what = f"{array.dtype}{list(array.shape)}"
                raise ArtifactError(f"{path}: state '{state.info}' is {what} there", hint="load the file of this model")
            values[state.info.name] = array.view(dtype)
        for state in self.states:
            if state.counter:
                _check_filled(path, state, values[state.info.name], int(values[state.counter].reshape(-1)[0]))
        self._states.put(values)


def _fits(shape: tuple[int, ...], state: StateInfo) -> bool:
    """Whether an array is a whole state, or of one that grows what is filled."""
    whole = shape_of(state.info)
    filled = state.grows >= 0 and len(shape) == len(whole) and shape[state.grows] <= whole[state.grows]
    return shape == (*whole[: state.grows], shape[state.grows], *whole[state.grows + 1 :]) if filled else shape == whole


def _check_filled(path: str | Path, state: StateInfo, value: np.ndarray, count: int) -> None:
    """ArtifactError where a state that grows has other rows than its counter says; of one that is read by windows there
    may be the last of them."""
    rows, most = value.shape[state.grows], shape_of(state.info)[state.grows]
    enough = rows in (count, most) or (state.window >= 0 and min(count, state.window) <= rows < count)
    if not 0 <= count <= most or not enough:
        raise ArtifactError(
            f"{path}: state '{state.info}' has {rows} rows there, and its counter '{state.counter}' says {count}",
            hint="the file is damaged: load one that save_states wrote",
        )


def _storable(array: np.ndarray) -> np.ndarray:
    """As a NumPy file can hold it: of types that NumPy does not know the bits."""
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def _arrays_of(path: Path) -> dict[str, np.ndarray]:
    from zipfile import BadZipFile

    try:
        with np.load(path, allow_pickle=False) as file:
            return {name.removeprefix("state "): np.array(file[name], order="C") for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, KeyError, BadZipFile) as error:
        raise ArtifactError(
            f"{path} is no file of states: {error}", hint="give the path of a file that save_states wrote"
        ) from error
