"""Programs on a GPU, through the library `wgpu`: shaders of an artefact, its weights resident, and its calls.

A call is one copy of all inputs and states to the device, one command buffer with all dispatches, and one copy of all
outputs and states back. Shapes may be others in each call: buffers grow, shaders stay. The objects of the artefact are
JSON (`codegen/wgsl/program.py`).
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from tilewright.runtime.artifact import Artifact
from tilewright.runtime.devices.loop_limit import most_iterations
from tilewright.runtime.devices.sizes import SizePlan, value_of
from tilewright.runtime.errors import DeviceError, ExecutionError, TilewrightError
from tilewright.runtime.executor import bytes_at

ALIGNMENT = 256
"""Of tensors in the buffers of inputs and outputs, and of what dispatches are told, as every device allows."""
_TOLD = 1024  # bytes that a dispatch is told
_LARGEST = 2**31 - 1  # size or index in a kernel
_MOST_GROUPS = 65535  # along an axis of a grid; loops of kernels go around
_SAFE_ITERATIONS = 1 << 15  # of a thread, which every driver is trusted with
_NO_ERROR = 0xFFFFFFFF
_ARENA, _CONSTANTS, _INPUTS, _OUTPUTS, _ERRORS, _CALLS = range(6)


@cache
def device() -> Any:
    """The GPU of this process, with all that its adapter offers. DeviceError where there is none."""
    try:
        import wgpu
    except ImportError as error:
        raise DeviceError(
            "the model was compiled for a GPU, which the package wgpu runs, and it is not installed",
            hint="pip install 'tilewright[webgpu]', or compile the model for the CPU (target='host')",
        ) from error
    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        wanted = ("max-storage-buffer-binding-size", "max-buffer-size")
        return adapter.request_device_sync(required_limits={name: adapter.limits[name] for name in wanted})
    except Exception as error:  # whatever a driver may raise
        raise DeviceError(
            f"no GPU was found: {_first_line(error)}",
            hint="install a driver of Vulkan, Metal or Direct3D 12 (mesa-vulkan-drivers has one that needs no GPU), "
            "or compile the model for the CPU (target='host')",
        ) from error


class GpuExecutor:
    """An artefact on the device: DeviceError where that cannot hold it."""

    run_profiled = None

    def __init__(self, artifact: Artifact) -> None:
        found = json.loads(bytes(artifact.objects[0]))
        program = found["programs"][artifact.run_symbol]
        self.calls = program["calls"]
        self.modules = {call["module"]: found["modules"][call["module"]] for call in self.calls}
        self.constants = memoryview(artifact.constants).cast("B")
        self.inputs, self.outputs, self.states = program["inputs"], program["outputs"], program["states"]
        self.swapped = [state.way == "swapped" for state in artifact.states]
        self.plan = None if program["plan"] is None else SizePlan(program["plan"])
        static = artifact.static_plan
        self._arena = static.arena if static is not None else program["plan"]["arena"]
        self._dims_count = artifact.dims_count
        self._lock = threading.Lock()
        self._device: _OnDevice | None = None

    def run(self, call: int) -> int:
        """Run on the memory whose addresses stand at `call`."""
        _, inputs, outputs, _, _, _, dims, _ = (ctypes.c_void_p * 8).from_address(call)
        known = tuple((ctypes.c_int64 * self._dims_count).from_address(dims or 0)) if self._dims_count else ()
        with self._lock:
            sizes = self.sizes(known)
            if self._device is None or not self._device.is_sound:
                if self._device is not None:  # a call failed or was interrupted: the GPU may be another one now
                    self._device = None
                    device.cache_clear()
                _check(device().limits, sizes)
                self._device = _OnDevice(self)
            self._device.prepare(known, sizes)
            return self._device.run(inputs, outputs)

    def sizes(self, dims: Sequence[int]) -> BufferSizes:
        """Those of a program with these values of its variables."""
        arena = -(-value_of(self._arena, dims) // ALIGNMENT) * ALIGNMENT
        room = max([0, *(value_of(call["room"], dims) for call in self.calls)])
        return BufferSizes(
            [value_of(e, dims) for e in self.inputs], [value_of(e, dims) for e in self.outputs],
            arena, room, len(self.constants), [value_of(e, dims) for e in self.states], self.swapped,
        )  # fmt: skip

    def create_pool(self, threads: int, spin_ns: int) -> int | None:
        return None

    def destroy_pool(self, address: int) -> None:
        raise AssertionError("there is no pool")


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
        """Of the buffers of a program."""
        return [self.arena + self.room, self.constants, self.input_places[-1], self.output_places[-1], 4]


class _OnDevice:
    """Buffers, pipelines and bind groups of an artefact on the device."""

    def __init__(self, code: GpuExecutor) -> None:
        import wgpu

        self.wgpu, self.gpu, self.code = wgpu, device(), code
        self.buffers: list[Any] = []
        self.sizes: BufferSizes | None = None
        self.dims: tuple[int, ...] = ()
        self.is_sound = True
        with self._driven("the GPU could not be prepared"):
            self._pipelines()

    @contextmanager
    def _driven(self, what: str) -> Iterator[None]:
        """What a driver raises becomes a DeviceError that says what was tried. After that, and after an interrupt, the
        state of the device is not known."""
        self.is_sound = False
        try:
            yield
        except TilewrightError:
            self.is_sound = True
            raise
        except Exception as error:
            raise DeviceError(
                f"{what}: {_first_line(error)}",
                hint="try again, free memory of the device, use smaller inputs, or compile the model for the CPU "
                "(target='host')",
            ) from error
        self.is_sound = True

    def prepare(self, dims: tuple[int, ...], sizes: BufferSizes) -> None:
        """Make room for these sizes, and tell the dispatches of them."""
        if self.sizes is not None and dims == self.dims:
            return
        self.sizes = None
        _check(self.gpu.limits, sizes)
        with self._driven(f"the GPU could not be prepared, on which the model needs {sum(sizes.buffers)} bytes"):
            had = self.buffers[:5] or [None] * 5
            if any(b is None or _rounded(n) > b.size for n, b in zip(sizes.buffers, had, strict=True)):
                self._allocate(sizes)
            self._tell(dims, sizes)
        self.sizes, self.dims = sizes, dims

    def _allocate(self, sizes: BufferSizes) -> None:
        """Buffers of at least these sizes, with the weights in theirs."""
        usage = self.wgpu.BufferUsage
        store = usage.STORAGE | usage.COPY_DST | usage.COPY_SRC
        before, self.buffers = self.buffers, []
        for buffer in before:
            buffer.destroy()
        found = [self.gpu.create_buffer(size=_rounded(max(n, ALIGNMENT)), usage=store) for n in sizes.buffers]
        told = _TOLD * max(1, len(self.code.calls))
        found.append(self.gpu.create_buffer(size=told, usage=usage.UNIFORM | usage.COPY_DST))
        self.back = self.gpu.create_buffer(
            size=found[_OUTPUTS].size + ALIGNMENT, usage=usage.MAP_READ | usage.COPY_DST
        )
        if len(self.code.constants):
            padded = np.zeros(_rounded(len(self.code.constants)), np.uint8)
            padded[: len(self.code.constants)] = self.code.constants
            self.gpu.queue.write_buffer(found[_CONSTANTS], 0, padded)
        bound = [buffer.size for buffer in found[:-1]] + [_TOLD]
        self.group = self.gpu.create_bind_group(
            layout=self.layout,
            entries=[
                {"binding": k, "resource": {"buffer": buffer, "offset": 0, "size": size}}
                for k, (buffer, size) in enumerate(zip(found, bound, strict=True))
            ],
        )
        self.buffers = found

    def _tell(self, dims: tuple[int, ...], sizes: BufferSizes) -> None:
        """Where the arguments of each dispatch are, its sizes, and how many groups it has."""
        calls = self.code.calls
        told = np.zeros((max(1, len(calls)), _TOLD // 4), np.uint32)
        tensors = {_INPUTS: sizes.input_places, _OUTPUTS: sizes.output_places}
        self.dispatches: list[tuple[Any, list[int], int]] = []
        for k, call in enumerate(calls):
            starts = [
                (tensors[base][index] if base in tensors else 0) + value_of(at, dims)
                for base, index, at in call["places"]
            ]
            numbers = [value_of(e, dims) for e in call["dims"]]
            _check_numbers(numbers)
            told[k, : len(starts) + 1] = [*starts, sizes.arena]
            told[k, len(starts) + 1 :][: len(numbers)] = np.array(numbers, np.int32).view(np.uint32)
            told[k, -1] = call["errors"]
            for entry, counts, iterations in call["grids"]:
                groups = [min(value_of(n, dims), _MOST_GROUPS) for n in counts]
                self._check_iterations(call["kernel"], None if iterations is None else value_of(iterations, dims))
                self.dispatches.append((self.pipelines[call["module"], entry], groups, k * _TOLD))
        self.gpu.queue.write_buffer(self.buffers[_CALLS], 0, told)

    def _check_iterations(self, kernel: str, needed: int | None) -> None:
        """DeviceError where a thread of the kernel may go through more iterations than the driver lets it."""
        if needed is not None and needed <= _SAFE_ITERATIONS:
            return
        most = most_iterations(self.wgpu, self.gpu)
        if most is not None and (needed is None or needed > most):
            count = "so many iterations as data decide" if needed is None else f"up to {needed} iterations of loops"
            raise DeviceError(
                f"a thread of kernel '{kernel}' goes through {count}, and the driver of this GPU ends threads after "
                f"{most}, without an error",
                hint="use another driver (VK_DRIVER_FILES names one), smaller inputs, or compile the model for the CPU "
                "(target='host')",
            )

    def _pipelines(self) -> None:
        wgpu = self.wgpu
        kinds = ["storage", "read-only-storage", "read-only-storage", "storage", "storage", "uniform"]
        entries = [
            {
                "binding": k,
                "visibility": wgpu.ShaderStage.COMPUTE,
                "buffer": {"type": kind, "has_dynamic_offset": kind == "uniform"},
            }
            for k, kind in enumerate(kinds)
        ]
        self.layout = self.gpu.create_bind_group_layout(entries=entries)
        whole = self.gpu.create_pipeline_layout(bind_group_layouts=[self.layout])
        modules = {name: self.gpu.create_shader_module(code=text) for name, text in self.code.modules.items()}
        self.pipelines: dict[tuple[str, str], Any] = {}
        for call in self.code.calls:
            for entry, _, _ in call["grids"]:
                key = call["module"], entry
                if key not in self.pipelines:
                    self.pipelines[key] = self.gpu.create_compute_pipeline(
                        layout=whole, compute={"module": modules[key[0]], "entry_point": entry}
                    )

    def run(self, inputs: int | None, outputs: int | None) -> int:
        """One call with the tensors whose addresses stand in two tables; 0, or the number of an error."""
        with self._driven("the GPU failed"):
            error = self._run(inputs, outputs)
            if not error:
                raise RuntimeError("it has not run the model; it may have been reset or taken away")
        return 0 if error == _NO_ERROR else error

    def _run(self, inputs: int | None, outputs: int | None) -> int:
        """What stands in the word for errors afterwards."""
        sizes, queue = self.sizes, self.gpu.queue
        assert sizes is not None
        read = memory_of(inputs, [*sizes.inputs, *sizes.states])
        given, states = read[: len(sizes.inputs)], read[len(sizes.inputs) :]
        queue.write_buffer(self.buffers[_INPUTS], 0, _joined(given, sizes.input_places))
        if states:
            places = sizes.output_places[len(sizes.outputs) :][: len(states) + 1]
            queue.write_buffer(self.buffers[_OUTPUTS], places[0], _joined(states, [p - places[0] for p in places]))
        queue.write_buffer(self.buffers[_ERRORS], 0, np.full(1, _NO_ERROR, np.uint32))
        encoder = self.gpu.create_command_encoder()
        work = encoder.begin_compute_pass()
        for pipeline, groups, told in self.dispatches:
            work.set_pipeline(pipeline)
            work.set_bind_group(0, self.group, [told])
            work.dispatch_workgroups(*groups)
        work.end()
        size = _rounded(sizes.buffers[_OUTPUTS])
        if size:
            encoder.copy_buffer_to_buffer(self.buffers[_OUTPUTS], 0, self.back, ALIGNMENT, size)
        encoder.copy_buffer_to_buffer(self.buffers[_ERRORS], 0, self.back, 0, 4)
        queue.submit([encoder.finish()])
        self.back.map_sync("READ")
        try:
            taken = np.frombuffer(self.back.read_mapped(0, ALIGNMENT + size, copy=True), np.uint8)
        finally:
            self.back.unmap()
        error = int(taken[:4].view(np.uint32)[0])
        written = memory_of(outputs, [*sizes.outputs, *sizes.following])
        for array, place in zip(written, sizes.output_places[: len(sizes.outputs)], strict=False):
            array[:] = taken[ALIGNMENT + place :][: array.nbytes]
        if states and error == _NO_ERROR:  # a call that fails leaves them as they were
            for array, place in sizes.updates(states, written):
                found = taken[ALIGNMENT + place :][: array.nbytes]
                np.copyto(array, found, where=array != found)  # memory that a cache has not come to stays untouched
        return error


def _joined(arrays: Sequence[np.ndarray], places: Sequence[int]) -> np.ndarray:
    """Bytes with each array at its place; the last place is the end."""
    found = np.zeros(max(_rounded(places[-1]), 4), np.uint8)
    for array, place in zip(arrays, places, strict=False):
        found[place : place + array.nbytes] = array
    return found


def _check(limits: Mapping[str, int], sizes: BufferSizes) -> None:
    """DeviceError where a buffer of the device has no room for these sizes."""
    most = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])
    names = ("the arena", "weights", "inputs", "outputs", "errors")
    for size, name in zip(sizes.buffers, names, strict=True):
        if size > most:
            raise DeviceError(
                f"the model needs {size} bytes for {name}, and one buffer of this GPU has at most {most}",
                hint="use a smaller batch or shorter weights, or compile the model for the CPU (target='host')",
            )


def _check_numbers(numbers: Sequence[int]) -> None:
    """ExecutionError for a size that kernels cannot compute with."""
    if numbers and (most := max(numbers, key=abs)) not in range(-_LARGEST, _LARGEST + 1):
        raise ExecutionError(
            f"a size or index of the call is {most}, and kernels on a GPU have those of 32 bits",
            hint="compile the model for the CPU (target='host')",
        )


def _places(sizes: Sequence[int]) -> list[int]:
    """Where each tensor begins in the buffer of all, and last how long that is."""
    return list(accumulate((-(-n // ALIGNMENT) * ALIGNMENT for n in sizes), initial=0))


def memory_of(table: int | None, sizes: Sequence[int]) -> list[np.ndarray]:
    """The bytes of tensors, whose addresses stand in a table."""
    addresses = (ctypes.c_void_p * len(sizes)).from_address(table or 0) if sizes else ()
    return [bytes_at(address, n) for address, n in zip(addresses, sizes, strict=True)]


def _rounded(size: int) -> int:
    return -(-size // 4) * 4


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:12])[:900] or type(error).__name__
