"""Programs on a GPU, through the library `wgpu`: shaders of an artefact, its weights resident, and its calls.

A call is one copy of all inputs to the device, one command buffer with all dispatches, and one copy of all outputs
back. The objects of the artefact are JSON (`codegen/wgsl/program.py`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tilewright.runtime.artifact import Artifact, TensorInfo
from tilewright.runtime.errors import ExecutionError, TilewrightError
from tilewright.runtime.executor import DrivenCode
from tilewright.runtime.values.dtypes import numpy_dtype

ALIGNMENT = 256
"""Of tensors in the buffers of inputs and outputs, and of what dispatches are told, as every device allows."""
_TOLD = 1024  # bytes that a dispatch is told
_NO_ERROR = 0xFFFFFFFF
_ARENA, _CONSTANTS, _INPUTS, _OUTPUTS, _ERRORS, _CALLS = range(6)


class DeviceError(TilewrightError):
    """There is no GPU, or it cannot hold or run a model."""


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


class GpuExecutor(DrivenCode):
    """An artefact on the device: DeviceError where that cannot hold it."""

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact, self._nothing)
        found = json.loads(bytes(artifact.objects[0]))
        self._calls = found["programs"][artifact.run_symbol]
        self._modules = {call["module"]: found["modules"][call["module"]] for call in self._calls}
        self._constants = memoryview(artifact.constants).cast("B")
        self._lock = threading.Lock()
        self._input_places, inputs = _places(self._inputs)
        self._output_places, outputs = _places(self._outputs)
        assert artifact.static_plan is not None
        arena = -(-artifact.static_plan.arena // ALIGNMENT) * ALIGNMENT
        self._room_at = arena
        room = max([0, *(call["room"] for call in self._calls)])
        self._bytes = [arena + room, len(self._constants), inputs, outputs, 4]
        self._made: _Program | None = None

    @staticmethod
    def _nothing(*_: object) -> None:
        raise AssertionError("`run` does all")

    def run(self, call: int) -> int:
        found: list[int] = []

        def execute(
            inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], constants: np.ndarray, arena: np.ndarray
        ) -> None:
            with self._lock:
                if self._made is None:
                    self._made = _Program(self)
                found.append(self._made.run(inputs, outputs))

        self._execute = execute
        super().run(call)
        return found[0]


class _Program:
    """Buffers, pipelines and bind groups of an artefact on the device."""

    def __init__(self, code: GpuExecutor) -> None:
        import wgpu

        self.gpu, self.code = device(), code
        limits, names = self.gpu.limits, ("the arena", "weights", "inputs", "outputs", "errors")
        most = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])
        for size, name in zip(code._bytes, names, strict=True):
            if size > most:
                raise DeviceError(
                    f"the model needs {size} bytes for {name}, and one buffer of this GPU has at most {most}",
                    hint="use a smaller batch or shorter weights, or compile the model for the CPU (target='host')",
                )
        usage = wgpu.BufferUsage
        store = usage.STORAGE | usage.COPY_DST | usage.COPY_SRC
        try:
            self.buffers = [
                self.gpu.create_buffer(size=_rounded(max(size, ALIGNMENT)), usage=store) for size in code._bytes
            ]
            self.buffers.append(
                self.gpu.create_buffer(
                    size=_TOLD * max(1, len(code._calls)), usage=usage.UNIFORM | usage.COPY_DST
                )
            )
            self.back = self.gpu.create_buffer(
                size=_rounded(max(code._bytes[_OUTPUTS], ALIGNMENT)) + ALIGNMENT, usage=usage.MAP_READ | usage.COPY_DST
            )
            self._fill()
            self._pipelines(wgpu)
        except TilewrightError:
            raise
        except Exception as error:
            raise DeviceError(
                f"the GPU could not be prepared: {_first_line(error)}",
                hint="the model needs "
                f"{sum(code._bytes)} bytes on the device; free some, or compile it for the CPU (target='host')",
            ) from error

    def _fill(self) -> None:
        """The weights, and what each dispatch is told."""
        queue = self.gpu.queue
        if len(self.code._constants):
            padded = np.zeros(_rounded(len(self.code._constants)), np.uint8)
            padded[: len(self.code._constants)] = self.code._constants
            queue.write_buffer(self.buffers[_CONSTANTS], 0, padded)
        told = np.zeros((max(1, len(self.code._calls)), _TOLD // 4), np.uint32)
        tensors = {2: self.code._input_places, 3: self.code._output_places}
        for k, call in enumerate(self.code._calls):
            starts = [(tensors[base][index] if base in tensors else 0) + at for base, index, at in call["places"]]
            told[k, : len(starts) + 1] = [*starts, self.code._room_at]
            told[k, -1] = call["errors"]
        queue.write_buffer(self.buffers[_CALLS], 0, told)

    def _pipelines(self, wgpu: Any) -> None:
        kinds = ["storage", "read-only-storage", "read-only-storage", "storage", "storage", "uniform"]
        entries = [
            {
                "binding": k,
                "visibility": wgpu.ShaderStage.COMPUTE,
                "buffer": {"type": kind, "has_dynamic_offset": kind == "uniform"},
            }
            for k, kind in enumerate(kinds)
        ]
        layout = self.gpu.create_bind_group_layout(entries=entries)
        sizes = [buffer.size for buffer in self.buffers[:-1]] + [_TOLD]
        self.group = self.gpu.create_bind_group(
            layout=layout,
            entries=[
                {"binding": k, "resource": {"buffer": buffer, "offset": 0, "size": size}}
                for k, (buffer, size) in enumerate(zip(self.buffers, sizes, strict=True))
            ],
        )
        whole = self.gpu.create_pipeline_layout(bind_group_layouts=[layout])
        modules = {name: self.gpu.create_shader_module(code=text) for name, text in self.code._modules.items()}
        made: dict[tuple[str, str], Any] = {}
        self.dispatches: list[tuple[Any, list[int], int]] = []
        for k, call in enumerate(self.code._calls):
            for entry, groups in call["grids"]:
                key = call["module"], entry
                if key not in made:
                    made[key] = self.gpu.create_compute_pipeline(
                        layout=whole, compute={"module": modules[key[0]], "entry_point": entry}
                    )
                self.dispatches.append((made[key], groups, k * _TOLD))

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> int:
        """One call; 0, or the number of an error."""
        try:
            return self._run(inputs, outputs)
        except Exception as error:
            raise ExecutionError(
                f"the GPU failed: {_first_line(error)}",
                hint="it may have been reset or taken away; load the model again, or compile it for the CPU",
            ) from error

    def _run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> int:
        code, queue = self.code, self.gpu.queue
        given = np.zeros(self.buffers[_INPUTS].size, np.uint8)
        for place, array in zip(code._input_places, inputs, strict=True):
            given[place : place + array.nbytes] = array.reshape(-1).view(np.uint8)
        queue.write_buffer(self.buffers[_INPUTS], 0, given)
        queue.write_buffer(self.buffers[_ERRORS], 0, np.full(1, _NO_ERROR, np.uint32))
        encoder = self.gpu.create_command_encoder()
        work = encoder.begin_compute_pass()
        for pipeline, groups, told in self.dispatches:
            work.set_pipeline(pipeline)
            work.set_bind_group(0, self.group, [told])
            work.dispatch_workgroups(*groups)
        work.end()
        size = self.buffers[_OUTPUTS].size
        encoder.copy_buffer_to_buffer(self.buffers[_OUTPUTS], 0, self.back, 0, size)
        encoder.copy_buffer_to_buffer(self.buffers[_ERRORS], 0, self.back, size, 4)
        queue.submit([encoder.finish()])
        self.back.map_sync("READ")
        try:
            taken = np.frombuffer(self.back.read_mapped(copy=True), np.uint8)
        finally:
            self.back.unmap()
        for place, array in zip(code._output_places, outputs, strict=True):
            array.reshape(-1).view(np.uint8)[:] = taken[place : place + array.nbytes]
        error = int(taken[size : size + 4].view(np.uint32)[0])
        return 0 if error == _NO_ERROR else error


def _places(infos: Sequence[TensorInfo]) -> tuple[list[int], int]:
    """Where each tensor begins in the buffer of all, and how long that is."""
    places, size = [], 0
    for info in infos:
        places.append(size)
        size += -(-_bytes_of(info) // ALIGNMENT) * ALIGNMENT
    return places, size


def _bytes_of(info: TensorInfo) -> int:
    parts = info.parts
    return int(np.prod([int(n) for n in parts.shape], dtype=np.int64)) * numpy_dtype(parts.dtype).itemsize


def _rounded(size: int) -> int:
    return -(-size // 4) * 4


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:12])[:900] or type(error).__name__
