"""Functions that do what ops of a program say, as LLVM IR while it is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from tilewright.codegen.cpu.kernel.text import Text
from tilewright.ir.core import Op
from tilewright.ops.define.staged import BRANCH, LOOP


class ProgramFunction(ABC):
    """The text of one function, and words of the arrays that it is given.

    It runs ops in their order. What is no call, branch or loop needs no code: constants, states and views are memory
    that is there, and what is measured is read where it is asked for.
    """

    def __init__(self) -> None:
        self.code = Text()

    def ops(self, ops: Iterable[Op]) -> None:
        for op in ops:
            self.op(op)

    def op(self, op: Op) -> None:
        match op.name:
            case "call":
                self.call(op)
            case _ if op.name == BRANCH:
                self.branch(op)
            case _ if op.name == LOOP:
                self.loop(op)

    @abstractmethod
    def call(self, op: Op) -> None:
        """Call the kernel, or the part, of an op."""

    def branch(self, op: Op) -> None:
        raise AssertionError("a program of kernels takes no branches")

    def loop(self, op: Op) -> None:
        raise AssertionError("a program of kernels has no loops")

    # Words of 8 bytes

    def word(self, array: str, index: int) -> str:
        """A pointer to a word of an array."""
        return array if index == 0 else self.code.emit(f"getelementptr i64, ptr {array}, i64 {index}")

    def read(self, array: str, index: int, kind: str = "i64") -> str:
        return self.code.emit(f"load {kind}, ptr {self.word(array, index)}, align 8")

    def write(self, value: str, array: str, index: int, kind: str = "i64") -> None:
        self.code.line(f"store {kind} {value}, ptr {self.word(array, index)}, align 8")

    def array(self, count: int) -> str:
        return self.code.alloca(f"[{max(count, 1)} x i64]", 8)

    def stops(self) -> str:
        """What stands at `stops` now."""
        return self.code.emit("load atomic i32, ptr %stops monotonic, align 4")

    # Control

    def require(self, holds: str, otherwise: Callable[[], int | str]) -> None:
        """Go on where a condition holds; return what `otherwise` gives, after what it writes, where it does not."""
        good, bad = self.code.label("good"), self.code.label("bad")
        self.code.branch(holds, good, bad)
        self.code.start(bad)
        self.code.line(f"ret i32 {otherwise()}")
        self.code.start(good)

    def when(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        first, second, after = (self.code.label(name) for name in ("then", "else", "after"))
        self.code.branch(condition, first, second)
        for label, write in ((first, then), (second, otherwise)):
            self.code.start(label)
            if write is not None:
                write()
            self.code.jump(after)
        self.code.start(after)

    def text(self, head: str) -> str:
        """The function, of which all is written."""
        return "\n".join([f"define {head} {{", "entry:", *self.code.allocas, *self.code.lines, "}", ""])
