"""GPUs of NVIDIA through their driver: a call is one copy of all inputs, the launches, and one copy of all outputs
back, and from the second call with the same sizes on one launch of a graph of these (`codegen/ptx/program.py`).

Memory of the device: the arena with the device memory of kernels behind it; constants; and what is copied: inputs, the
word for the first error, outputs. The host has the latter once more, in pages that stay where they are.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from ctypes import byref, c_void_p
from typing import Any

import numpy as np

from tilewright.runtime.devices.cuda_driver import CudaDevice, device, launch
from tilewright.runtime.devices.device import (
    ALIGNMENT,
    ARENA,
    CONSTANTS,
    ERRORS,
    INPUTS,
    OUTPUTS,
    BufferSizes,
    Device,
    DeviceCall,
)
from tilewright.runtime.devices.executor import LESS_WEIGHTS, DeviceExecutor
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.values.addresses import bytes_at

_MOST_GROUPS = (2**31 - 1, 65535, 65535)  # along the axes of a grid; loops of kernels go around


class CudaExecutor(DeviceExecutor):
    """An artefact on the first GPU of NVIDIA."""

    def open(self) -> Device:
        gpu = device()
        _check_capability(gpu, self.artifact.target.cpu)
        return CudaGpu(gpu)


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


class CudaGpu(Device):
    """Memory, kernels and the graph of an artefact."""

    name = "the GPU"

    def __init__(self, gpu: CudaDevice) -> None:
        self.gpu, self.driver = gpu, gpu.driver
        self.held = _Held(gpu)
        self._release = weakref.finalize(self, self.held.release)
        self.graph: int | None = None
        self.stream = self.work = self.shared = self.host = self.constants = 0
        self.work_bytes = self.shared_bytes = self.constant_bytes = -1
        self.was_launched = False
        self.states = 0, 0  # where they begin in what is copied, and their bytes

    def active(self) -> AbstractContextManager[Any]:
        return self.gpu.current()

    def allocate(self, sizes: BufferSizes) -> bool:
        work, constants, *_ = sizes.buffers
        if not self.stream:
            self.stream = self.held.keep("cuStreamDestroy_v2", self.driver.handle("cuStreamCreate", 0))
        self.at_error = sizes.input_places[-1]
        self.at_outputs = self.at_error + ALIGNMENT
        self.back = ALIGNMENT + sizes.output_places[-1]
        needed = self.at_error + self.back
        if work > self.work_bytes:
            self.work_bytes = -1
            self.work = self._instead(self.work, work)
            self.work_bytes = work
        if needed > self.shared_bytes:
            self.shared_bytes = -1
            self.shared = self._instead(self.shared, needed)
            self.held.drop(self.host)
            self.host = int(self.held.keep("cuMemFreeHost", self.driver.handle("cuMemHostAlloc", needed, 0)))
            self.shared_bytes = needed
        if constants <= self.constant_bytes:
            return False
        self.constants = self._instead(self.constants, constants, f"{LESS_WEIGHTS}, ")
        self.constant_bytes = constants
        return True

    def _instead(self, before: int, size: int, way: str = "") -> int:
        self.held.drop(before)
        return int(self.held.keep("cuMemFree_v2", self.gpu.allocate(size, way)))

    def load(self, kernels: Mapping[str, str], calls: Sequence[Mapping[str, Any]]) -> None:
        modules = {
            name: self.held.keep("cuModuleUnload", self.driver.module(ptx)) for name, ptx in kernels.items()
        }
        entries = {(call["kernel"], entry) for call in calls for entry, *_ in call["launches"]}
        self.functions = {
            entry: self.driver.handle("cuModuleGetFunction", modules[kernel], entry.encode())
            for kernel, entry in entries
        }

    def write(self, buffer: int, at: int, data: np.ndarray) -> None:
        if buffer == CONSTANTS:
            self.driver.call("cuMemcpyHtoD_v2", self.constants + at, data.ctypes.data, len(data))
        else:
            first = at + {INPUTS: 0, ERRORS: self.at_error, OUTPUTS: self.at_outputs}[buffer]
            bytes_at(self.host, self.shared_bytes)[first:][: len(data)] = data
            if buffer == OUTPUTS:
                self.states = first, len(data)

    def prepare(self, calls: Sequence[DeviceCall]) -> None:
        """Functions, groups, threads and arguments of the launches."""
        if self.graph is not None:
            self.held.drop(self.graph)
            self.graph = None
        self.was_launched, self.states = False, (0, 0)
        starts = {ARENA: self.work, CONSTANTS: self.constants, INPUTS: self.shared}
        starts[OUTPUTS] = self.shared + self.at_outputs
        self.launches = []
        for call in calls:
            places = [starts[buffer] + at for buffer, at in call.places]
            arguments = [self.shared + self.at_error, call.errors, *places, *call.dims, self.work + call.room]
            for entry, counts, (threads,) in call.launches:
                groups = [min(n, most) for n, most in zip(counts, _MOST_GROUPS, strict=True)]
                self.launches.append((self.functions[entry], groups, threads, arguments))

    def launch(self) -> None:
        if self.was_launched and self.graph is None:
            self.graph = self._recorded()
        if self.graph is None:
            self._submit()
        else:
            self.driver.call("cuGraphLaunch", self.graph, self.stream)
        self.was_launched = True

    def read(self) -> tuple[int, np.ndarray]:
        self.driver.call("cuStreamSynchronize", self.stream)
        memory = bytes_at(self.host, self.shared_bytes)
        return int(memory[self.at_error :][:4].view(np.uint32)[0]), memory[self.at_outputs :]

    def release(self) -> None:
        self._release()

    def _submit(self) -> None:
        """Put a call into the stream."""
        at = self.at_error
        first, size = self.states
        self.driver.call("cuMemcpyHtoDAsync_v2", self.shared, self.host, self.at_outputs, self.stream)
        if size:
            self.driver.call("cuMemcpyHtoDAsync_v2", self.shared + first, self.host + first, size, self.stream)
        for function, groups, threads, arguments in self.launches:
            launch(self.driver, function, groups, threads, self.stream, arguments)
        self.driver.call("cuMemcpyDtoHAsync_v2", self.host + at, self.shared + at, self.back, self.stream)

    def _recorded(self) -> int:
        """The graph of a call."""
        driver = self.driver
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
