"""A kernel for CPUs that is a function with the calling convention of C, in a relocatable object."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tilewright.codegen.cpu.kernel.checks import KernelChecks, report_where
from tilewright.codegen.cpu.kernel.indices import Indices
from tilewright.codegen.cpu.kernel.text import Text
from tilewright.codegen.cpu.linking.elf import UNDEFINED, read_elf
from tilewright.codegen.cpu.linking.link import link
from tilewright.codegen.cpu.program.parallel_tasks import task_ir
from tilewright.codegen.program import Check
from tilewright.external.kernel import ExternalText, WholeOperator
from tilewright.ir.diag import InternalError, UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.target.machine import Machine
from tilewright.target.target import Target


def c_function(
    op: WholeOperator, symbol: str, machine: Machine, function: str, object: bytes, numbers: Sequence[int | Sym] = ()
) -> ExternalText:
    """The kernel that calls `int32_t function(const void *operand, ..., void *result, ..., int64_t number, ...)` of an
    object file (ELF, position-independent code for the machine, which needs nothing but the C and the math library).

    `numbers` are what it wants to know beside the tensors: integers, and expressions of the sizes of its operands. It
    runs on one thread of several that may call it at once, in the caller's floating-point modes; a result other than 0
    is an ExecutionError of the call. UnsupportedError for an object that cannot be linked or has no such function.
    """
    if not isinstance(machine, Target) or machine.kind != Target.kind:
        raise UnsupportedError(f"functions of C are for CPUs, and not for '{machine.name}'")
    if machine.links_images:
        _check_object(function, object)
    count = len(op.operands) + len(op.results)
    text, checks = Text(machine.scale), KernelChecks()
    indices = Indices(text)
    for k, dim in enumerate(op.dims):
        indices.bind(dim, indices.integer(f"%d{k}"))
    unknown = sorted({str(v) for n in numbers for v in sym(n).vars.difference(op.dims)})
    if unknown:
        raise UnsupportedError(f"the numbers of '{function}' depend on {', '.join(unknown)}, which the kernel has not")
    given = [f"ptr %b{k}" for k in range(count)] + [f"i64 {indices.uniform(sym(n))}" for n in numbers]
    text.declarations[f"declare i32 @{function}({', '.join(each.split()[0] for each in given)})"] = None
    code = text.emit(f"call i32 @{function}({', '.join(given)})")
    failed = text.emit(f"icmp ne i32 {code}, 0")
    report_where(text, failed, checks.number(Check("ExecutionError", f"the external function '{function}' failed")))
    text.finish()
    parameters = ["ptr %state", *(f"ptr %b{k}" for k in range(count)), *(f"i64 %d{k}" for k in range(len(op.dims)))]
    parameters += ["ptr %scratch", "i64 %begin", "i64 %end"]
    body = "\n".join([*text.allocas, *text.lines, "  ret void"])
    ir = "".join((
        f"; calls a function of the object {hashlib.blake2b(object, digest_size=16).hexdigest()}\n",
        f'target triple = "{machine.triple}"\n{text.module()}',
        f"define void @{symbol}({', '.join(parameters)}) noinline #0 {{\nentry:\n{body}\n}}\n",
        task_ir(symbol, count, len(op.dims)),
        f"attributes #0 = {{ nounwind {machine.function_attributes} }}\n",
    ))  # fmt: skip
    return ExternalText(symbol, ir, tuple(checks.found), function=function, object=object)


def _check_object(function: str, object: bytes) -> None:
    try:
        found = read_elf(object, f"the object of '{function}'")
        link([object], [f"the object of '{function}'"])
    except InternalError as error:
        raise UnsupportedError(
            f"the external function '{function}' cannot be linked: {error.what}",
            hint="compile it with -c -fPIC -fno-asynchronous-unwind-tables for the machine of the model",
        ) from error
    table = found.symbols
    defined = {n for n, s, local in zip(table.names, table.section, table.is_local, strict=True)
               if s != UNDEFINED and not local}  # fmt: skip
    if function not in defined:
        raise UnsupportedError(
            f"the object has no function '{function}'", hint=f"it has {', '.join(sorted(defined)) or 'none'}"
        )
