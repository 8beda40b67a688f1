"""The text of one LLVM module while it is written, and its registers as Python values.

Arithmetic on registers appends instructions, so that a formula reads as in a book: `(x - y) * 0.5`. Python numbers
become literals of the other operand's element type, in all its lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.codegen.cpu.kernel.lanes import literal, register_type, splat_literal, vector
from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType
from tilewright.target.scale import Scale

Number = int | float | bool


class Text:
    """Lines of one function under construction, and the module-level text that it needs.

    `block` is the label of the block being written, for phi instructions; `scale` is the target's instruction for
    vector math, `fuses` says whether it has fused multiply-adds, `rounds_to_bf16` whether it has an instruction for
    that, and `has_floats` whether integers may be computed with floats. `unfinished` writes what was put off until the
    block ends, or `finish` is called. Intrinsics need no declaration.
    """

    def __init__(
        self,
        scale: Scale | None = None,
        *,
        fuses: bool = True,
        rounds_to_bf16: bool = False,
        has_floats: bool = True,
    ) -> None:
        self.scale = scale
        self.fuses = fuses
        self.rounds_to_bf16 = rounds_to_bf16
        self.has_floats = has_floats
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.declarations: dict[str, None] = {}
        self.functions: dict[str, str] = {}
        self.globals: dict[str, str] = {}
        self.block = "entry"
        self.unfinished: Callable[[], None] | None = None
        self._names = 0

    def share(self, other: Text) -> None:
        """Write into the module of `other`, whose globals, declarations and helper functions are then also these."""
        self.declarations, self.functions, self.globals = other.declarations, other.functions, other.globals

    def emit(self, instruction: str) -> str:
        """Append an instruction and return the name of its result."""
        self._names += 1
        name = f"%v{self._names}"
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

    def finish(self) -> None:
        """Write what was put off."""
        unfinished, self.unfinished = self.unfinished, None
        if unfinished is not None:
            unfinished()

    def jump(self, label: str) -> None:
        self.finish()
        self.line(f"br label %{label}")

    def branch(self, condition: str, then: str, otherwise: str) -> None:
        self.finish()
        self.line(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def alloca(self, type: str, align: int) -> str:
        """A pointer to memory that lives as long as the function runs."""
        name = self.name()
        self.allocas.append(f"  {name} = alloca {type}, align {align}")
        return name

    def named(self, name: str, dtype: DType, lanes: int = 1) -> Reg:
        """The register, argument or spelled literal of this name."""
        return Reg(name, dtype, lanes, self)

    def constant(self, dtype: DType, value: Number, lanes: int = 1) -> Reg:
        """A number, which an element of `dtype` can hold, in each of `lanes` lanes."""
        spelled = str(int(value)) if dtype.is_int else literal(dtype, value)
        return self.named(splat_literal(register_type(dtype), spelled, lanes), dtype, lanes)

    def reg(self, dtype: DType, lanes: int, instruction: str) -> Reg:
        """Append an instruction whose result is `lanes` elements of `dtype`."""
        return Reg(self.emit(instruction), dtype, lanes, self)

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


def _operator(opcode: str, floats: str = "") -> Callable[[Reg, Operand], Reg]:
    """An instruction of two operands, `floats` where these are floats and it has another name there."""
    return lambda x, other: x.op(floats if floats and x.dtype.is_float else opcode, other)


def _comparison(relation: str) -> Callable[[Reg, Operand], Reg]:
    """A comparison: ordered for floats, and by the sign of the dtype for integers."""

    def compare(x: Reg, other: Operand) -> Reg:
        sign = "s" if x.dtype.kind == "int" else "u"
        return x.test(x._either(f"fcmp o{relation}", f"icmp {sign}{relation}"), other)

    return compare


@dataclass(slots=True, unsafe_hash=True)  # never changed; a frozen one, one for each instruction, takes long to make
class Reg:
    """An SSA value or a literal: `lanes` elements of `dtype` (1: the same element for all lanes of a vector loop).

    Operators and methods append instructions to `text`. Operands have equally many lanes. Comparisons of floats are
    ordered (false for nan) unless their name says otherwise; those of integers, and division, follow the dtype's sign.
    """

    name: str
    dtype: DType
    lanes: int
    text: Text = field(compare=False, repr=False)

    @property
    def type(self) -> str:
        return vector(register_type(self.dtype), self.lanes)

    @property
    def typed(self) -> str:
        """The operand with its type, as instructions spell their first operand."""
        return f"{self.type} {self.name}"

    @property
    def is_literal(self) -> bool:
        return not self.name.startswith("%")

    @property
    def known(self) -> bool | None:
        """The value of a flag where it is the same for all lanes and known."""
        return {"true": True, "false": False}.get(self.name)

    def like(self, value: Operand) -> Reg:
        """A number as a literal of this dtype and lanes; a register as it is."""
        return value if isinstance(value, Reg) else self.text.constant(self.dtype, value, self.lanes)

    def op(self, opcode: str, other: Operand) -> Reg:
        """An instruction of two operands of one type, which its result has too."""
        return self.text.reg(self.dtype, self.lanes, f"{opcode} {self.typed}, {self.like(other).name}")

    def test(self, opcode: str, other: Operand) -> Reg:
        """A comparison instruction: a flag for each lane."""
        return self.text.reg(dt.bool_, self.lanes, f"{opcode} {self.typed}, {self.like(other).name}")

    def _either(self, floats: str, integers: str) -> str:
        return floats if self.dtype.is_float else integers

    __add__ = _operator("add", "fadd")
    __sub__ = _operator("sub", "fsub")
    __mul__ = _operator("mul", "fmul")
    __truediv__ = _operator("fdiv")
    __and__ = _operator("and")
    __or__ = _operator("or")
    __xor__ = _operator("xor")
    __lshift__ = _operator("shl")
    __rshift__ = _operator("lshr")  # zeros come in, whatever the sign
    arithmetic_shift = _operator("ashr")
    __lt__ = _comparison("lt")
    __gt__ = _comparison("gt")
    __le__ = _comparison("le")
    __ge__ = _comparison("ge")

    def __rsub__(self, other: Number) -> Reg:
        return self.like(other) - self

    def __rtruediv__(self, other: Number) -> Reg:
        return self.like(other) / self

    def __neg__(self) -> Reg:
        if self.dtype.is_float:
            return self.text.reg(self.dtype, self.lanes, f"fneg {self.typed}")
        return 0 - self

    def __invert__(self) -> Reg:
        """All bits, or a flag, inverted."""
        return self.op("xor", True if self.dtype.kind == "bool" else -1)

    def equals(self, other: Operand) -> Reg:
        return self.test(self._either("fcmp oeq", "icmp eq"), other)

    def differs(self, other: Operand) -> Reg:
        """Not equal; false for nan."""
        return self.test(self._either("fcmp one", "icmp ne"), other)

    def is_nan(self) -> Reg:
        return self.test("fcmp uno", self)

    def select(self, then: Reg, otherwise: Operand) -> Reg:
        """Lanes of `then` where this flag holds, of `otherwise` elsewhere."""
        chosen = f"select {self.typed}, {then.typed}, {then.like(otherwise).typed}"
        return self.text.reg(then.dtype, then.lanes, chosen)

    def convert(self, opcode: str, to: DType) -> Reg:
        """One conversion instruction."""
        target = vector(register_type(to), self.lanes)
        return self.text.reg(to, self.lanes, f"{opcode} {self.typed} to {target}")

    def to(self, dtype: DType) -> Reg:
        """The same number: a float or integer resized, an integer made float."""
        if dtype == self.dtype:
            return self
        if self.dtype.is_float:
            return self.convert("fpext" if dtype.bits > self.dtype.bits else "fptrunc", dtype)
        signed = self.dtype.kind == "int"
        if dtype.is_float:
            return self.convert("sitofp" if signed else "uitofp", dtype)
        if dtype.bits < self.dtype.bits and self.dtype.kind != "bool":
            return self.convert("trunc", dtype)
        return self.convert("sext" if signed else "zext", dtype)

    @property
    def bits(self) -> Reg:
        """The bit pattern of a float as an integer of its width."""
        return self.convert("bitcast", dt.i32 if self.dtype is dt.f32 else dt.i64)

    @property
    def as_float(self) -> Reg:
        """The float whose bit pattern this integer is."""
        return self.convert("bitcast", dt.f32 if self.dtype.bits == 32 else dt.f64)

    def splat(self, lanes: int) -> Reg:
        """The element in each of `lanes` lanes; unchanged when it has them."""
        if self.lanes == lanes:
            return self
        assert self.lanes == 1, f"{self.lanes} lanes where 1 or {lanes} are expected"
        name = self.text.splat_name(register_type(self.dtype), self.name, lanes)
        return self.text.named(name, self.dtype, lanes)

    def shuffled(self, other: Reg | None, picks: Sequence[int]) -> Reg:
        """Lanes picked from these and then those of `other`; -1 for any value."""
        second = f"{self.type} poison" if other is None else other.typed
        mask = ", ".join(f"i32 {pick}" if pick >= 0 else "i32 poison" for pick in picks)
        instruction = f"shufflevector {self.typed}, {second}, <{len(picks)} x i32> <{mask}>"
        return self.text.reg(self.dtype, len(picks), instruction)

    def part(self, start: int, count: int) -> Reg:
        """`count` lanes from `start` on."""
        if count == self.lanes:
            return self
        if count == 1:
            return self.text.reg(self.dtype, 1, f"extractelement {self.typed}, i64 {start}")
        return self.shuffled(None, range(start, start + count))


Operand = Reg | Number
