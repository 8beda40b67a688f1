"""The driver of NVIDIA's GPUs by its own library (`libcuda`), through ctypes: no toolkit is needed.

Names, types and numbers are those of the CUDA driver API reference (`cuda.h`).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from functools import cache
from typing import Any

from tilewright.runtime.errors import DeviceError

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
ADDRESS = c_ulonglong
"""CUdeviceptr."""
_OUT = POINTER(c_void_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_OUT, c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (_OUT,),
    "cuModuleLoadDataEx": (_OUT, c_char_p, c_uint, POINTER(c_int), POINTER(c_void_p)),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (_OUT, c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuMemAlloc_v2": (POINTER(ADDRESS), c_size_t),
    "cuMemFree_v2": (ADDRESS,),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemHostAlloc": (_OUT, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoD_v2": (ADDRESS, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, ADDRESS, c_size_t),
    "cuMemcpyDtoDAsync_v2": (ADDRESS, ADDRESS, c_size_t, c_void_p),
    "cuMemcpyHtoDAsync_v2": (ADDRESS, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, ADDRESS, c_size_t, c_void_p),
    "cuStreamCreate": (_OUT, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, _OUT),
    "cuGraphInstantiateWithFlags": (_OUT, c_void_p, c_ulonglong),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p)),
}
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_NO_DEVICE = 100
_HOW = {
    2: "free memory of the device, or use smaller inputs",
    100: "look at what nvidia-smi says; in a container, start it with --gpus all",
    222: "install a newer driver",
    803: "the driver and its kernel module are of different versions: restart the machine",
}
_THE_CPU = "compile the model for the CPU (target='host')"
_LOG_BYTES = 4096
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  # CU_JIT_ERROR_LOG_BUFFER, ..._SIZE_BYTES


class CudaDriver:
    """The functions of the driver; a number other than 0 that one gives becomes a DeviceError with its name."""

    def __init__(self, library: Any) -> None:
        self._functions: dict[str, Any] = {}
        for name, types in _SIGNATURES.items():
            try:
                found = getattr(library, name)
            except AttributeError as error:
                raise DeviceError(
                    f"the driver of the GPU is too old: it has no function {name}",
                    hint=f"install a driver of CUDA 12.0 or newer, or {_THE_CPU}",
                ) from error
            found.argtypes, found.restype = types, c_int
            self._functions[name] = found
        self._name = library.cuGetErrorName
        self._name.argtypes, self._name.restype = (c_int, POINTER(c_char_p)), c_int

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function."""
        if code := self._functions[name](*arguments):
            raise self.error(name, code)

    def tried(self, name: str, *arguments: Any) -> None:
        """Call a function that gives something back; what it says is nobody's concern any more."""
        self._functions[name](*arguments)

    def handle(self, name: str, *arguments: Any, kind: Any = c_void_p) -> Any:
        """What a function writes to its first argument."""
        made = kind()
        self.call(name, byref(made), *arguments)
        return made.value

    def error(self, name: str, code: int, said: str = "") -> DeviceError:
        text = c_char_p()
        self._name(code, byref(text))
        named = text.value.decode() if text.value else "an unknown error"
        way = _HOW.get(code, "try again; where it stays so, restart the process")
        found = DeviceError(f"the GPU failed: {name} says {named} ({code}){said}", hint=f"{way}, or {_THE_CPU}")
        return found

    def module(self, ptx: str) -> int:
        """A module of PTX, which the driver compiles."""
        log = ctypes.create_string_buffer(_LOG_BYTES)
        names = (c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        made = c_void_p()
        code = self._functions["cuModuleLoadDataEx"](byref(made), ptx.encode(), 2, names, values)
        if code:
            said = log.value.decode(errors="replace").strip()
            raise self.error("cuModuleLoadDataEx", code, f": {said[:500]}" if said else "")
        assert made.value is not None
        return made.value


class CudaDevice:
    """The first GPU, with its primary context, which it shares with others of this process (as PyTorch does)."""

    def __init__(self, driver: CudaDriver) -> None:
        self.driver = driver
        driver.call("cuInit", 0)
        if not driver.handle("cuDeviceGetCount", kind=c_int):
            raise driver.error("cuDeviceGetCount", _NO_DEVICE)
        number = driver.handle("cuDeviceGet", 0, kind=c_int)
        major, minor = (driver.handle("cuDeviceGetAttribute", a, number, kind=c_int) for a in (_MAJOR, _MINOR))
        self.capability = major, minor
        self.context = driver.handle("cuDevicePrimaryCtxRetain", number)

    @contextmanager
    def current(self) -> Iterator[None]:
        """This thread uses the device; what it used before, it uses afterwards."""
        self.driver.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self.driver.tried("cuCtxPopCurrent_v2", byref(c_void_p()))

    def allocate(self, size: int, way: str = "") -> int:
        """Memory of the device; a DeviceError says how much there is, where that is too little, and a `way` out."""
        try:
            return int(self.driver.handle("cuMemAlloc_v2", max(size, 1), kind=ADDRESS))
        except DeviceError as error:
            free, whole = c_size_t(), c_size_t()
            self.driver.tried("cuMemGetInfo_v2", byref(free), byref(whole))
            what = f"the model needs {size} bytes more on the GPU, which has {free.value} of {whole.value} free"
            raise DeviceError(f"{what}: {error.what}", hint=f"{way}{error.hint}") from error


@cache
def device() -> CudaDevice:
    """The GPU of this process. DeviceError where there is none, or no driver."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DeviceError(
            f"the model was compiled for a GPU of NVIDIA, whose driver is not installed: {error}",
            hint=f"install the driver ({LIBRARY} comes with it; no toolkit is needed), or {_THE_CPU}",
        ) from error
    return CudaDevice(CudaDriver(library))


def launch(
    driver: CudaDriver,
    function: int,
    groups: Sequence[int],
    threads: Sequence[int],
    stream: int,
    arguments: Sequence[int],
) -> None:
    """Put a kernel into a stream; all of its arguments are words of 64 bits."""
    words = (c_ulonglong * len(arguments))(*(a % 2**64 for a in arguments))
    start = ctypes.addressof(words)
    pointers = (c_void_p * len(arguments))(*range(start, start + 8 * len(arguments), 8))
    driver.call("cuLaunchKernel", function, *groups, *threads, 1, 0, stream, pointers, None)
