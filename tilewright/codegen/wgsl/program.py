"""What a device is told to run: modules of WGSL, and for each program its dispatches in order, as JSON.

Buffers of a program: 0 the arena with the device memory of kernels behind it, 1 constants, 2 inputs, 3 outputs and
behind them what states hold and what they will, each tensor of these from a multiple of 256 bytes on, 4 one word for
the first error, and 5 what a dispatch is told: where its arguments begin, in bytes, the sizes that it has variables
for, and what is added to the numbers of its errors.

Sizes are expressions of the variables of a program (`sizes.py`), which its `plan` says how to get.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import mul
from typing import Any, Self

from tilewright.codegen.cpu.assemble import ObjectFile
from tilewright.codegen.program import (
    BufferRef,
    Dim,
    ErrorTable,
    InputAxis,
    InputElement,
    KernelCall,
    KernelText,
    Program,
    ProgramText,
)
from tilewright.codegen.wgsl.kernel import WgslKernel, kernel_wgsl
from tilewright.codegen.wgsl.sizes import encoded
from tilewright.ir.core import Func, substitute
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.program.states import states_of
from tilewright.target.gpu.webgpu import Gpu

BASES = ("arena", "constants", "input", "output")
TOLD = 256
"""Words that a dispatch is told."""
_LAST = 5
"""Of these, the start of the device memory and the last four."""


class GpuCode:
    """The shaders and dispatches of one artefact, all in one object."""

    failed = ""

    def __init__(self, machine: Gpu) -> None:
        self.machine = machine
        self._kernels: dict[str, WgslKernel] = {}
        self._programs: dict[str, Any] = {}

    def kernel(self, func: Func) -> WgslKernel:
        return kernel_wgsl(func, self.machine)

    def program(self, program: Program) -> ProgramText:
        numbers = numbers_of(program)
        made, errors = described(program, numbers, [self._call(step, program, numbers) for step in program.steps])
        made["states"] = [bytes_of(update.operands[1].tensor, numbers) for _, update in states_of(program.main)]
        return ProgramText(json.dumps(made), errors, program.suffix)

    def _call(self, step: KernelCall, program: Program, numbers: Mapping[str, int]) -> dict[str, Any]:
        kernel = program.kernels[step.kernel] if step.kernel in program.kernels else self._kernels[step.kernel]
        assert isinstance(kernel, WgslKernel)
        if (count := len(step.buffers) + len(step.dims)) > TOLD - _LAST:
            raise UnsupportedError(
                f"kernel '{step.kernel}' takes {count} tensors and sizes, and a GPU {TOLD - _LAST}"
            )
        places = []
        for ref in step.buffers:
            if ref.base not in BASES:
                raise UnsupportedError("weights in the memory of others are not for a GPU")
            base, index = _region(ref, program)
            places.append([base, index, encoded(ref.offset, numbers)])
        actual = dict(zip(kernel.dims, step.dims, strict=True))

        def size(e: Sym) -> Any:
            return encoded(substitute(e, actual), numbers)

        grids = [
            [grid.entry, [size(n) for n in grid.groups], None if grid.iterations is None else size(grid.iterations)]
            for grid in kernel.grids
        ]
        dims = [encoded(d, numbers) for d in step.dims]
        return {"kernel": step.kernel, "places": places, "dims": dims, "grids": grids, "room": size(kernel.room)}

    def begin(self, text: KernelText | ProgramText) -> None:
        if isinstance(text, WgslKernel):
            self._kernels[text.symbol] = text
            return
        assert isinstance(text, ProgramText)
        program = json.loads(text.text)
        for call in program["calls"]:
            call["module"] = self._module(call)
        self._programs[f"tw_run{text.suffix}"] = program

    def _module(self, call: dict[str, Any]) -> str:
        """The name of a kernel with its arguments in these buffers."""
        return f"{call['kernel']}:{''.join(str(base) for base, _, _ in call['places'])}"

    @property
    def submitted(self) -> int:
        return 1

    def objects(self, step: Callable[[int, int], None] | None = None) -> Sequence[bytes]:
        modules: dict[str, str] = {}
        for program in self._programs.values():
            for call in program["calls"]:
                kernel = self._kernels[call["kernel"]]
                bases = [base for base, _, _ in call["places"]]
                modules.setdefault(call["module"], _head(kernel, bases) + kernel.text)
        return [json.dumps({"modules": modules, "programs": self._programs}).encode()]

    def files(self, objects: Sequence[bytes]) -> Sequence[ObjectFile]:
        return [ObjectFile("program", "shaders", data) for data in objects]

    def image(self, objects: Sequence[bytes]) -> None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        pass


def _region(ref: BufferRef, program: Program) -> tuple[int, int]:
    """The buffer of a tensor and its number there: outputs, what states hold, and what they will."""
    main = program.main
    if ref.base == "input" and ref.index >= len(main.args):
        return BASES.index("output"), ref.index - len(main.args) + len(main.returns)
    if ref.base == "output" and ref.index >= len(main.returns):
        return BASES.index("output"), ref.index + len(states_of(main))
    return BASES.index(ref.base), ref.index


def numbers_of(program: Program) -> dict[str, int]:
    """The variables of a program, by number. UnsupportedError for one that needs more than launches in order."""
    if program.parts is not None:
        raise UnsupportedError(
            "a GPU runs no branches, loops or functions of the host so far",
            hint="compile this model for the CPU (target='host')",
        )
    return {dim.var.name: k for k, dim in enumerate(program.dims)}


def described(
    program: Program, numbers: Mapping[str, int], calls: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], ErrorTable]:
    """What every device is told of a program, its calls with the numbers of their errors, and these errors."""
    errors = ErrorTable()
    for step, call in zip(program.steps, calls, strict=True):
        call["errors"] = errors.base(step.checks)
    made = {
        "calls": calls,
        "plan": plan_of(program, errors, numbers),
        "inputs": [bytes_of(a.tensor, numbers) for a in program.main.args],
        "outputs": [bytes_of(v.tensor, numbers) for v in program.main.returns],
    }
    return made, errors


def bytes_of(type: TensorType, numbers: Mapping[str, int]) -> Any:
    """How large a tensor is."""
    return encoded(reduce(mul, type.shape, sym(type.dtype.storage.itemsize)), numbers)


def plan_of(program: Program, errors: ErrorTable, numbers: Mapping[str, int]) -> dict[str, Any] | None:
    """How sizes come from the shapes and data of a call; None where all are known."""
    if program.is_static:
        return None
    return {
        "dims": [_source(dim, program, numbers) for dim in program.dims],
        "conditions": [
            [encoded(c.holds, numbers), errors.base((c.check,)) + 1]
            for c in program.conditions
            if not (c.holds.is_const and c.holds.value)
        ],
        "outputs": [encoded(d, numbers) for shape in program.outputs for d in shape],
        "arena": encoded(program.arena, numbers),
    }


def _source(dim: Dim, program: Program, numbers: Mapping[str, int]) -> list[Any]:
    match dim.source:
        case InputAxis(k, axis):
            return ["axis", sum(program.ranks[:k]) + axis]
        case InputElement(k, element, dtype):
            return ["element", k, element, dtype.storage.name]
    return ["size", encoded(dim.source, numbers)]


def _head(kernel: WgslKernel, bases: Sequence[int]) -> str:
    """The declarations of the buffers, and the functions that read and write each argument."""
    every = [*bases, 0]
    atomic = {every[k] for k in kernel.parts}
    names = ("arena", "constants", "inputs", "outputs")
    lines = []
    for k, name in enumerate(names):
        access = "read" if k in (1, 2) else "read_write"
        if k in every:
            type = "atomic<u32>" if k in atomic else "u32"
            lines.append(f"@group(0) @binding({k}) var<storage, {access}> {name}: array<{type}>;")
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
        if base in (0, 3):
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
