"""What a device is told to run: PTX for each kernel, and the launches of each program.

A launch takes addresses: the word for the first error, what is added to the numbers of its errors, its arguments, its
sizes, and the device memory that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tilewright.codegen.cpu.assemble import Effort, assembly
from tilewright.codegen.devices.program import DeviceCode
from tilewright.codegen.program import KernelText, ProgramText
from tilewright.codegen.ptx.kernel import PtxKernel, kernel_ptx, target_of
from tilewright.ir.core import Func
from tilewright.ir.diag import InternalError
from tilewright.target.gpu.cuda import Cuda


class CudaCode(DeviceCode):
    """The kernels and launches of one artefact. PTX is made in processes of its own, as LLVM ends the process where it
    has no code for an instruction."""

    def __init__(self, machine: Cuda, threads: int) -> None:
        super().__init__()
        self.machine = machine
        self.failed = ""
        self._pool = ThreadPoolExecutor(max(1, threads))
        self._made: dict[str, Future[str]] = {}

    def kernel(self, func: Func) -> PtxKernel:
        return kernel_ptx(func, self.machine)

    def begin(self, text: KernelText | ProgramText) -> None:
        super().begin(text)
        if isinstance(text, PtxKernel):
            self._made[text.symbol] = self._pool.submit(ptx_of, text.text, self.machine)

    @property
    def submitted(self) -> int:
        return len(self._made)

    def texts(self, step: Callable[[int, int], None] | None) -> dict[str, str]:
        """The PTX of the kernels, by name, waiting for what is not ready."""
        found = {}
        for k, (name, made) in enumerate(self._made.items()):
            try:
                found[name] = made.result()
            except InternalError as error:
                self.failed = name
                raise InternalError(error.what, where=f"kernel '{name}'", hint=error.hint) from error
            if step is not None:
                step(k + 1, len(self._made))
        return found

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=True)


def ptx_of(text: str, machine: Cuda) -> str:
    """The PTX of a kernel's LLVM IR. InternalError with what LLVM said where it makes none."""
    return assembly(text, target_of(machine), effort=Effort.KERNEL)
