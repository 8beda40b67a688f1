"""What a device is told to run: modules of WGSL, and the dispatches of each program.

Bindings of a program: 0 the arena with the device memory of kernels behind it, 1 constants, 2 inputs, 3 outputs and
behind them what states will hold, each tensor of these from a multiple of 256 bytes on, 4 one word for the first error,
5 what a dispatch is told: where its arguments begin, in bytes, the sizes that it has variables for, and what is added
to the numbers of its errors, and 6 states. A module is a kernel with its arguments in certain buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.codegen.devices.program import BASES, DeviceCode
from tilewright.codegen.program import KernelCall, Program
from tilewright.codegen.wgsl.kernel import WgslKernel, kernel_wgsl
from tilewright.ir.core import Func
from tilewright.ir.diag import UnsupportedError
from tilewright.target.gpu.webgpu import Gpu

TOLD = 256
"""Words that a dispatch is told."""
_LAST = 5
"""Of these, the start of the device memory and the last four."""


class GpuCode(DeviceCode):
    """The shaders and dispatches of one artefact."""

    def __init__(self, machine: Gpu) -> None:
        super().__init__()
        self.machine = machine
        self._modules: dict[str, tuple[str, tuple[int, ...]]] = {}

    def kernel(self, func: Func) -> WgslKernel:
        return kernel_wgsl(func, self.machine)

    def call(self, step: KernelCall, program: Program, numbers: Mapping[str, int]) -> dict[str, Any]:
        call = super().call(step, program, numbers)
        if (count := len(step.buffers) + len(call["dims"])) > TOLD - _LAST:
            raise UnsupportedError(
                f"kernel '{step.kernel}' takes {count} tensors and sizes, and a GPU {TOLD - _LAST}"
            )
        bases = tuple(base for base, _, _ in call["places"])
        call["module"] = f"{call['kernel']}:{''.join(map(str, bases))}"
        self._modules[call["module"]] = call["kernel"], bases
        return call

    def texts(self, step: Callable[[int, int], None] | None) -> dict[str, str]:
        """The modules, by name."""
        found = {}
        for module, (name, bases) in self._modules.items():
            kernel = self.kernels[name]
            assert isinstance(kernel, WgslKernel)
            found[module] = _head(kernel, bases) + kernel.text
        return found


def _head(kernel: WgslKernel, bases: Sequence[int]) -> str:
    """The declarations of the buffers, and the functions that read and write each argument."""
    every = [*bases, 0]
    atomic = {every[k] for k in kernel.parts}
    names = {0: "arena", 1: "constants", 2: "inputs", 3: "outputs", BASES.index("state"): "states"}
    lines = []
    for k, name in names.items():
        access = "read" if k in (1, 2) else "read_write"
        if k in every:
            type, binding = "atomic<u32>" if k in atomic else "u32", 6 if name == "states" else k
            lines.append(f"@group(0) @binding({binding}) var<storage, {access}> {name}: array<{type}>;")
    lines.append("@group(0) @binding(4) var<storage, read_write> errors: array<atomic<u32>>;")
    lines.append(f"@group(0) @binding(5) var<uniform> told: array<vec4<u32>, {TOLD // 4}>;")
    lines.append(f"fn fail(n: u32) {{ atomicMin(&errors[0], told[{TOLD // 4 - 1}].w + n); }}")
    for k, base in enumerate(every):
        start, name = f"told[{k // 4}].{'xyzw'[k % 4]}", names[base]
        load = f"atomicLoad(&{name}[{{}}])" if base in atomic else f"{name}[{{}}]"
        word = f"({start} >> 2u) + at"
        lines.append(f"fn read_{k}(at: u32) -> u32 {{ return {load.format(word)}; }}")
        lines.append(
            f"fn byte_{k}(at: u32) -> u32 {{ let place = {start} + at; "
            f"return {load.format('place >> 2u')} >> (8u * (place & 3u)); }}"
        )
        if base not in (1, 2):
            store = f"atomicStore(&{name}[{word}], v)" if base in atomic else f"{name}[{word}] = v"
            lines.append(f"fn write_{k}(at: u32, v: u32) {{ {store}; }}")
        if k in kernel.parts:
            lines += [
                f"fn part_{k}(at: u32, mask: u32, v: u32) {{",
                f"  let place = {start} + at;",
                "  let by = 8u * (place & 3u);",
                f"  atomicAnd(&{name}[place >> 2u], ~(mask << by));",
                f"  atomicOr(&{name}[place >> 2u], (v & mask) << by);",
                "}",
            ]
    return "\n".join([*lines, "", ""])
