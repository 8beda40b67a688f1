"""GPUs through the library `wgpu`: a call is one command buffer with all dispatches (`codegen/wgsl/program.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np

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
from tilewright.runtime.devices.executor import LESS_WEIGHTS, DeviceExecutor, first_lines
from tilewright.runtime.devices.loop_limit import most_iterations
from tilewright.runtime.devices.sizes import value_of
from tilewright.runtime.errors import DeviceError, ExecutionError

_TOLD = 1024  # bytes that a dispatch is told
_LARGEST = 2**31 - 1  # size or index in a kernel
_MOST_GROUPS = 65535  # along an axis of a grid; loops of kernels go around
_THE_CPU = "compile the model for the CPU (target='host')"
_NEEDED = {
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-storage-size": 16384,
    "max-storage-buffers-per-shader-stage": 5,
}
"""What kernels are made for: limits that all of WebGPU has."""
_SAFE_ITERATIONS = 1 << 15  # of a thread, which every driver is trusted with


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
    if not hasattr(wgpu.gpu, "request_adapter_sync"):
        raise DeviceError(
            f"the package wgpu is too old: it is {getattr(wgpu, '__version__', 'of an unknown version')}",
            hint=f"pip install --upgrade 'tilewright[webgpu]', or {_THE_CPU}",
        )
    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        if adapter is None:
            raise RuntimeError("the package wgpu offers none")
    except Exception as error:  # whatever a driver may raise
        raise DeviceError(
            f"no GPU was found: {first_lines(error)}",
            hint="install a driver of Vulkan, Metal or Direct3D 12 (mesa-vulkan-drivers has one that needs no GPU), "
            f"or {_THE_CPU}",
        ) from error
    _check_adapter(adapter)
    try:
        wanted = ("max-storage-buffer-binding-size", "max-buffer-size")
        return adapter.request_device_sync(required_limits={name: adapter.limits[name] for name in wanted})
    except Exception as error:
        raise DeviceError(
            f"the GPU cannot be used ({_named(adapter)}): {first_lines(error)}",
            hint=f"close what else uses it, update its driver, or {_THE_CPU}",
        ) from error


def _named(adapter: Any) -> str:
    """What an adapter calls itself."""
    info = adapter.info
    return " ".join(str(info[key]) for key in ("device", "description") if info.get(key)) or "without a name"


def _check_adapter(adapter: Any) -> None:
    """DeviceError for an adapter that has less than each one of WebGPU, such as drivers of OpenGL."""
    for name, needed in _NEEDED.items():
        if (found := adapter.limits.get(name, 0)) < needed:
            raise DeviceError(
                f"the driver of the GPU is too old for WebGPU ({_named(adapter)}): its {name} is {found}, and kernels "
                f"need {needed}",
                hint=f"update the driver, or install one of Vulkan, Metal or Direct3D 12, or {_THE_CPU}",
            )


class GpuExecutor(DeviceExecutor):
    """An artefact on the GPU of this process."""

    hands_over = True

    def open(self) -> Device:
        return WebGpu(device())

    def more(self, found: Sequence[Any], dims: Sequence[int]) -> tuple[int | None]:
        """The iterations of loops that a thread goes through at most; None where data decide."""
        (iterations,) = found
        return (None if iterations is None else value_of(iterations, dims),)


class WebGpu(Device):
    """Buffers, pipelines and a bind group on a device of `wgpu`."""

    name = "the GPU"

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        self.buffers: list[Any] = []
        self.back: Any = None  # what the host reads
        self.is_full = False
        self.dispatches: list[tuple[Any, list[int], int]] = []
        self.calls = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        try:
            yield
        except DeviceError as error:
            self.is_full = isinstance(error.__cause__, MemoryError)
            raise

    def allocate(self, sizes: BufferSizes) -> bool:
        _check(self.gpu.limits, sizes)
        import wgpu

        self.wgpu = wgpu
        wanted = [_rounded(max(n, ALIGNMENT)) for n in sizes.buffers]
        self.size = _rounded(sizes.back)
        if self.buffers and all(n <= b.size for n, b in zip(wanted, self.buffers, strict=True)):
            return False
        usage = wgpu.BufferUsage
        store, read = usage.STORAGE | usage.COPY_DST | usage.COPY_SRC, usage.MAP_READ | usage.COPY_DST
        kept = self.buffers[STATES:]
        _destroy([*self.buffers[:STATES], self.back])
        made = [self.gpu.create_buffer(size=size, usage=store) for size in wanted[: len(wanted) - len(kept)]]
        self.buffers = [*made, *kept]
        self.back = self.gpu.create_buffer(size=wanted[OUTPUTS] + ALIGNMENT, usage=read)
        return True

    def load(self, kernels: Mapping[str, str], calls: Sequence[Mapping[str, Any]]) -> None:
        wgpu = self.wgpu
        kinds = ["storage", "read-only-storage", "read-only-storage", "storage", "storage", "uniform", "storage"]
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
        modules = {name: self.gpu.create_shader_module(code=text) for name, text in kernels.items()}
        self.pipelines: dict[tuple[str, str], Any] = {}
        for call in calls:
            for entry, _, _ in call["launches"]:
                key = call["module"], entry
                if key not in self.pipelines:
                    self.pipelines[key] = self.gpu.create_compute_pipeline(
                        layout=whole, compute={"module": modules[key[0]], "entry_point": entry}
                    )
        self.told = self.gpu.create_buffer(
            size=_TOLD * max(1, len(calls)), usage=wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        )

    def write(self, buffer: int, at: int, data: np.ndarray) -> None:
        if len(data) % 4:
            data = np.concatenate([data, np.zeros(-len(data) % 4, np.uint8)])
        if len(data):
            self.gpu.queue.write_buffer(self.buffers[buffer], at, data)

    def fetch(self, buffer: int, at: int, size: int) -> np.ndarray:
        usage = self.wgpu.BufferUsage
        back = self.gpu.create_buffer(size=_rounded(size), usage=usage.MAP_READ | usage.COPY_DST)
        self._copied(self.buffers[buffer], at, back, 0, size)
        back.map_sync("READ")
        try:
            return np.frombuffer(back.read_mapped(0, _rounded(size), copy=True), np.uint8)[:size]
        finally:
            back.unmap()
            back.destroy()

    def copy(self, source: int, at: int, target: int, to: int, size: int) -> None:
        self._copied(self.buffers[source], at, self.buffers[target], to, size)

    def _copied(self, source: Any, at: int, target: Any, to: int, size: int) -> None:
        encoder = self.gpu.create_command_encoder()
        encoder.copy_buffer_to_buffer(source, at, target, to, _rounded(size))
        self.gpu.queue.submit([encoder.finish()])

    def prepare(self, calls: Sequence[DeviceCall]) -> None:
        """Where the arguments of each dispatch are, its sizes, and how many groups it has."""
        told = np.zeros((max(1, len(calls)), _TOLD // 4), np.uint32)
        self.dispatches = []
        for k, call in enumerate(calls):
            _check_numbers(call.dims)
            starts = [*(at for _, at in call.places), call.room]
            told[k, : len(starts)] = starts
            told[k, len(starts) :][: len(call.dims)] = np.array(call.dims, np.int32).view(np.uint32)
            told[k, -1] = call.errors
            for entry, groups, (iterations,) in call.launches:
                self._check_iterations(call.kernel, iterations)
                most = [min(n, _MOST_GROUPS) for n in groups]
                self.dispatches.append((self.pipelines[call.described["module"], entry], most, k * _TOLD))
        self.gpu.queue.write_buffer(self.told, 0, told)
        bound = [(buffer, buffer.size) for buffer in self.buffers]
        bound.insert(STATES, (self.told, _TOLD))
        self.group = self.gpu.create_bind_group(
            layout=self.layout,
            entries=[
                {"binding": k, "resource": {"buffer": buffer, "offset": 0, "size": size}}
                for k, (buffer, size) in enumerate(bound)
            ],
        )

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

    def launch(self) -> None:
        self._submit(self.size)

    def take(self, other: Device, at: int, to: int, size: int) -> None:
        assert isinstance(other, WebGpu)
        self._copied(other.buffers[OUTPUTS], at, self.buffers[INPUTS], to, size)

    def put(self, at: int, data: np.ndarray) -> None:
        self.write(INPUTS, at, data)

    def run(self) -> int:
        self.write(ERRORS, 0, np.full(1, NO_ERROR, np.uint32).view(np.uint8))
        self._submit(0)
        return self.read()[0]

    def _submit(self, back: int) -> None:
        """All dispatches, and a copy of so many bytes of the outputs."""
        encoder = self.gpu.create_command_encoder()
        work = encoder.begin_compute_pass()
        for pipeline, groups, told in self.dispatches:
            work.set_pipeline(pipeline)
            work.set_bind_group(0, self.group, [told])
            work.dispatch_workgroups(*groups)
        work.end()
        if back:
            encoder.copy_buffer_to_buffer(self.buffers[OUTPUTS], 0, self.back, ALIGNMENT, back)
        self.submitted = back
        encoder.copy_buffer_to_buffer(self.buffers[ERRORS], 0, self.back, 0, 4)
        self.gpu.queue.submit([encoder.finish()])

    def read(self) -> tuple[int, np.ndarray]:
        self.back.map_sync("READ")
        try:
            taken = np.frombuffer(self.back.read_mapped(0, ALIGNMENT + self.submitted, copy=True), np.uint8)
        finally:
            self.back.unmap()
        return int(taken[:4].view(np.uint32)[0]), taken[ALIGNMENT:]

    def release(self) -> None:
        """After an error the GPU may be another one, but where it had no memory: there is none for a second device."""
        with suppress(Exception):  # of a device that is lost
            _destroy([*self.buffers, self.back])
        self.buffers, self.back = [], None
        if not self.is_full:
            device.cache_clear()


def _destroy(buffers: Sequence[Any]) -> None:
    """Give memory back at once, whoever may still hold the buffers."""
    for buffer in buffers:
        if buffer is not None:
            buffer.destroy()


def _check(limits: Mapping[str, int], sizes: BufferSizes) -> None:
    """DeviceError where a buffer of the device has no room for these sizes."""
    most = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])
    names = ("the arena", "weights", "inputs", "outputs", "errors", "states")
    for size, name in zip(sizes.buffers, names, strict=True):
        if size > most:
            is_weights = name == names[CONSTANTS]
            way = f"{LESS_WEIGHTS} (target='webgpu,memory={most}')" if is_weights else "use a smaller batch"
            raise DeviceError(
                f"the model needs {size} bytes for {name}, and one buffer of this GPU has at most {most}",
                hint=f"{way}, or compile the model for the CPU (target='host')",
            )


def _check_numbers(numbers: Sequence[int]) -> None:
    """ExecutionError for a size that kernels cannot compute with."""
    if numbers and (most := max(numbers, key=abs)) not in range(-_LARGEST, _LARGEST + 1):
        raise ExecutionError(
            f"a size or index of the call is {most}, and kernels on a GPU have those of 32 bits",
            hint="compile the model for the CPU (target='host')",
        )


def _rounded(size: int) -> int:
    return -(-size // 4) * 4
