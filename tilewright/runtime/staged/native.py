"""Running steps in native code: frames with the memory of values, which calls take in turn."""

from __future__ import annotations

import ctypes
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from tilewright.runtime.arena import address_of
from tilewright.runtime.errors import ExecutionError, InputError, NoMemoryError, cancelled
from tilewright.runtime.process.forks import free_in_children
from tilewright.runtime.process.interrupts import LASTING_S, MUCH, run_interruptible
from tilewright.runtime.staged import frame
from tilewright.runtime.staged.program import RunNative, StagedProgram, steps_within
from tilewright.runtime.storage.loader import StepsCode
from tilewright.runtime.values.dtypes import numpy_dtype

POLL_NS = 10_000_000
"""After so much time a loop lets the host look at signals and the clock."""

_CANCELLED_PART = frame.CANCELLED & 0xFFFFFFFF
"""As the header has the code of a part, of 32 bits."""

LEAST_GIVEN = 1 << 14
"""Bytes of an output from which on it is not copied: the caller gets the memory that it was computed in."""

# names without a dot are found faster, and small models take microseconds
_array, _product = np.ndarray, math.prod

_POLL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)

Look = Callable[[int, int], None]
"""Called with the number of a loop and of its trip; raises what shall end the call."""


_Place = tuple[int, slice, np.dtype, int]
"""The slot of a value, where its dims are in the frame, its dtype and its rank."""


@dataclass(frozen=True, slots=True)
class _Function:
    """The code of a step, and the places of its inputs and outputs; `loops` says that it may ask the host."""

    run: Callable[[int], int]
    inputs: list[_Place]
    outputs: list[_Place]
    loops: bool


class NativeSteps:
    """The native steps of a program. `parts` are, for each part, the addresses of its plan, its code and its
    constants, `weights` the bytes of these; `failure` makes the error of a part, a code of it (0 where its inputs do
    not fit) and their shapes."""

    def __init__(
        self,
        program: StagedProgram,
        code: StepsCode,
        parts: Sequence[tuple[int, int, int]],
        input_ranks: Sequence[Sequence[int]],
        weights: int,
        threads: int,
        pool: Callable[[], int | None],
        stops: ctypes.c_int32,
        failure: Callable[[int, int, list[tuple[int, ...]]], Exception],
    ) -> None:
        self.program, self.code, self.parts, self.threads = program, code, parts, threads
        self._input_ranks, self._pool, self.stops, self._failure = input_ranks, pool, stops, failure
        steps = [s for s in steps_within(program.steps) if isinstance(s, RunNative)]
        self._shares_slots = len(steps) > 1  # then a step's input may have been the output of another
        self._functions = {s.function: self._function(s) for s in steps}
        self._lasting = {*self._functions} if weights >= MUCH else set[int]()  # whose last run took long, or may have
        self.start_process()

    def _function(self, step: RunNative) -> _Function:
        places = (self._places(step.inputs, step.input_types), self._places(step.outputs, step.output_types))
        return _Function(self.code.run[step.function], *places, step.loops)

    def _places(self, numbers: Sequence[int], types: Sequence[tuple[str, int]]) -> list[_Place]:
        slots = dict(self.program.slots)
        return [
            (slots[n], slice(slots[n] + frame.DIMS, slots[n] + frame.DIMS + rank), numpy_dtype(dtype), rank)
            for n, (dtype, rank) in zip(numbers, types, strict=True)
        ]

    def start_process(self) -> None:
        """Fresh state: after a fork, frames may be in use by threads that are gone."""
        self._lock = free_in_children(threading.Lock())
        self._frames = deque[_Frame]()

    def trim(self) -> None:
        """Free the memory of calls that have ended."""
        self._frames = deque[_Frame]()

    def fitting(self, step: RunNative, values: Sequence[Any]) -> list[np.ndarray]:
        """The values as native code reads them; InputError for other dtypes and ranks than a step has as inputs."""
        found = []
        for array, (_, _, dtype, rank) in zip(values, self._functions[step.function].inputs, strict=True):
            if array.dtype != dtype or array.ndim != rank:
                raise InputError(f"a value is {array.dtype} of {array.ndim} axes, not {dtype} of {rank}")
            found.append(np.require(array, requirements=("C", "A")))
        return found

    def run(self, number: int, arrays: Sequence[np.ndarray], look: Look) -> list[np.ndarray]:
        """The outputs of the step with the function of this number for its inputs, which fit."""
        frames = self._frames
        try:
            found = frames.pop()
        except IndexError:
            with self._lock:
                found = _Frame(self, self._pool())
        words: Any = found.words
        of, ended = self._functions[number], False
        try:
            for array, (at, dims, _, rank) in zip(arrays, of.inputs, strict=True):
                words[at] = address_of(array)
                if rank:
                    words[dims] = array.shape
            if found.memory.returned:
                found.memory.take_back()
            if of.loops:
                found.look, found.raised = look, None
                words[frame.NEXT_POLL] = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + POLL_NS
            began = perf_counter()
            if number in self._lasting:
                code = run_interruptible(of.run, found.address, words, frame.STOPS, self.stops)
            else:
                code = of.run(found.address)
            if perf_counter() - began >= LASTING_S:
                self._lasting.add(number)
            elif self._lasting:
                self._lasting.discard(number)
            if code:
                raise self._error(found, code)
            results = []
            for at, dims, dtype, _ in of.outputs:
                results.append(found.tensor(at, words[dims], dtype))
            ended = True
        finally:
            # a value lets go of its block when it gets another one, so that a single function need not be tidied up
            if self._shares_slots or not ended:
                self.code.clear(found.address)
            if not found.callback_ended:
                frames.append(found)
        return results

    def _error(self, found: _Frame, code: int) -> BaseException:
        words = found.words
        if code == frame.CANCELLED or (code == frame.PART_FAILED and words[frame.CODE] == _CANCELLED_PART):
            return cancelled()
        if code == frame.STOPPED:
            found.callback_ended = found.raised is None
            return found.raised or KeyboardInterrupt()
        if code in (frame.PART_FAILED, frame.MISFIT):
            part, at, shapes = words[frame.PART], frame.SHAPES, []
            for rank in self._input_ranks[part]:
                shapes.append(tuple(words[at : at + rank]))
                at += rank
            return self._failure(part, words[frame.CODE] if code == frame.PART_FAILED else 0, shapes)
        if code == frame.ROWS_DIFFER:
            return ExecutionError("the rows that a loop collects have different shapes", hint="pad them in the model")
        hint = "use smaller inputs (batch, sequence length)"
        if code == frame.NO_MEMORY:
            return NoMemoryError("no memory for a value", hint=hint)
        return ExecutionError("a size is below zero", hint=hint)


