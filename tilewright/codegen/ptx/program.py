"""What a device is told to run: PTX for each kernel, and for each program its launches in order, as JSON.

A launch takes addresses: the word for the first error, what is added to the numbers of its errors, its arguments, its
sizes, and the device memory that it needs. Sizes are expressions of the variables of a program
(`codegen/wgsl/sizes.py`), which its `plan` says how to get.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from tilewright.codegen.cpu.assemble import Effort, ObjectFile, assembly
from tilewright.codegen.program import KernelCall, KernelText, Program, ProgramText
from tilewright.codegen.ptx.kernel import PtxKernel, kernel_ptx, target_of
from tilewright.codegen.wgsl.program import BASES, described, numbers_of
from tilewright.codegen.wgsl.sizes import encoded
from tilewright.ir.core import Func, substitute
from tilewright.ir.diag import InternalError, UnsupportedError
from tilewright.ir.sym import Sym
from tilewright.target.gpu.cuda import Cuda


class CudaCode:
    """The kernels and launches of one artefact, all in one object. PTX is made in processes of its own, as LLVM ends
    the process where it has no code for an instruction."""

    def __init__(self, machine: Cuda, threads: int) -> None:
        self.machine = machine
        self.failed = ""
        self._pool = ThreadPoolExecutor(max(1, threads))
        self._kernels: dict[str, tuple[PtxKernel, Future[str]]] = {}
        self._programs: dict[str, Any] = {}

    def kernel(self, func: Func) -> PtxKernel:
        return kernel_ptx(func, self.machine)

    def program(self, program: Program) -> ProgramText:
        numbers = numbers_of(program)
        made, errors = described(program, numbers, [self._call(step, program, numbers) for step in program.steps])
        return ProgramText(json.dumps(made), errors, program.suffix)

    def _call(self, step: KernelCall, program: Program, numbers: Mapping[str, int]) -> dict[str, Any]:
        kernel = program.kernels[step.kernel] if step.kernel in program.kernels else self._kernels[step.kernel][0]
        assert isinstance(kernel, PtxKernel)
        places = []
        for ref in step.buffers:
            if ref.base not in BASES:
                raise UnsupportedError("weights in the memory of others are not for a GPU")
            places.append([BASES.index(ref.base), ref.index, encoded(ref.offset, numbers)])
        actual = dict(zip(kernel.dims, step.dims, strict=True))

        def size(e: Sym) -> Any:
            return encoded(substitute(e, actual), numbers)

        launches = [[each.entry, [size(n) for n in each.groups], list(each.threads)] for each in kernel.launches]
        dims = [encoded(d, numbers) for d in step.dims]
        return {"kernel": step.kernel, "places": places, "dims": dims, "launches": launches, "room": size(kernel.room)}

    def begin(self, text: KernelText | ProgramText) -> None:
        if isinstance(text, PtxKernel):
            self._kernels[text.symbol] = text, self._pool.submit(ptx_of, text.text, self.machine)
        else:
            assert isinstance(text, ProgramText)
            self._programs[f"tw_run{text.suffix}"] = json.loads(text.text)

    @property
    def submitted(self) -> int:
        return len(self._kernels)

    def objects(self, step: Callable[[int, int], None] | None = None) -> Sequence[bytes]:
        texts = {}
        for k, (name, (_, made)) in enumerate(self._kernels.items()):
            try:
                texts[name] = made.result()
            except InternalError as error:
                self.failed = name
                raise InternalError(error.what, where=f"kernel '{name}'", hint=error.hint) from error
            if step is not None:
                step(k + 1, len(self._kernels))
        return [json.dumps({"kernels": texts, "programs": self._programs}).encode()]

    def files(self, objects: Sequence[bytes]) -> Sequence[ObjectFile]:
        return [ObjectFile("program", "ptx", data) for data in objects]

    def image(self, objects: Sequence[bytes]) -> None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=True)


def ptx_of(text: str, machine: Cuda) -> str:
    """The PTX of a kernel's LLVM IR. InternalError with what LLVM said where it makes none."""
    return assembly(text, target_of(machine), effort=Effort.KERNEL)
