"""Devices and memory as clients of ONNX Runtime name them: all of it is the CPU's."""

from __future__ import annotations

import enum
from typing import Any


class OrtAllocatorType(enum.IntEnum):
    """Without a meaning here: memory comes from one place."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(enum.IntEnum):
    """Without a meaning here."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    DEFAULT = 0


class OrtMemoryInfo:
    """What a client asks of memory; kept, and without a meaning here."""

    def __init__(self, name: str, alloc_type: OrtAllocatorType, id: int, mem_type: OrtMemType) -> None:
        self.name, self.allocator_type, self.device_id, self.mem_type = name, alloc_type, id, mem_type


class OrtArenaCfg:
    """How an arena grows in ONNX Runtime; kept, and without a meaning here (see `Model.trim`)."""

    def __init__(self, *sizes: Any) -> None:
        self.sizes = sizes


class OrtDevice:
    """A device: the CPU is all there is; RuntimeError for others."""

    def __init__(self, kind: str = "cpu", device_id: int = 0) -> None:
        if kind != "cpu":
            raise RuntimeError(f"models run on the CPU, not on the device '{kind}'")
        self._id = device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int) -> OrtDevice:
        return OrtDevice(ort_device_name.lower(), device_id)

    @staticmethod
    def cpu() -> int:
        return 0

    @staticmethod
    def default_memory() -> int:
        return 0

    def device_id(self) -> int:
        return self._id

    def device_type(self) -> str:
        return "cpu"


def create_and_register_allocator(mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None) -> None:
    """Without a meaning here."""
