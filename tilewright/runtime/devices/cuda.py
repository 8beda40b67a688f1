"""Programs on a GPU of NVIDIA: PTX of an artefact, its weights resident, and its calls.

A call is one copy of all inputs to the device, the launches, and one copy of all outputs back. From the second call
with the same sizes on, it is one launch of a graph of these. The objects of the artefact are JSON
(`codegen/ptx/program.py`).

Memory of the device, each part from a multiple of 256 bytes on: the arena with the device memory of kernels behind it;
constants; and what is copied: inputs, the word for the first error, outputs. The host has the latter once more, in
pages that stay where they are.
"""

from __future__ import annotations

import ctypes
import json
import re
import threading
import weakref
from collections.abc import Sequence
from ctypes import byref, c_void_p
from typing import Any

import numpy as np

from tilewright.runtime.artifact import Artifact
from tilewright.runtime.devices.cuda_driver import CudaDevice, CudaDriver, device, launch
from tilewright.runtime.devices.sizes import SizePlan, value_of
from tilewright.runtime.devices.webgpu import ALIGNMENT, BufferSizes, memory_of
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.executor import bytes_at

_MOST_GROUPS = (2**31 - 1, 65535, 65535)  # along the axes of a grid; loops of kernels go around
_NO_ERROR = 0xFFFFFFFF
_INPUTS, _OUTPUTS = 2, 3


