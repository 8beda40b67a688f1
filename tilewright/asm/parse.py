"""Assembler text of LLVM as functions of basic blocks of instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LABEL = re.compile(r"([\w.$]+):")
_FALL_THROUGH = re.compile(r"(?:#+|//|;) (%bb\.\d+):")
_ORIGIN = re.compile(r"(?:#|//|;) %([\w.$-]+)")
_COMMENT = re.compile(r"\s*(?:#+(?= )|//|;).*")
_FUNCTION_OF_ELF = re.compile(r"\.type\s+([\w.$]+),[@%]function")
_FUNCTION_OF_MACHO = re.compile(r"^(_[\w.$]+):", re.MULTILINE)
"""Its symbols begin with `_`, its labels do not."""
_END_OF_FUNCTION = re.compile(r"\.Lfunc_end|\s*\.(section|subsections_via_symbols)\b")
_NESTED = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}

_RETURNS = frozenset({"ret", "retq", "ud2", "brk"})
_RETURN_OF_IBM_Z = ("br", ("%r14",))
_BRANCH = re.compile(
    r"j[a-z]*|b(\.[a-z]+)?|br|[ct]bn?z"  # x86, AArch64
    r"|b(eq|ne|lt|ge|gt|le)(z|u)?"  # RISC-V
    r"|cl?g?[ri]j[a-z]*|brctg?|brx(h|le)g?"  # IBM Z
)
_UNCONDITIONAL = frozenset({"jmp", "jmpq", "b", "br", "j", "jr"})


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `operands` as they are spelled, in their order."""

    mnemonic: str
    operands: tuple[str, ...] = ()

    @property
    def is_return(self) -> bool:
        return self.mnemonic in _RETURNS or (self.mnemonic, self.operands) == _RETURN_OF_IBM_Z

    @property
    def is_branch(self) -> bool:
        """Whether it may go on elsewhere in the function (calls do not)."""
        return _BRANCH.fullmatch(self.mnemonic) is not None

    @property
    def is_unconditional(self) -> bool:
        return self.mnemonic in _UNCONDITIONAL

    def __str__(self) -> str:
        return f"{self.mnemonic}\t{', '.join(self.operands)}" if self.operands else self.mnemonic


@dataclass(frozen=True, slots=True)
class MachineBlock:
    """Instructions that run one after the other; `origin` is the block of the LLVM IR, where the text says
    it."""

    label: str
    origin: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class MachineFunction:
    """A function's blocks in the order of the text; a block falls through to the next."""

    name: str
    blocks: tuple[MachineBlock, ...]

    def successors(self, index: int) -> tuple[int, ...]:
        """The blocks that may run after block `index`, as positions in `blocks`."""
        instructions = self.blocks[index].instructions
        last = instructions[-1] if instructions else Instruction("nop")
        following = (index + 1,) if index + 1 < len(self.blocks) else ()
        if last.is_return:
            return ()
        if not last.is_branch:
            return following
        goals = tuple(k for k, b in enumerate(self.blocks) if last.operands and b.label == last.operands[-1])
        return goals if last.is_unconditional else (*goals, *following)


def parse_assembly(text: str) -> tuple[MachineFunction, ...]:
    """The functions of a module. Directives and comments are dropped, but for names of blocks of the IR."""
    functions: list[MachineFunction] = []
    names = set((_FUNCTION_OF_MACHO if _is_macho(text) else _FUNCTION_OF_ELF).findall(text))
    current: _Function | None = None
    for line in text.splitlines():
        label = _LABEL.match(line)
        begins = label is not None and label[1] in names
        if current is not None and (begins or _END_OF_FUNCTION.match(line)):
            functions.append(current.finished())
            current = None
        if label is not None and begins:
            current = _Function(label[1])
        elif current is not None:
            current.read(line)
    return tuple(functions if current is None else (*functions, current.finished()))


def _is_macho(text: str) -> bool:
    return ".subsections_via_symbols" in text


class _Function:
    """A function while its lines are read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.blocks: list[MachineBlock] = []
        self.label, self.origin = "", ""
        self.instructions: list[Instruction] = []

    def read(self, line: str) -> None:
        start = _LABEL.match(line) or _FALL_THROUGH.match(line)
        if start:
            self._end_block()
            origin = _ORIGIN.search(line, start.end())
            self.label, self.origin = start[1], origin[1] if origin else ""
            return
        code = _COMMENT.sub("", line).strip()
        if not code or code.startswith("."):
            return
        mnemonic, _, rest = code.partition("\t") if "\t" in code else code.partition(" ")
        instruction = Instruction(mnemonic, tuple(_operands(rest)))
        self.instructions.append(instruction)
        if instruction.is_branch or instruction.is_return:
            self._end_block()
            self.label, self.origin = "", ""

    def finished(self) -> MachineFunction:
        self._end_block()
        return MachineFunction(self.name, tuple(self.blocks))

    def _end_block(self) -> None:
        if self.instructions or self.label:
            self.blocks.append(MachineBlock(self.label, self.origin, tuple(self.instructions)))
        self.instructions = []


def _operands(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += _NESTED.get(character, 0)
        if character == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()
