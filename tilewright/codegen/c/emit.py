"""The program of a compiled model as C, from its ops: all of it that needs no host."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.c.blocks import BlocksOfSteps
from tilewright.codegen.c.program import ProgramOfKernels
from tilewright.codegen.program import ErrorTable, Program, ProgramText


@dataclass(frozen=True)
class CProgram(ProgramText):
    """The functions of a program, and the names of the scalar functions that they call."""

    needs: tuple[str, ...] = ()


def program_c(program: Program) -> CProgram:
    """The entry points of a program of kernels, or the functions of the `native` ops of one that calls parts."""
    errors = ErrorTable()
    if program.parts is None:
        written = ProgramOfKernels(program, errors)
        return CProgram(written.text(), errors, program.suffix, tuple(written.needs))
    return CProgram(BlocksOfSteps(program, program.parts).text(), errors, program.suffix)
