"""The text of one LLVM module while it is written: numbered registers, labels, and what must be declared
once."""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.lanes import Reg, register_type, splat_literal, vector
from tilewright.ir.dtype import DType
from tilewright.target.scale import Scale


class Text:
    """Lines of one function under construction, and the module-level text that it needs.

    `block` is the label of the block being written, for phi instructions; `scale` is the target's instruction for
    vector math. Intrinsics need no declaration.
    """

    def __init__(self, scale: Scale | None = None) -> None:
        self.scale = scale
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.declarations: dict[str, None] = {}
        self.functions: dict[str, str] = {}
        self.globals: dict[str, str] = {}
        self.block = "entry"
        self._names = 0

    def share(self, other: Text) -> None:
        """Write into the module of `other`, whose globals, declarations and helper functions are then also these."""
        self.declarations, self.functions, self.globals = other.declarations, other.functions, other.globals

    def emit(self, instruction: str) -> str:
        """Append an instruction and return the name of its result."""
        name = self.name()
        self.lines.append(f"  {name} = {instruction}")
        return name

    def line(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {instruction}")

    def name(self) -> str:
        """A new register name."""
        self._names += 1
        return f"%v{self._names}"

    def label(self, hint: str) -> str:
        """A new label."""
        self._names += 1
        return f"{hint}{self._names}"

    def start(self, label: str) -> None:
        """Begin the block `label`; the block before must have been ended."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch(self, condition: str, then: str, otherwise: str) -> None:
        self.line(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def alloca(self, type: str, align: int) -> str:
        """A pointer to memory that lives as long as the function runs."""
        name = self.name()
        self.allocas.append(f"  {name} = alloca {type}, align {align}")
        return name

    def reg(self, dtype: DType, lanes: int, instruction: str) -> Reg:
        """Append an instruction whose result is `lanes` elements of `dtype`."""
        return Reg(self.emit(instruction), dtype, lanes)

    def splat(self, x: Reg, lanes: int) -> Reg:
        """`x` in each of `lanes` lanes; unchanged when it has them."""
        if x.lanes == lanes:
            return x
        assert x.lanes == 1, f"{x.lanes} lanes where 1 or {lanes} are expected"
        return Reg(self.splat_name(register_type(x.dtype), x.name, lanes), x.dtype, lanes)

    def splat_name(self, element: str, name: str, lanes: int) -> str:
        """The name of a vector whose lanes all are `name`, which has type `element`."""
        if lanes == 1 or not name.startswith("%"):
            return splat_literal(element, name, lanes)
        type = vector(element, lanes)
        first = self.emit(f"insertelement {type} poison, {element} {name}, i64 0")
        return self.emit(f"shufflevector {type} {first}, {type} poison, <{lanes} x i32> zeroinitializer")

    def call(self, dtype: DType, lanes: int, callee: str, *operands: Reg) -> Reg:
        """A call whose result is `lanes` elements of `dtype`."""
        arguments = ", ".join(x.typed for x in operands)
        return self.reg(dtype, lanes, f"call {vector(register_type(dtype), lanes)} @{callee}({arguments})")

    def module(self) -> str:
        """Globals, declarations and helper functions that the lines need."""
        parts = [*self.globals.values(), *self.declarations, *self.functions.values()]
        return "".join(part if part.endswith("\n") else part + "\n" for part in parts)
