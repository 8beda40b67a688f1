"""Running steps in native code: frames with the memory of values, which calls take in turn."""

from __future__ import annotations

import ctypes
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.arena import address_of
from tilewright.runtime.errors import ExecutionError, InputError
from tilewright.runtime.staged import frame
from tilewright.runtime.staged.program import RunNative, StagedProgram, steps_within
from tilewright.runtime.storage.loader import StepsCode
from tilewright.runtime.values.dtypes import numpy_dtype

POLL_NS = 10_000_000
"""After so much time a loop lets the host look at signals and the clock."""

LEAST_GIVEN = 1 << 14
"""Bytes of an output from which on it is not copied: the caller gets the memory that it was computed in."""

_POLL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)

Look = Callable[[int, int], None]
"""Called with the number of a loop and of its trip; raises what shall end the call."""


_Place = tuple[int, int, np.dtype, int]
"""The number of a value, its slot, its dtype and its rank."""


class NativeSteps:
    """The native steps of a program. `parts` are, for each part, the addresses of its plan, its code and its
    constants; `failure` makes the error of a part, a code of it (0 where its inputs do not fit) and their shapes."""

    def __init__(
        self,
        program: StagedProgram,
        code: StepsCode,
        parts: Sequence[tuple[int, int, int]],
        input_ranks: Sequence[Sequence[int]],
        threads: int,
        pool: Callable[[], int | None],
        failure: Callable[[int, int, list[tuple[int, ...]]], Exception],
    ) -> None:
        self.program, self.code, self.parts, self.threads = program, code, parts, threads
        self._input_ranks, self._pool, self._failure = input_ranks, pool, failure
        steps = [s for s in steps_within(program.steps) if isinstance(s, RunNative)]
        self._inputs = {s.function: self._places(s.inputs, s.input_types) for s in steps}
        self._outputs = {s.function: self._places(s.outputs, s.output_types) for s in steps}
        self.start_process()

    def _places(self, numbers: Sequence[int], types: Sequence[tuple[str, int]]) -> list[_Place]:
        slots = dict(self.program.slots)
        return [(n, slots[n], numpy_dtype(dtype), rank) for n, (dtype, rank) in zip(numbers, types, strict=True)]

    def start_process(self) -> None:
        """Fresh state: after a fork, frames may be in use by threads that are gone."""
        self._lock = threading.Lock()
        self._frames = deque[_Frame]()

    def trim(self) -> None:
        """Free the memory of calls that have ended."""
        self._frames = deque[_Frame]()

    def run(self, step: RunNative, values: list[Any], look: Look) -> None:
        """Run a step, with its inputs from `values` and its outputs to there."""
        frames = self._frames
        try:
            found = frames.pop()
        except IndexError:
            with self._lock:
                found = _Frame(self, self._pool())
        try:
            self._run(found, step, values, look)
        finally:
            self.code.clear(found.address)
            if not found.callback_ended:
                frames.append(found)

    def _run(self, found: _Frame, step: RunNative, values: list[Any], look: Look) -> None:
        words = found.words
        held = []
        for number, at, dtype, rank in self._inputs[step.function]:
            array = values[number]
            if (array.dtype is not dtype and array.dtype != dtype) or array.ndim != rank:
                raise InputError(f"a value is {array.dtype} of {array.ndim} axes, not {dtype} of {rank}")
            if not array.flags.carray:
                array = np.require(array, requirements=("C", "A"))
                held.append(array)
            words[at] = address_of(array)
            if rank:
                words[at + frame.DIMS : at + frame.DIMS + rank] = array.shape
        found.memory.take_back()
        found.look, found.raised = look, None
        words[frame.NEXT_POLL] = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + POLL_NS
        code = self.code.run[step.function](found.address)
        if code != frame.DONE:
            raise self._error(found, code)
        for number, at, dtype, rank in self._outputs[step.function]:
            values[number] = found.tensor(at, tuple(words[at + frame.DIMS : at + frame.DIMS + rank]), dtype)

    def _error(self, found: _Frame, code: int) -> BaseException:
        words = found.words
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
        what = "no memory for a value" if code == frame.NO_MEMORY else "a size is below zero"
        return ExecutionError(what, hint="use smaller inputs (batch, sequence length)")


class _Memory:
    """The words of a frame. It is freed with all its blocks when neither a call nor a result needs it."""

    def __init__(self, code: StepsCode, count: int) -> None:
        self.words = (ctypes.c_int64 * count)()
        self.address = ctypes.addressof(self.words)
        self._code = code
        self._returned = deque[int]()
        weakref.finalize(self, _free, code, self.words, self._returned).atexit = False

    def give_back(self, block: int) -> None:
        """Take a block that nobody refers to any more; any thread may call this."""
        self._returned.append(block)

    def take_back(self) -> None:
        """Let values use blocks again that were given back."""
        while self._returned:
            self._code.release(self._returned.popleft())


def _free(code: StepsCode, words: Any, returned: deque[int]) -> None:
    while returned:
        code.release(returned.popleft())
    code.free(ctypes.addressof(words))


class _Frame:
    """What a running call owns."""

    def __init__(self, steps: NativeSteps, pool: int | None) -> None:
        program = steps.program
        self.memory = _Memory(steps.code, program.frame_words)
        self.words, self.address = self.memory.words, self.memory.address
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
        for k, addresses in enumerate(steps.parts):
            at = program.parts + frame.PART_WORDS * k
            self.words[at : at + frame.PART_WORDS] = [*addresses]

    def tensor(self, slot: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The value of a slot: in its own memory where that is large, and else a copy."""
        words = self.words
        data, block = words[slot], words[slot + frame.BLOCK]
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < LEAST_GIVEN or not block or ctypes.c_int64.from_address(block).value != 1:
            found = np.empty(shape, dtype)
            ctypes.memmove(address_of(found), data, nbytes)
            return found
        words[slot + frame.BLOCK] = 0
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
