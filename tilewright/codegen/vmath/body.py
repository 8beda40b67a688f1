"""A builder of straight-line LLVM IR over vectors: a math function reads as the formula it computes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilewright.target.scale import Scale

_FLOATS = {"f32": "float", "f64": "double"}

Scalar = int | float


def element_type(kind: str) -> str:
    """The LLVM type of one value of `kind`: f32, f64, or an integer's own LLVM name (i1, i32, ...)."""
    return _FLOATS.get(kind, kind)


def llvm_type(kind: str, lanes: int) -> str:
    """The LLVM type of `lanes` values of `kind`; one lane is a plain scalar."""
    return element_type(kind) if lanes == 1 else f"<{lanes} x {element_type(kind)}>"


def _width(kind: str) -> int:
    return int(kind[1:])


def literal(kind: str, value: Scalar) -> str:
    """One element's LLVM spelling; floats are rounded to `kind` and written as the bits of a double."""
    if kind not in _FLOATS:
        return str(int(value))
    rounded = struct.unpack("<f", struct.pack("<f", value))[0] if kind == "f32" else float(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"


@dataclass(frozen=True, eq=False)
class Value:
    """An SSA value (or constant) of a body: `kind` is its element, `name` its spelling without the type.

    Arithmetic with Python numbers broadcasts them to the value's kind; comparisons are ordered (false for
    nan) unless their name says otherwise, and yield kind i1.
    """

    body: Body
    kind: str
    name: str

    @property
    def typed(self) -> str:
        """The operand with its type, as instructions spell their first operand."""
        return f"{llvm_type(self.kind, self.body.lanes)} {self.name}"

    @property
    def is_float(self) -> bool:
        return self.kind in _FLOATS

    def _operand(self, other: Operand) -> Value:
        if not isinstance(other, Value):
            return self.body.constant(self.kind, other)
        assert other.kind == self.kind, f"{other.kind} operand for {self.kind}"
        return other

    def _binary(self, opcode: str, other: Operand) -> Value:
        return self.body.emit(self.kind, f"{opcode} {self.typed}, {self._operand(other).name}")

    def __add__(self, other: Operand) -> Value:
        return self._binary("fadd" if self.is_float else "add", other)

    def __sub__(self, other: Operand) -> Value:
        return self._binary("fsub" if self.is_float else "sub", other)

    def __rsub__(self, other: Scalar) -> Value:
        return self.body.constant(self.kind, other) - self

    def __mul__(self, other: Operand) -> Value:
        return self._binary("fmul" if self.is_float else "mul", other)

    def __truediv__(self, other: Operand) -> Value:
        return self._binary("fdiv", other)

    def __rtruediv__(self, other: Scalar) -> Value:
        return self.body.constant(self.kind, other) / self

    def __neg__(self) -> Value:
        return self.body.emit(self.kind, f"fneg {self.typed}") if self.is_float else 0 - self

    def __and__(self, other: Operand) -> Value:
        return self._binary("and", other)

    def __or__(self, other: Operand) -> Value:
        return self._binary("or", other)

    def __xor__(self, other: Operand) -> Value:
        return self._binary("xor", other)

    def __lshift__(self, count: Operand) -> Value:
        return self._binary("shl", count)

    def __rshift__(self, count: Operand) -> Value:
        """Logical shift right (zeros come in)."""
        return self._binary("lshr", count)

    def arithmetic_shift(self, count: Operand) -> Value:
        """Shift right that keeps the sign."""
        return self._binary("ashr", count)

    def _compare(self, float_code: str, int_code: str, other: Operand) -> Value:
        opcode = f"fcmp {float_code}" if self.is_float else f"icmp {int_code}"
        return self.body.emit("i1", f"{opcode} {self.typed}, {self._operand(other).name}")

    def __lt__(self, other: Operand) -> Value:
        return self._compare("olt", "slt", other)

    def __gt__(self, other: Operand) -> Value:
        return self._compare("ogt", "sgt", other)

    def __le__(self, other: Operand) -> Value:
        return self._compare("ole", "sle", other)

    def __ge__(self, other: Operand) -> Value:
        return self._compare("oge", "sge", other)

    def equals(self, other: Operand) -> Value:
        return self._compare("oeq", "eq", other)

    def differs(self, other: Operand) -> Value:
        """Not equal; false for nan."""
        return self._compare("one", "ne", other)

    def logical_not(self) -> Value:
        return self._binary("xor", 1 if self.kind == "i1" else -1)

    def is_nan(self) -> Value:
        return self._compare("uno", "ne", self)

    def to(self, kind: str) -> Value:
        """The same number in another kind: a float or signed integer resized, a signed integer made float."""
        if kind == self.kind:
            return self
        if self.is_float:
            opcode = "fpext" if _width(kind) > _width(self.kind) else "fptrunc"
        else:
            opcode = "sitofp" if kind in _FLOATS else "trunc" if _width(kind) < _width(self.kind) else "sext"
        return self.body.convert(opcode, self, kind)

    def zero_extended(self, kind: str) -> Value:
        """The same unsigned integer in a wider kind."""
        return self.body.convert("zext", self, kind)

    @property
    def bits(self) -> Value:
        """The bit pattern of a float as an integer of its width."""
        return self.body.convert("bitcast", self, "i32" if self.kind == "f32" else "i64")

    @property
    def as_float(self) -> Value:
        """The float whose bit pattern this integer is."""
        return self.body.convert("bitcast", self, "f32" if self.kind == "i32" else "f64")


Operand = Value | Scalar


class Body:
    """The instructions of one function over vectors of `lanes` elements, in order, numbered as they come.

    `scale` is what the target has to multiply by powers of two.
    """

    def __init__(self, lanes: int, scale: Scale | None = None) -> None:
        self.lanes = lanes
        self.scale = scale
        self.lines: list[str] = []

    def of_lanes(self, lanes: int) -> Body:
        """The same instructions, to go on with vectors of another number of lanes."""
        other = Body(lanes, self.scale)
        other.lines = self.lines
        return other

    def argument(self, kind: str, name: str) -> Value:
        return Value(self, kind, f"%{name}")

    def constant(self, kind: str, value: Scalar) -> Value:
        """The same constant in every lane."""
        one = literal(kind, value)
        return Value(self, kind, one if self.lanes == 1 else f"splat ({element_type(kind)} {one})")

    def emit(self, kind: str, instruction: str) -> Value:
        """Append an instruction and name its result."""
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return Value(self, kind, name)

    def convert(self, opcode: str, value: Value, kind: str) -> Value:
        return self.emit(kind, f"{opcode} {value.typed} to {llvm_type(kind, self.lanes)}")

    def lane(self, value: Value, lane: int) -> str:
        """The name of one lane's scalar."""
        return (
            value.name
            if self.lanes == 1
            else self.emit(value.kind, f"extractelement {value.typed}, i32 {lane}").name
        )

    def vector_of(self, kind: str, scalars: list[str]) -> Value:
        """The vector of these scalars, one a lane."""
        if self.lanes == 1:
            return Value(self, kind, scalars[0])
        total = Value(self, kind, "poison")
        for lane, scalar in enumerate(scalars):
            total = self.emit(kind, f"insertelement {total.typed}, {element_type(kind)} {scalar}, i32 {lane}")
        return total

    def intrinsic(self, name: str, first: Value, *others: Operand) -> Value:
        """Call of an LLVM intrinsic that is overloaded on its (single) float type."""
        operands = [first, *(first._operand(other) for other in others)]
        suffix = first.kind if self.lanes == 1 else f"v{self.lanes}{first.kind}"
        arguments = ", ".join(operand.typed for operand in operands)
        return self.emit(
            first.kind, f"call {llvm_type(first.kind, self.lanes)} @llvm.{name}.{suffix}({arguments})"
        )

    def fma(self, a: Value, b: Operand, c: Operand) -> Value:
        """a * b + c with one rounding."""
        return self.intrinsic("fma", a, b, c)

    def sqrt(self, x: Value) -> Value:
        return self.intrinsic("sqrt", x)

    def abs(self, x: Value) -> Value:
        return self.intrinsic("fabs", x)

    def floor(self, x: Value) -> Value:
        return self.intrinsic("floor", x)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return self.intrinsic("copysign", magnitude, sign)

    def select(self, condition: Value, then: Value, otherwise: Operand) -> Value:
        """Lanes of `then` where the condition holds, of `otherwise` elsewhere."""
        return self.emit(
            then.kind, f"select {condition.typed}, {then.typed}, {then._operand(otherwise).typed}"
        )

    def at_most(self, x: Value, bound: Scalar) -> Value:
        """min(x, bound); nan stays nan.

        The comparison is written so that x86 makes one `minps` of it, whose second operand wins when it is
        nan.
        """
        limit = self.constant(x.kind, bound)
        return self.select(limit < x, limit, x)

    def at_least(self, x: Value, bound: Scalar) -> Value:
        """max(x, bound); nan stays nan."""
        limit = self.constant(x.kind, bound)
        return self.select(limit > x, limit, x)

    def clamp(self, x: Value, low: Scalar, high: Scalar) -> Value:
        """x within [low, high]; nan stays nan."""
        return self.at_most(self.at_least(x, low), high)

    def polynomial(self, x: Value, coefficients: tuple[float, ...]) -> Value:
        """sum(coefficients[i] * x**i) by Horner's rule, which takes the fewest instructions."""
        total: Operand = coefficients[-1]
        for coefficient in reversed(coefficients[:-1]):
            total = self.fma(x, total, coefficient)
        assert isinstance(total, Value)
        return total
