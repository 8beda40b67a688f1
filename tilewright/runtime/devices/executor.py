"""Programs on a device: the sizes of a call, its copies, and its errors. Weights and states stay on the device, and
memory and kernels are made ready once.

A call is one copy of all inputs to the device, all launches, and one copy of all outputs back. A part of a model takes
what other parts have left on the device, and leaves there what it makes. Shapes may be others in each call: buffers
grow, kernels stay. The objects of the artefact are JSON (`codegen/devices/program.py`).
"""

from __future__ import annotations

import ctypes
import json
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.runtime.arena import address_of
from tilewright.runtime.artifact import Artifact, ConstantInfo
from tilewright.runtime.devices.device import (
    ALIGNMENT,
    CONSTANTS,
    ERRORS,
    INPUTS,
    NO_ERROR,
    OUTPUTS,
    STATES,
    BufferSizes,
    Device,
    DeviceCall,
)
from tilewright.runtime.devices.left import GivenInputs, LeftOutputs
from tilewright.runtime.devices.sizes import SizePlan, value_of
from tilewright.runtime.devices.states import DeviceStates
from tilewright.runtime.errors import DeviceError, TilewrightError
from tilewright.runtime.kept.away import bring_home, holder_of, holds, written
from tilewright.runtime.values.addresses import bytes_at, memory_of

_HANDING = threading.RLock()
Table = int | None
"""Where addresses of tensors stand."""


