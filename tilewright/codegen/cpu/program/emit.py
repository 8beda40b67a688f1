"""The program of a compiled model as LLVM IR, from its ops: all of it that needs no host."""

from __future__ import annotations

from tilewright.codegen.cpu.program.kernel_calls import kernel_calls_ir
from tilewright.codegen.cpu.program.native_blocks import native_blocks_ir
from tilewright.codegen.program import ErrorTable, Program, ProgramText
from tilewright.target.target import Target


def program_ir(program: Program, target: Target, *, profile: bool = False) -> ProgramText:
    """The entry points of a program of kernels (with `profile` also one that takes times), or the functions of the
    `native` ops of one that calls parts."""
    errors = ErrorTable()
    if program.parts is None:
        functions = kernel_calls_ir(program, target, errors, profile)
    else:
        functions = native_blocks_ir(program, program.parts, target)
    text = "\n".join([f'target triple = "{target.triple}"', *functions])
    return ProgramText(f"{text}\n", errors, program.suffix)