class _Memory:
    """The words of a frame. It is freed with all its blocks when neither a call nor a result needs it."""

    def __init__(self, code: StepsCode, count: int) -> None:
        self.words = (ctypes.c_int64 * count)()
        self.address = ctypes.addressof(self.words)
        self._code = code
        self.returned = deque[int]()
        weakref.finalize(self, _free, code, self.words, self.returned).atexit = False

    def give_back(self, block: int) -> None:
        """Take a block that nobody refers to any more; any thread may call this."""
        self.returned.append(block)

    def take_back(self) -> None:
        """Let values use blocks again that were given back."""
        while self.returned:
            self._code.release(self.returned.popleft())


def _free(code: StepsCode, words: Any, returned: deque[int]) -> None:
    while returned:
        code.release(returned.popleft())
    code.clear(ctypes.addressof(words))
    code.free(ctypes.addressof(words))


class _Frame:
    """What a running call owns."""

    def __init__(self, steps: NativeSteps, pool: int | None) -> None:
        program = steps.program
        self.memory = _Memory(steps.code, program.frame_words)
        self.words, self.address = self.memory.words, self.memory.address
        self._seen: dict[int, tuple[int, int, Any]] = {}  # by slot: an address, bytes, and these as an object of ctypes
        self.look: Look | None = None
        self.raised: BaseException | None = None
        self.callback_ended = False  # an interrupt came where Python drops what is raised, and nothing answers any more
        self.answers = _answers(weakref.ref(self))
        next(self.answers)
        self._poll = _POLL(self.answers.send)
        self.words[frame.POOL] = pool or 0
        self.words[frame.THREADS] = steps.threads
        self.words[frame.POLL] = ctypes.cast(self._poll, ctypes.c_void_p).value or 0
        self.words[frame.INTERVAL] = POLL_NS
        self.words[frame.STOPS] = ctypes.addressof(steps.stops)
        for k, addresses in enumerate(steps.parts):
            at = program.parts + frame.PART_WORDS * k
            self.words[at : at + frame.PART_WORDS] = [*addresses]

    def tensor(self, slot: int, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """The value of a slot: in its own memory where that is large, and else a copy."""
        words = self.words
        data, nbytes = words[slot], _product(shape) * dtype.itemsize
        if nbytes >= LEAST_GIVEN:
            block = words[slot + frame.BLOCK]
            if block and ctypes.c_int64.from_address(block).value == 1:
                return self._given(slot, shape, dtype, nbytes)
        seen = self._seen.get(slot)
        if seen is None or seen[0] != data or seen[1] < nbytes:  # mostly a value has the block that it had before
            memory: Any = (ctypes.c_char * nbytes).from_address(data)
            seen = self._seen[slot] = (data, nbytes, memory)
        return _array(shape, dtype, seen[2]).copy()

    def _given(self, slot: int, shape: Sequence[int], dtype: np.dtype, nbytes: int) -> np.ndarray:
        """The value of a slot in its block, which is the array's from now on."""
        data, block = self.words[slot], self.words[slot + frame.BLOCK]
        self.words[slot + frame.BLOCK] = 0
        raw: Any = (ctypes.c_char * nbytes).from_address(data)
        weakref.finalize(raw, _Memory.give_back, self.memory, block).atexit = False
        return np.frombuffer(raw, dtype).reshape(shape)


def _answers(itself: weakref.ref[_Frame]) -> Generator[int, int, None]:
    """Whether a loop shall go on, again and again. Python calls handlers of signals when it goes on here, inside of the
    `try`, as it would not at the beginning of a function: what they raise ends the loop."""
    answer = 1
    while True:
        try:
            while True:
                yield answer
                found, answer = itself(), 1
                if found is not None and found.look is not None:
                    found.look(found.words[frame.LOOP], found.words[frame.TRIP])
                    found.words[frame.LOOP] = frame.GO_ON
        except GeneratorExit:
            return
        except BaseException as error:  # it goes on in the thread that called, when native code has ended
            answer, found = 0, itself()
            if found is not None:
                found.raised = error
