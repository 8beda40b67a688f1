"""LLVM IR of a kernel that a user gives in place of ours: looked at before it becomes code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import binding

from tilewright.codegen.cpu import apart
from tilewright.codegen.cpu.assemble import Effort
from tilewright.codegen.cpu.generator import Generator
from tilewright.codegen.program import KernelText
from tilewright.ir.diag import InternalError, TextError
from tilewright.runtime.storage.loader import address_of_import
from tilewright.target.host import host_target
from tilewright.target.target import Target

_CONVENTION = re.compile(r"^define [^@]*?\b(\w*cc\d*) [^@]*@", re.MULTILINE)
"""How a function is called, where that is not as in C."""

_INTRINSIC, _OF_PROGRAM = "llvm.", "tw_"
"""What the names of functions begin with that LLVM knows, and that the rest of the program has."""

_PLACE = re.compile(r"<string>:(\d+):(\d+): error: (.*)")


def check_given(text: str, ours: KernelText, file: str, target: Target) -> None:
    """TextError, with line and column, for a text that is no LLVM IR, that LLVM's verifier refuses, that lacks a
    function which our text defines, or has it with other parameters, and for one of which LLVM makes no code for the
    target. Another process tries first, as LLVM ends the one that gives it what it does not expect."""
    efforts = (Effort.KERNEL, Effort.LITTLE) if ours.little else (Effort.KERNEL,)
    with _told_of(file):
        apart.refusal_of(text, Generator.of(target, efforts[0].value))  # what it gives is told below, with the place
    found, called = _functions(text, file)
    wanted, known = _functions(ours.text, "the compiler's own text")
    for name, type in wanted.items():
        if name not in found:
            raise TextError(f"the text defines no function @{name}", where=file, hint=f"define it as {type}")
        if found[name] != type:
            raise TextError(f"@{name} is {found[name]} in the text, and callers take {type}", where=file)
    if others := sorted(found.keys() - wanted.keys()):
        callers = ", ".join(wanted)
        hint = f"begin it with `define internal`: the program has functions of its own, and calls only {callers}"
        raise TextError(f"the text defines @{others[0]} for others", where=file, hint=hint)
    unknown = (f for f in called if f not in known and not f.startswith(_OF_PROGRAM) and not address_of_import(f))
    if target == host_target() and (missing := next(unknown, "")):
        hint = "define it in the text, or call what the C library and its mathematics have"
        raise TextError(f"the text calls @{missing}, which this system has not", where=file, hint=hint)
    with _told_of(file):
        for effort in efforts:
            apart.object_of(text, Generator.of(target, effort.value))


@contextmanager
def _told_of(file: str) -> Iterator[None]:
    """What LLVM says of a text is an error of its file."""
    try:
        yield
    except InternalError as error:
        raise TextError(error.what, where=file, hint="begin with the file that --dump writes") from error


def _functions(text: str, file: str) -> tuple[dict[str, str], list[str]]:
    """The functions that others may call, with their types, and those that the text takes from elsewhere."""
    binding.initialize_native_target()
    try:
        module = binding.parse_assembly(text)
    except RuntimeError as error:
        place = _PLACE.search(str(error))
        if place is None:
            raise TextError(f"LLVM refuses the text: {str(error).strip()}", where=file) from error
        line, column, what = place.groups()
        shown = (text.splitlines() or [""])[int(line) - 1 : int(line)]
        raise TextError(
            f"{what}\n  {shown[0] if shown else ''}\n  {' ' * (int(column) - 1)}^", where=f"{file}:{line}:{column}"
        ) from error
    try:
        module.verify()
    except RuntimeError as error:
        raise TextError(f"LLVM's verifier refuses the text: {str(error).strip()}", where=file) from error
    defined = (f for f in module.functions if not f.is_declaration and f.linkage.name == "external")
    types = {f.name: " ".join([*_CONVENTION.findall(str(f)), str(f.global_value_type)]) for f in defined}
    return types, [f.name for f in module.functions if f.is_declaration and not f.name.startswith(_INTRINSIC)]
