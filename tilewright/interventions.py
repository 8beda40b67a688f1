"""What users watch of a compilation, and what they replace in it: files of its stages, and kernels from files."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilewright.codegen.cpu.given import check_given
from tilewright.codegen.program import KernelText
from tilewright.ir.core import Func, Module
from tilewright.ir.diag import Remark, TextError, VerifyError
from tilewright.ir.text import print_func, print_module
from tilewright.ir.verify import Spec, verify_func
from tilewright.loops.kernel_info import is_kernel, kernel_info, parse_kernel
from tilewright.loops.storage.inplace import overwritable
from tilewright.options import KernelFile
from tilewright.runtime.errors import OptionError, short_name
from tilewright.target.gpu.cuda import Cuda
from tilewright.target.gpu.webgpu import Gpu
from tilewright.target.machine import Machine
from tilewright.target.named import CTarget
from tilewright.target.target import Target

LOOPS, LLVM = ".loops", ".ll"
"""Suffixes of kernels as loops, and as LLVM IR."""

_CODE = {Target.kind: LLVM, CTarget.kind: ".c", Gpu.kind: ".wgsl", Cuda.kind: LLVM}
"""Suffixes of the code of kernels, by kinds of machines."""


_STAGE = re.compile(r"\d{3,}-\w+(\.remarks)?\.txt")
"""Names of the files of stages."""


_BEGIN_WITH = (
    "begin with the file of kernels/ that --dump writes, made with the same model, options and version"
)

MOST_LISTED = 20
"""Kernels that a hint lists."""


def kernels_near(wanted: str, kernels: Sequence[str]) -> str:
    """A hint for a kernel that is not there: those with nearest names or numbers, and which there are."""
    known = {name: name for name in kernels} | {name.partition("_")[0]: name for name in kernels}
    near = dict.fromkeys(known[name] for name in difflib.get_close_matches(wanted, known, 3))
    said = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    more = f" and {len(kernels) - MOST_LISTED} more" if len(kernels) > MOST_LISTED else ""
    return f"{said}the kernels are: {', '.join(kernels[:MOST_LISTED]) or 'none'}{more}"


class Dump:
    """The files of a compilation, in a folder: the program after each pass and stage (`012-fuse.txt`), with the remarks
    that came since the one before (`012-fuse.remarks.txt`), and each kernel as loops and as LLVM IR (`kernels/`)."""

    def __init__(self, folder: Path) -> None:
        """Stages of an earlier compilation are removed from the folder; kernels, which somebody may have edited, stay
        until they are written again. OptionError where the folder cannot be made, or written to."""
        self._folder = folder
        self._count = 0
        try:
            (folder / "kernels").mkdir(parents=True, exist_ok=True)
            for file in folder.iterdir():
                if _STAGE.fullmatch(file.name) and file.is_file():
                    file.unlink()
        except OSError as error:
            raise self._refused(error) from error

    def stage(self, name: str, module: Module, remarks: Sequence[Remark], told: int) -> int:
        """Write what a program, one of several of a model, is after a pass or a stage, and its `remarks` but for those
        that were `told` before; gives how many are told now."""
        stem = f"{self._count:03}-{name.replace('/', '_')}"
        self._count += 1
        self._write(f"{stem}.txt", print_module(module))
        if len(remarks) > told:
            self._write(f"{stem}.remarks.txt", "".join(f"{remark}\n" for remark in remarks[told:]))
        return len(remarks)

    def kernel(self, func: Func, text: KernelText, machine: Machine) -> None:
        """Write a kernel for a machine."""
        self._write(f"kernels/{func.name}{LOOPS}", print_func(func))
        self._write(f"kernels/{func.name}{_CODE.get(machine.kind, '.txt')}", text.text)

    def _write(self, name: str, text: str) -> None:
        try:
            (self._folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> OptionError:
        reason = error.strerror or str(error)
        return OptionError(f"cannot write to the folder {os.fspath(self._folder)}: {reason}", hint="--dump names it")


class KernelOverrides:
    """Kernels that take the place of the compiler's own: loops, or LLVM IR."""

    def __init__(self, files: Sequence[KernelFile]) -> None:
        self._files = files
        self._used: dict[str, None] = {}
        self._kernels: list[str] = []

    def loops(self, kernel: Func, spec: Spec) -> None:
        """Give a kernel the loops of its file, if it has one; to be called for each kernel. TextError, with the
        place, for what cannot be read, for loops that are illegal, and for those of a kernel with other arguments."""
        self._kernels.append(kernel.name)
        given = self._for(kernel.name, LOOPS)
        if given is None:
            return
        found = parse_kernel(given.text, file=given.name)
        if not is_kernel(found):
            raise TextError(f"@{found.name} is no kernel", where=given.name, hint=_BEGIN_WITH)
        own = kernel_info(kernel)
        for what, theirs, ours in (
            ("arguments", [str(a.type) for a in found.args], [str(a.type) for a in kernel.args]),
            ("dims", [str(d) for d in found.dims], [str(d) for d in kernel.dims]),
            ("results", kernel_info(found).outputs, own.outputs),
            ("packed operands", dict(kernel_info(found).packed), dict(own.packed)),
        ):
            if theirs != ours:
                raise TextError(
                    f"the {what} of @{kernel.name} are {theirs} in the text, and {ours} in the program",
                    where=given.name,
                    hint=_BEGIN_WITH,
                )
        found.name = kernel.name
        try:
            verify_func(found, spec)
        except VerifyError as error:
            raise TextError(error.what, where=f"{given.name}, {error.where}", hint=error.hint) from error
        kernel.body = found.body
        kernel.info = replace(own, schedule=kernel_info(found).schedule, inplace=overwritable(kernel))

    def llvm(self, func: Func, text: KernelText, machine: Machine) -> KernelText:
        """The text of a kernel, or that of its file. TextError as `check_given` has it, OptionError for a machine whose
        kernels are no LLVM IR."""
        given = self._for(func.name, LLVM)
        if given is None:
            return text
        if not isinstance(machine, Target) or machine.kind != Target.kind:
            raise OptionError(
                f"{given.name}: kernels for {machine.name} are not made of LLVM IR", hint="give loops, as --dump writes"
            )
        check_given(given.text, text, given.name, machine)
        return replace(text, text=given.text)

    def check_all_used(self) -> None:
        """OptionError for a file of a kernel that there is not."""
        for given in self._files:
            if given.kernel not in self._used:
                what = f"there is no kernel '{short_name(given.kernel)}' to override"
                raise OptionError(what, hint=kernels_near(given.kernel, self._kernels))

    def _for(self, kernel: str, suffix: str) -> KernelFile | None:
        """By its whole name, or by its number (`k3`)."""
        wanted = (kernel, kernel.partition("_")[0])
        found = next((f for f in self._files if f.kernel in wanted and f.is_llvm == (suffix == LLVM)), None)
        if found is not None:
            self._used[found.kernel] = None
        return found