class DeviceExecutor(ABC):
    """Runs an artefact on a device, which a subclass opens."""

    run_profiled = None
    hands_over = False
    """Whether parts of a model leave on the device what they make (`Device.take`, `put` and `run`)."""

    def __init__(self, artifact: Artifact) -> None:
        found = json.loads(bytes(artifact.objects[-1]))
        program = found["programs"][artifact.run_symbol]
        self.artifact = artifact
        self.calls = program["calls"]
        names = dict.fromkeys(call.get("module", call["kernel"]) for call in self.calls)
        self.kernels = {name: found["kernels"][name] for name in names}
        self._weights = runs_of(artifact.constant_table)
        self._inputs, self._outputs = program["inputs"], program["outputs"]
        self._states = DeviceStates(artifact.states, self)
        self._left, self._given = LeftOutputs(self), GivenInputs()
        self.plan = None if program["plan"] is None else SizePlan(program["plan"])
        static = artifact.static_plan
        self._arena = static.arena if static is not None else program["plan"]["arena"]
        self._dims_count = artifact.dims_count
        self._lock = threading.RLock()
        self._device: Device | None = None
        self._dims: tuple[int, ...] | None = None
        self._sizes: BufferSizes | None = None
        self._is_running = False

    @abstractmethod
    def open(self) -> Device:
        """The device, without memory. DeviceError where there is none."""

    def more(self, found: Sequence[Any], dims: Sequence[int]) -> tuple[Any, ...]:
        """What else the code generator says of a launch, for these values of the variables."""
        return tuple(found)

    def run(self, call: int) -> int:
        """Run on the memory whose addresses stand at `call`; 0, or the number of an error."""
        return self.run_keeping(call, ())

    def run_keeping(self, call: int, held: Sequence[np.ndarray]) -> int:
        """The same with arrays of states, each of which its content may have left (`kept/away.py`). A call that fails
        leaves them as they were, or they are lost."""
        for array in held:
            if not holds(self, array):
                bring_home(array)
        return self._prepared(call, lambda device, inputs, outputs: self._run(device, inputs, outputs, held))

    def run_handing(
        self, call: int, given: Sequence[np.ndarray], made: Sequence[np.ndarray], freed: Container[int], of: object
    ) -> int:
        """The same for a part, with the arrays that it is given and makes, in a run `of` a model. What other parts have
        left on the device stays there, and so does what it makes; nobody needs arrays with the identities `freed`
        afterwards."""
        with _HANDING:  # of which each may need what another one has
            for array in given:
                if not isinstance(holder_of(array), DeviceExecutor):
                    bring_home(array)
            return self._prepared(call, lambda device, _, __: self._run_handing(device, given, made, freed, of))

    def _prepared(self, call: int, run: Callable[[Device, Table, Table], int]) -> int:
        """Run with the device, which is ready for the sizes of a call, and where its inputs and outputs stand."""
        _, inputs, outputs, _, _, _, dims, _ = (ctypes.c_void_p * 8).from_address(call)
        known = tuple((ctypes.c_int64 * self._dims_count).from_address(dims or 0)) if self._dims_count else ()
        with self._lock:
            is_new = self._device is None
            device = self.open() if self._device is None else self._device
            self._is_running = False
            try:
                with device.active():
                    if is_new or known != self._dims:
                        self._left.make_room(device)
                        self._prepare(device, known, is_new)
                    self._device, self._dims = device, known
                    return run(device, inputs, outputs)
            except BaseException:  # after an interrupt, too, the state of the device is not known
                self._close(device, is_whole=not self._is_running)
                raise

    def fetch(self, array: np.ndarray) -> None:
        """Let an array have what the device has."""
        with self._lock:
            device = self._device
            if device is None:
                return
            try:
                with device.active(), _driven(f"{device.name} did not give back what it holds"):
                    assert self._sizes is not None
                    self._states.fetch(device, self._sizes, array)
                    self._left.fetch(device, array)
            except BaseException:
                self._close(device, is_whole=False)
                raise

    def _close(self, device: Device, *, is_whole: bool) -> None:
        """Give everything back; states come home if the device is `is_whole`."""
        try:
            with device.active():
                self._states.give_back(device, self._sizes, is_whole=is_whole)
        except Exception:  # it is gone
            self._states.give_back(device, None, is_whole=False)
        finally:
            self._left.lose()
            self._given.forget()
            self._device = self._dims = None
            device.release()

    def _prepare(self, device: Device, dims: tuple[int, ...], is_new: bool) -> None:
        """Make room for the sizes of a call, and tell the device of them."""
        self._dims = None
        self._given.forget()
        sizes = self.sizes(dims)
        what = f"{device.name} could not be prepared, on which the model needs {sizes}"
        with _driven(what, f"{LESS_WEIGHTS}, {_WAYS}"):
            if device.allocate(sizes):
                weights = memoryview(self.artifact.constants).cast("B")
                for run in self._weights:
                    if run.end > run.begin:
                        device.write(CONSTANTS, run.place, np.asarray(weights[run.begin : run.end]))
            if is_new:
                device.load(self.kernels, self.calls)
            device.prepare([self._call(call, sizes, dims) for call in self.calls])
        self._sizes = sizes
        self._states.tell_again()

    def sizes(self, dims: Sequence[int]) -> BufferSizes:
        """Those of a program with these values of its variables."""
        arena = -(-value_of(self._arena, dims) // ALIGNMENT) * ALIGNMENT
        room = max([0, *(value_of(call["room"], dims) for call in self.calls)])
        inputs, outputs = ([value_of(e, dims) for e in sizes] for sizes in (self._inputs, self._outputs))
        constants, states = device_bytes(self.artifact.constant_table), self._states
        return BufferSizes(inputs, outputs, arena, room, constants, states.sizes, states.swapped, states.known)

    def _call(self, call: dict[str, Any], sizes: BufferSizes, dims: Sequence[int]) -> DeviceCall:
        following = len(sizes.outputs) + len(sizes.states)
        starts = {INPUTS: sizes.input_places, STATES: sizes.state_places}
        starts[OUTPUTS] = sizes.output_places[:following]
        starts[OUTPUTS] += [sizes.place_of_following(k)[1] for k in range(len(sizes.states))]

        def place(buffer: int, index: int, at: Any) -> tuple[int, int]:
            found = value_of(at, dims)
            if buffer == CONSTANTS:
                run = bisect_right(self._weights, found, key=lambda each: each.begin) - 1
                return buffer, self._weights[run].place_of(found) if self._weights else 0
            return buffer, found + (starts[buffer][index] if buffer in starts else 0)

        grids = [(tuple(value_of(n, dims) for n in groups), e, more) for e, groups, *more in call["launches"]]
        launches = tuple((entry, groups, self.more(more, dims)) for groups, entry, more in grids if all(groups))
        numbers = tuple(value_of(e, dims) for e in call["dims"])
        places = tuple(place(*found) for found in call["places"])
        return DeviceCall(call["kernel"], places, numbers, sizes.arena, call["errors"], launches, call)

    def _run(
        self, device: Device, inputs: Table, outputs: Table, held: Sequence[np.ndarray]
    ) -> int:
        """One call with the tensors whose addresses stand in two tables, and arrays of states."""
        sizes = self._sizes
        assert sizes is not None
        with _driven(f"{device.name} failed"):
            self._states.bring(device, sizes, held)
            device.write(INPUTS, 0, _joined(memory_of(inputs, sizes.inputs), sizes.input_places))
            device.write(ERRORS, 0, np.full(1, NO_ERROR, np.uint32).view(np.uint8))
            self._is_running = True
            device.launch()
            error, taken = device.read()
            if not error:
                raise DeviceError(f"{device.name} has not run the model; it may have been reset or taken away")
            for array, place in zip(memory_of(outputs, sizes.outputs), sizes.output_places, strict=False):
                array[:] = taken[place:][: array.nbytes]
            if error != NO_ERROR:
                self._states.fail(held)
                return error
            self._states.follow(device, sizes, held, taken)
        return 0

    def _run_handing(
        self, device: Device, given: Sequence[np.ndarray], made: Sequence[np.ndarray], freed: Container[int], of: object
    ) -> int:
        sizes = self._sizes
        assert sizes is not None
        with _driven(f"{device.name} failed"):
            for array, place in zip(given, sizes.input_places, strict=False):
                if array.nbytes and not self._given.has(of, place, array):
                    self._give(device, array, place)
            self._left.make_room(device, freed)
            for array in given:
                if id(array) in freed:
                    written(array)
            self._is_running = True
            error = device.run()
            if error != NO_ERROR:
                return error
            self._left.leave(made, sizes.output_places)
        return 0

    def _give(self, device: Device, array: np.ndarray, place: int) -> None:
        """Copy an array to the inputs, from wherever it is."""
        holder = holder_of(array)
        if isinstance(holder, DeviceExecutor):
            with holder._lock:
                other = holder._device
                if other is not None and holds(holder, array):
                    device.take(other, holder._left.place_of(array), place, array.nbytes)
                    return
        bring_home(array)
        device.put(place, bytes_at(address_of(array), array.nbytes))

    def create_pool(self, threads: int, spin_ns: int) -> int | None:
        return None

    def destroy_pool(self, address: int) -> None:
        raise AssertionError("there is no pool")


@dataclass(frozen=True)
class WeightRun:
    """Weights that lie behind each other: where they begin and end on the host, and their `place` on the device."""

    begin: int
    end: int
    place: int

    def place_of(self, at: int) -> int:
        """Where on the device a byte is that is `at` on the host."""
        return self.place + at - self.begin


def runs_of(table: Sequence[ConstantInfo]) -> list[WeightRun]:
    """The weights that a program reads, without those of others that lie between them."""
    runs: list[WeightRun] = []
    for info in sorted(table, key=lambda info: info.offset):
        begin, end = info.offset // ALIGNMENT * ALIGNMENT, info.offset + info.nbytes
        if runs and begin <= runs[-1].end + ALIGNMENT:
            runs[-1] = replace(runs[-1], end=max(end, runs[-1].end))
        else:
            place = runs[-1].place_of(-(-runs[-1].end // ALIGNMENT) * ALIGNMENT) if runs else 0
            runs.append(WeightRun(begin, end, place))
    return runs


def device_bytes(table: Sequence[ConstantInfo]) -> int:
    """Bytes that weights take on a device."""
    runs = runs_of(table)
    return runs[-1].place_of(runs[-1].end) if runs else 0


def _joined(arrays: Sequence[np.ndarray], places: Sequence[int]) -> np.ndarray:
    """Bytes with each array at its place; the last place is the end."""
    found = np.zeros(places[-1], np.uint8)
    for array, place in zip(arrays, places, strict=False):
        found[place : place + array.nbytes] = array
    return found


_WAYS = "try again, free memory of the device, use smaller inputs, or compile the model for the CPU (target='host')"
LESS_WEIGHTS = "say with memory=BYTES in the target how many bytes of weights the device holds"
"""The way out where weights have no room: the CPU computes what is too much."""


@contextmanager
def _driven(what: str, hint: str = _WAYS) -> Iterator[None]:
    """What a driver raises becomes a DeviceError that says what was tried."""
    try:
        yield
    except TilewrightError:
        raise
    except Exception as error:
        raise DeviceError(f"{what}: {first_lines(error)}", hint=hint) from error


def first_lines(error: BaseException) -> str:
    """What an error of a driver says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:12])[:900] or type(error).__name__
