"""What a device is told to run: its kernels, and for each program the launches of these in order, as JSON.

    {"kernels": {name: text}, "programs": {symbol: {
        "calls": [{"kernel", "places", "dims", "launches", "room", "errors"}],
        "plan": ..., "inputs": [bytes], "outputs": [bytes]}}}

A place is a buffer (`BASES`), the number of a tensor there, and bytes on from where that begins. A launch has an entry
point and groups along x, y and z, and what else its device wants to know. `room` are bytes of device memory beside the
arena that the call needs, `errors` what is added to the numbers of its errors. Sizes are expressions of the variables
of a program (`sizes.py`), which its `plan` says how to get. `runtime/devices/executor.py` reads all of it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import mul
from typing import Any, Self

from tilewright.codegen.cpu.assemble import ObjectFile
from tilewright.codegen.devices.sizes import encoded
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
from tilewright.ir.core import Func, substitute
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import ONE, ZERO, Sym, sym
from tilewright.ir.types import TensorType
from tilewright.loops.kernel_info import kernel_info
from tilewright.program.states import states_of
from tilewright.runtime.devices.states import is_known_on_both_sides

BASES = ("arena", "constants", "input", "output", "errors", "state")
"""Buffers of a program. Behind the outputs is what states hold that are known on both sides, and what states will
hold."""


@dataclass(frozen=True)
class Launch:
    """One grid of a kernel: the name of its entry point, and its groups along x, y and z; there may be more than a
    grid has, or none."""

    entry: str
    groups: tuple[Sym, Sym, Sym] = (ONE, ONE, ONE)

    def more(self, size: Callable[[Sym], Any]) -> list[Any]:
        """What a device is told beside entry and groups; `size` describes an expression of the kernel's dims."""
        return []


SERIAL_WORK = 1 << 17
"""Scalar operations that one thread of a device is trusted with: some milliseconds."""


def doubt_of_serial(func: Func) -> str:
    """Why a CPU should compute a kernel that one thread of a device does in order; "" where that is little work."""
    work = kernel_info(func).work
    if work is None or not work.is_const or work.value <= SERIAL_WORK:
        return ""
    return f"one thread would do all of its {work.value} scalar operations in order"


@dataclass(frozen=True)
class DeviceKernel(KernelText):
    """A kernel for a device: its launches, and the bytes of device memory that it needs (`room`). Groups and room are
    expressions of its `dims`, and so is what it is `told` (None: the dims). `doubt` says why a CPU beside the device
    should compute it in its place ("": it need not)."""

    launches: tuple[Launch, ...] = field(default=(), compare=False)
    room: Sym = ZERO
    dims: tuple[Sym, ...] = ()
    told: tuple[Sym, ...] | None = None
    doubt: str = ""


class DeviceCode(ABC):
    """The kernels and launches of one artefact, all in one object. What a back end adds is the text of a kernel."""

    failed = ""

    def __init__(self) -> None:
        self.kernels: dict[str, DeviceKernel] = {}
        self._programs: dict[str, Any] = {}

    @abstractmethod
    def kernel(self, func: Func) -> DeviceKernel:
        """The text of a scheduled kernel. UnsupportedError for what the device has not."""

    def program(self, program: Program) -> ProgramText:
        if program.parts is not None:
            raise UnsupportedError("a device runs launches in order, and no native code between them")
        numbers = {dim.var.name: k for k, dim in enumerate(program.dims)}
        errors = ErrorTable()
        calls = [self.call(step, program, numbers) | {"errors": errors.base(step.checks)} for step in program.steps]
        made = {
            "calls": calls,
            "plan": plan_of(program, errors, numbers),
            "inputs": [_bytes_of(a.tensor, numbers) for a in program.main.args],
            "outputs": [_bytes_of(v.tensor, numbers) for v in program.main.returns],
        }
        return ProgramText(json.dumps(made), errors, program.suffix)

    def call(self, step: KernelCall, program: Program, numbers: Mapping[str, int]) -> dict[str, Any]:
        """What a device is told of one call of a kernel. UnsupportedError for tensors that it cannot reach."""
        kernel = program.kernels.get(step.kernel) or self.kernels[step.kernel]
        assert isinstance(kernel, DeviceKernel)
        actual = dict(zip(kernel.dims, step.dims, strict=True))

        def size(e: Sym) -> Any:
            return encoded(substitute(e, actual), numbers)

        return {
            "kernel": step.kernel,
            "places": [[*_region(ref, program), encoded(ref.offset, numbers)] for ref in step.buffers],
            "dims": [size(e) for e in (kernel.dims if kernel.told is None else kernel.told)],
            "launches": [[each.entry, [size(n) for n in each.groups], *each.more(size)] for each in kernel.launches],
            "room": size(kernel.room),
        }

    def begin(self, text: KernelText | ProgramText) -> None:
        if isinstance(text, DeviceKernel):
            self.kernels[text.symbol] = text
        else:
            assert isinstance(text, ProgramText)
            self._programs[f"tw_run{text.suffix}"] = json.loads(text.text)

    @property
    def submitted(self) -> int:
        return 1

    def texts(self, step: Callable[[int, int], None] | None) -> dict[str, str]:
        """The texts of the kernels that the device is given, by name."""
        return {name: kernel.text for name, kernel in self.kernels.items()}

    def objects(self, step: Callable[[int, int], None] | None = None) -> Sequence[bytes]:
        return [json.dumps({"kernels": self.texts(step), "programs": self._programs}).encode()]

    def files(self, objects: Sequence[bytes]) -> Sequence[ObjectFile]:
        return [ObjectFile("program", "kernels", data) for data in objects]

    def image(self, objects: Sequence[bytes]) -> None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.kernels.clear()


def _region(ref: BufferRef, program: Program) -> tuple[int, int]:
    """The buffer of a tensor and its number there: outputs, what states hold (in the buffer of states those that the
    host does not know), and what they will."""
    if ref.base not in BASES:
        raise UnsupportedError("weights in the memory of others are not for a device")
    main = program.main
    if ref.base == "input" and ref.index >= len(main.args):
        number = ref.index - len(main.args)
        if _is_known(program, number):
            return BASES.index("output"), number + len(main.returns)
        return BASES.index("state"), number
    if ref.base == "output" and ref.index >= len(main.returns):
        return BASES.index("output"), ref.index + len(states_of(main))
    return BASES.index(ref.base), ref.index


def _is_known(program: Program, number: int) -> bool:
    """Whether the host knows what a state holds after each call."""
    type = states_of(program.main)[number][1].operands[1].tensor
    nbytes = reduce(mul, (d.value for d in type.shape), type.dtype.storage.itemsize)
    return is_known_on_both_sides(type.dtype.storage.name, nbytes)


def _bytes_of(type: TensorType, numbers: Mapping[str, int]) -> Any:
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
            if k >= len(program.main.args) and not _is_known(program, k - len(program.main.args)):
                raise UnsupportedError("a size depends on an element of a state that stays on the device")
            return ["element", k, element, dtype.storage.name]
    return ["size", encoded(dim.source, numbers)]
