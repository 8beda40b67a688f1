"""LLVM IR of a kernel that a user gives in place of ours: looked at before it becomes code."""

from __future__ import annotations

import re

from llvmlite import binding

from tilewright.ir.diag import TextError

_PLACE = re.compile(r"<string>:(\d+):(\d+): error: (.*)")


def check_given(text: str, ours: str, file: str) -> None:
    """TextError, with line and column, for a text that is no LLVM IR, that LLVM's verifier refuses, or that lacks a
    function which our text defines, or has it with other parameters."""
    found, wanted = _functions(text, file), _functions(ours, "the compiler's own text")
    for name, type in wanted.items():
        if name not in found:
            raise TextError(f"the text defines no function @{name}", where=file, hint=f"define it as {type}")
        if found[name] != type:
            raise TextError(f"@{name} is {found[name]} in the text, and callers take {type}", where=file)


def _functions(text: str, file: str) -> dict[str, str]:
    """The functions that others may call, with their types."""
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
    defined = (f for f in module.functions if not f.is_declaration and f.linkage.name == "external")
    return {f.name: str(f.global_value_type) for f in defined}
