"""NVIDIA's GPUs, by compute capability: what PTX may use, and what a multiprocessor has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, NoReturn

from tilewright.target.gpu.tensor_cores import (
    ASYNC,
    FRAGMENTS,
    INTRINSICS,
    TENSOR_CORES,
    TF32,
    WARP,
    WARP_ROW,
    TensorCore,
    intrinsics_of,
)
from tilewright.target.gpu.webgpu import DEVICE, GRID, GROUP, REGISTERS, ROW, SHARED, THREAD, Gpu
from tilewright.target.machine import GLOBAL, HostLink, Level, Memory, TargetError


@dataclass(frozen=True)
class Cuda(Gpu):
    """A GPU that runs PTX of `version` (as LLVM names it) for `architecture`. There are `multiprocessors`, each with
    `registers` of 32 bits, `resident` threads at most, and `shared` bytes of shared memory, of which a group has
    `group_shared` at most (CUDA C++ programming guide, technical specifications per compute capability). Tiles of
    products may have `padding` times as many elements as the result."""

    kind: ClassVar[str] = "cuda"
    part_align: ClassVar[int] = 16

    bindings: int = 1 << 62
    grid: int = 65535
    architecture: str = "sm_80"
    version: str = "ptx80"
    multiprocessors: int = 108
    padding: float = 2
    registers: int = 65536
    resident: int = 2048
    shared: int = 164 << 10
    group_shared: int = 163 << 10
    tensor_cores: tuple[TensorCore, ...] = TENSOR_CORES

    @property
    def with_tf32(self) -> Cuda:
        """The one that rounds operands of products of float32 to TF32."""
        cores, intrinsics = (*self.tensor_cores, TF32), (*self.intrinsics, *intrinsics_of(TF32))
        return replace(self, name=f"{self.name},{_TF32}", tensor_cores=cores, intrinsics=intrinsics)


_TF32 = "tf32"

OWNED = "owned"
"""Memory of a group of which each element is touched by one thread alone: registers. Axes of its buffers are the
variables of loops of rows and threads."""

SIDE = 16
"""Rows and columns of threads in a group that makes a tile of a product."""
RUN = 4
"""Elements of float32 that a thread reads at a time, and iterations over an array of its own that it has written out
twice as many of at most."""
ROWS_AT_ONCE = 2
"""Rows that a thread multiplies by `RUN` elements of the depth before its next rows. With one, or all of them, `ptxas`
spilled in the inner loops of some products of 4096^3 (12.8 and 13.0, decision 152)."""
TILES = ((128, 128), (128, 64), (64, 64), (64, 32), (32, 64), (32, 32), (16, 64), (64, 16), (16, 32), (16, 16))
"""Rows and columns of a tile of a product, the largest first. A thread has a 256th of its sums in registers: 64 of the
largest one, beside which registers for 16 operands and the addresses leave room for two groups in a multiprocessor."""

STATIC_SHARED = 48 << 10
"""Bytes of shared memory that a kernel has without asking for more."""


def _cuda(architecture: str, version: str, shared: int) -> Cuda:
    return Cuda(
        f"cuda,{architecture}",
        memories=(
            GLOBAL,
            Memory(DEVICE, align=64),
            Memory(SHARED, STATIC_SHARED, 16, GROUP),
            Memory(OWNED, 128 << 10, 16, GROUP, constant_sizes=True),
            *FRAGMENTS,
            Memory(REGISTERS, 1020, 16, THREAD, constant_sizes=True),
        ),
        levels=(
            *(Level(name, 65535) for name in GRID), *(Level(name, 1024) for name in (WARP_ROW, WARP, ROW, THREAD))
        ),
        intrinsics=INTRINSICS,
        routes=(ASYNC,),
        architecture=architecture,
        version=version,
        shared=shared << 10,
        group_shared=(shared - 1) << 10,
        link=HostLink(call=15e-6, bus=2e10, operations=5e12, bandwidth=1e12, alone=2e8),
    )


_ALL = (_cuda("sm_80", "ptx80", 164), _cuda("sm_90", "ptx80", 228), _cuda("sm_100", "ptx86", 228))
CUDA: Mapping[str, Cuda] = MappingProxyType({machine.architecture: machine for machine in _ALL})
"""By architecture, the oldest first, whose PTX all later ones run."""


def find_cuda(text: str) -> Cuda:
    """The GPU that `cuda`, `cuda,sm_90` or `cuda,sm_90,tf32` names."""
    _, *words = (word.strip() for word in text.split(","))
    has_tf32 = words[-1:] == [_TF32]
    architecture = ",".join(words[:-1] if has_tf32 else words)
    found = CUDA.get(architecture or "sm_80") or _unknown(architecture)
    return found.with_tf32 if has_tf32 else found


def _unknown(architecture: str) -> NoReturn:
    raise TargetError(
        f"unknown architecture '{architecture}' of target 'cuda'",
        hint=f"known are {', '.join(CUDA)}, each also with ',tf32' behind it; PTX for an older one runs on newer GPUs",
    )
