"""Accelerators that come with the compiler, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tilewright.machines.npu import NPU1, NPU2, NPU4, NPU8, NPU16
from tilewright.machines.systolic import SYSTOLIC
from tilewright.target.machine import Accelerator

PRESETS: Mapping[str, Accelerator] = MappingProxyType({m.name: m for m in (NPU1, NPU2, NPU4, NPU8, NPU16, SYSTOLIC)})
"""What `target=` may name beside CPUs."""