class CudaExecutor:
    """An artefact on the device: DeviceError where that cannot hold it."""

    run_profiled = None

    def __init__(self, artifact: Artifact) -> None:
        found = json.loads(bytes(artifact.objects[0]))
        program = found["programs"][artifact.run_symbol]
        self.calls = program["calls"]
        self.kernels = {call["kernel"]: found["kernels"][call["kernel"]] for call in self.calls}
        self.constants = memoryview(artifact.constants).cast("B")
        self.inputs, self.outputs = program["inputs"], program["outputs"]
        self.plan = None if program["plan"] is None else SizePlan(program["plan"])
        self.machine = artifact.target.cpu
        static = artifact.static_plan
        self._arena = static.arena if static is not None else program["plan"]["arena"]
        self._dims_count = artifact.dims_count
        self._lock = threading.Lock()
        self._device: _OnCuda | None = None

    def run(self, call: int) -> int:
        """Run on the memory whose addresses stand at `call`."""
        _, inputs, outputs, _, _, _, dims, _ = (c_void_p * 8).from_address(call)
        known = tuple((ctypes.c_int64 * self._dims_count).from_address(dims or 0)) if self._dims_count else ()
        with self._lock:
            gpu = device()
            with gpu.current():
                if self._device is None:
                    self._device = _OnCuda(self, gpu)
                made = self._device
                try:
                    return made.run(known, inputs, outputs)
                except BaseException:  # after an interrupt, too, the state of the device is not known
                    self._device = None
                    made.release()
                    raise

    def sizes(self, dims: Sequence[int]) -> BufferSizes:
        """Those of a program with these values of its variables."""
        arena = -(-value_of(self._arena, dims) // ALIGNMENT) * ALIGNMENT
        room = max([0, *(value_of(call["room"], dims) for call in self.calls)])
        return BufferSizes(
            [value_of(e, dims) for e in self.inputs], [value_of(e, dims) for e in self.outputs],
            arena, room, len(self.constants),
        )  # fmt: skip

    def create_pool(self, threads: int, spin_ns: int) -> int | None:
        return None

    def destroy_pool(self, address: int) -> None:
        raise AssertionError("there is no pool")


class _Held:
    """What the driver holds for an artefact, which is given back in the opposite order."""

    def __init__(self, gpu: CudaDevice) -> None:
        self._gpu = gpu
        self._given: list[tuple[str, Any]] = []

    def keep(self, release: str, handle: Any) -> Any:
        self._given.append((release, handle))
        return handle

    def drop(self, handle: Any) -> None:
        """Give one thing back now."""
        for release, kept in [found for found in self._given if found[1] == handle]:
            self._given.remove((release, kept))
            self._gpu.driver.tried(release, kept)

    def release(self) -> None:
        try:
            with self._gpu.current():
                while self._given:
                    release, handle = self._given.pop()
                    self._gpu.driver.tried(release, handle)
        except DeviceError:  # the process ends, or the device is gone, and all of it with it
            self._given.clear()


class _OnCuda:
    """Memory, kernels and the graph of an artefact on the device."""

    def __init__(self, code: CudaExecutor, gpu: CudaDevice) -> None:
        self.code, self.gpu, self.driver = code, gpu, gpu.driver
        self.held = _Held(gpu)
        self.release = weakref.finalize(self, self.held.release)
        self.dims: tuple[int, ...] | None = None
        self.sizes: BufferSizes | None = None
        self.graph: int | None = None
        self.work = self.shared = self.host = 0
        self.work_bytes = self.shared_bytes = -1
        try:
            _check_capability(gpu, code.machine)
            self.stream = self.held.keep("cuStreamDestroy_v2", self.driver.handle("cuStreamCreate", 0))
            self._load()
        except BaseException:
            self.release()
            raise

    def _load(self) -> None:
        """Kernels and weights."""
        modules = {
            name: self.held.keep("cuModuleUnload", self.driver.module(ptx)) for name, ptx in self.code.kernels.items()
        }
        entries = {(call["kernel"], entry) for call in self.code.calls for entry, _, _ in call["launches"]}
        self.functions = {
            entry: self.driver.handle("cuModuleGetFunction", modules[kernel], entry.encode())
            for kernel, entry in entries
        }
        size = len(self.code.constants)
        self.constants = self._allocated(size)
        if size:
            data = np.frombuffer(self.code.constants, np.uint8)
            self.driver.call("cuMemcpyHtoD_v2", self.constants, data.ctypes.data, size)

    def _allocated(self, size: int) -> int:
        return int(self.held.keep("cuMemFree_v2", self.gpu.allocate(size)))

    def run(self, dims: tuple[int, ...], inputs: int | None, outputs: int | None) -> int:
        """One call with the tensors whose addresses stand in two tables; 0, or the number of an error."""
        is_known = dims == self.dims
        if not is_known:
            self._prepare(dims)
        sizes = self.sizes
        assert sizes is not None
        memory = bytes_at(self.host, self.shared_bytes)
        for place, array in zip(sizes.input_places, memory_of(inputs, sizes.inputs), strict=False):
            memory[place : place + array.nbytes] = array
        memory[self.at_error : self.at_error + 4].view(np.uint32)[0] = _NO_ERROR
        if is_known and self.graph is None:
            self.graph = self._recorded()
        if self.graph is None:
            self._submit()
        else:
            self.driver.call("cuGraphLaunch", self.graph, self.stream)
        self.driver.call("cuStreamSynchronize", self.stream)
        self.dims = dims
        for place, array in zip(sizes.output_places, memory_of(outputs, sizes.outputs), strict=False):
            array[:] = memory[self.at_outputs + place :][: array.nbytes]
        error = int(memory[self.at_error : self.at_error + 4].view(np.uint32)[0])
        return 0 if error == _NO_ERROR else error

    def _prepare(self, dims: tuple[int, ...]) -> None:
        """Make room for the sizes of a call."""
        self.dims = None
        if self.graph is not None:
            self.held.drop(self.graph)
            self.graph = None
        self.sizes = sizes = self.code.sizes(dims)
        self.at_error = sizes.input_places[-1]
        self.at_outputs = self.at_error + ALIGNMENT
        needed = self.at_outputs + sizes.output_places[-1]
        if sizes.arena + sizes.room > self.work_bytes:
            self.held.drop(self.work)
            self.work_bytes = -1
            self.work = self._allocated(sizes.arena + sizes.room)
            self.work_bytes = sizes.arena + sizes.room
        if needed > self.shared_bytes:
            self.held.drop(self.shared)
            self.held.drop(self.host)
            self.shared_bytes = -1
            self.shared = self._allocated(needed)
            self.host = int(self.held.keep("cuMemFreeHost", self.driver.handle("cuMemHostAlloc", needed, 0)))
            self.shared_bytes = needed
        self.launches = [each for call in self.code.calls for each in self._launches(call, dims)]

    def _launches(self, call: dict[str, Any], dims: Sequence[int]) -> list[tuple[Any, ...]]:
        """Functions, groups, threads and arguments of a kernel."""
        sizes = self.sizes
        assert sizes is not None
        bases = [self.work, self.constants, self.shared, self.shared + self.at_outputs]
        tensors = {_INPUTS: sizes.input_places, _OUTPUTS: sizes.output_places}
        places = [
            bases[base] + (tensors[base][index] if base in tensors else 0) + value_of(at, dims)
            for base, index, at in call["places"]
        ]
        numbers = [value_of(e, dims) for e in call["dims"]]
        arguments = [self.shared + self.at_error, call["errors"], *places, *numbers, self.work + sizes.arena]
        found = []
        for entry, counts, threads in call["launches"]:
            groups = [min(value_of(n, dims), most) for n, most in zip(counts, _MOST_GROUPS, strict=True)]
            found.append((self.functions[entry], groups, threads, arguments))
        return found

    def _submit(self) -> None:
        """Put a call into the stream."""
        sizes, driver = self.sizes, self.driver
        assert sizes is not None
        driver.call("cuMemcpyHtoDAsync_v2", self.shared, self.host, self.at_outputs, self.stream)
        for function, groups, threads, arguments in self.launches:
            launch(driver, function, groups, threads, self.stream, arguments)
        back = ALIGNMENT + sizes.output_places[-1]
        at = self.at_error
        driver.call("cuMemcpyDtoHAsync_v2", self.host + at, self.shared + at, back, self.stream)

    def _recorded(self) -> int:
        """The graph of a call."""
        driver: CudaDriver = self.driver
        driver.call("cuStreamBeginCapture_v2", self.stream, 0)
        try:
            self._submit()
        except BaseException:
            driver.tried("cuStreamEndCapture", self.stream, byref(c_void_p()))
            raise
        graph = c_void_p()
        driver.call("cuStreamEndCapture", self.stream, byref(graph))
        try:
            made = driver.handle("cuGraphInstantiateWithFlags", graph, 0)
        finally:
            driver.tried("cuGraphDestroy", graph)
        return int(self.held.keep("cuGraphExecDestroy", made))


def _check_capability(gpu: CudaDevice, machine: str) -> None:
    """DeviceError where a GPU is older than what an artefact was compiled for."""
    matched = re.search(r"sm_(\d+)(\d)", machine)
    wanted = (int(matched[1]), int(matched[2])) if matched else (0, 0)
    if gpu.capability < wanted:
        own = "sm_" + "".join(map(str, gpu.capability))
        raise DeviceError(
            f"the model was compiled for {machine}, and this GPU is {own}",
            hint=f"compile it for an older GPU (target='cuda,{own}'), or for the CPU (target='host')",
        )
