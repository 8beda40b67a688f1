"""GPUs of NVIDIA through their driver: a call is one copy of all inputs, the launches, and one copy of all outputs
back, and from the second call with the same sizes on one launch of a graph of these (`codegen/ptx/program.py`).

Memory of the device: the arena with the device memory of kernels behind it; constants; states; and what is copied:
inputs, the word for the first error, outputs. The host has the latter once more, in pages that stay where they are.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
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
    NO_ERROR,
    OUTPUTS,
    STATES,
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

    hands_over = True

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
        self.stream = self.work = self.shared = self.host = self.constants = self.states = 0
        self.work_bytes = self.shared_bytes = self.host_bytes = self.constant_bytes = -1
        self.was_launched, self.has_error = False, True

    def active(self) -> AbstractContextManager[Any]:
        return self.gpu.current()

    def allocate(self, sizes: BufferSizes) -> bool:
        work, constants, _, outputs, _, states = sizes.buffers
        if not self.stream:
            self.stream = self.held.keep("cuStreamDestroy_v2", self.driver.handle("cuStreamCreate", 0))
        self.at_error = sizes.input_places[-1]
        self.at_outputs = self.at_error + ALIGNMENT
        self.back = ALIGNMENT + sizes.back
        needed = self.at_outputs + outputs
        if work > self.work_bytes:
            self.work_bytes = -1
            self.work = self._instead(self.work, work)
            self.work_bytes = work
        if needed > self.shared_bytes:
            self.shared_bytes = -1
            self.shared = self._instead(self.shared, needed)
            self.shared_bytes = needed
        if (needed := self.at_error + self.back) > self.host_bytes:
            self.host_bytes = -1
            self.held.drop(self.host)
            self.host = int(self.held.keep("cuMemFreeHost", self.driver.handle("cuMemHostAlloc", needed, 0)))
            self.host_bytes = needed
        if states and not self.states:
            self.states = self._instead(0, states)
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
        if buffer in (INPUTS, ERRORS):
            first = at + (0 if buffer == INPUTS else self.at_error)
            bytes_at(self.host, self.host_bytes)[first:][: len(data)] = data
        else:
            self.driver.call("cuMemcpyHtoD_v2", self._starts[buffer] + at, data.ctypes.data, len(data))

    def fetch(self, buffer: int, at: int, size: int) -> np.ndarray:
        found = np.empty(size, np.uint8)
        self.driver.call("cuStreamSynchronize", self.stream)
        self.driver.call("cuMemcpyDtoH_v2", found.ctypes.data, self._starts[buffer] + at, size)
        return found

    def copy(self, source: int, at: int, target: int, to: int, size: int) -> None:
        starts = self._starts
        self.driver.call("cuMemcpyDtoDAsync_v2", starts[target] + to, starts[source] + at, size, self.stream)

    @property
    def _starts(self) -> dict[int, int]:
        """Where the buffers begin on the device."""
        return {
            ARENA: self.work, CONSTANTS: self.constants, INPUTS: self.shared, STATES: self.states,
            ERRORS: self.shared + self.at_error, OUTPUTS: self.shared + self.at_outputs,
        }  # fmt: skip

    def prepare(self, calls: Sequence[DeviceCall]) -> None:
        """Functions, groups, threads and arguments of the launches."""
        if self.graph is not None:
            self.held.drop(self.graph)
            self.graph = None
        self.was_launched, self.has_error, starts = False, True, self._starts
        self.launches = []
        for call in calls:
            places = [starts[buffer] + at for buffer, at in call.places]
            arguments = [starts[ERRORS], call.errors, *places, *call.dims, self.work + call.room]
            for entry, counts, (threads,) in call.launches:
                groups = [min(n, most) for n, most in zip(counts, _MOST_GROUPS, strict=True)]
                self.launches.append((self.functions[entry], groups, threads, arguments))

    def launch(self) -> None:
        self._launch(self._submit)

    def _launch(self, submit: Callable[[], None]) -> None:
        """Put a call into the stream, or the graph of it."""
        if self.was_launched and self.graph is None:
            self.graph = self._recorded(submit)
        if self.graph is None:
            submit()
        else:
            self.driver.call("cuGraphLaunch", self.graph, self.stream)
        self.was_launched = True

    def take(self, other: Device, at: int, to: int, size: int) -> None:
        assert isinstance(other, CudaGpu)
        source = other.shared + other.at_outputs + at
        self.driver.call("cuMemcpyDtoDAsync_v2", self.shared + to, source, size, self.stream)

    def put(self, at: int, data: np.ndarray) -> None:
        self.driver.call("cuMemcpyHtoD_v2", self.shared + at, data.ctypes.data, len(data))

    def run(self) -> int:
        word = np.full(1, NO_ERROR, np.uint32)
        if self.has_error:
            self.driver.call("cuMemcpyHtoD_v2", self._starts[ERRORS], word.ctypes.data, word.nbytes)
        self.has_error = True
        self._launch(self._submit_launches)
        error = int(self.fetch(ERRORS, 0, word.nbytes).view(np.uint32)[0])
        self.has_error = error != NO_ERROR
        return error

    def read(self) -> tuple[int, np.ndarray]:
        self.driver.call("cuStreamSynchronize", self.stream)
        memory = bytes_at(self.host, self.host_bytes)
        return int(memory[self.at_error :][:4].view(np.uint32)[0]), memory[self.at_outputs :]

    def release(self) -> None:
        self._release()

    def _submit(self) -> None:
        """Put a call into the stream, with its copies."""
        at = self.at_error
        self.driver.call("cuMemcpyHtoDAsync_v2", self.shared, self.host, self.at_outputs, self.stream)
        self._submit_launches()
        self.driver.call("cuMemcpyDtoHAsync_v2", self.host + at, self.shared + at, self.back, self.stream)

    def _submit_launches(self) -> None:
        for function, groups, threads, arguments in self.launches:
            launch(self.driver, function, groups, threads, self.stream, arguments)

    def _recorded(self, submit: Callable[[], None]) -> int:
        """The graph of a call."""
        driver = self.driver
        driver.call("cuStreamBeginCapture_v2", self.stream, 0)
        try:
            submit()
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
