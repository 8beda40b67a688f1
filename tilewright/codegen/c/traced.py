"""Scalar functions of C, written by what writes them for LLVM: the same definitions, in expressions of C.

A `CReg` has all that a `Reg` of one lane has; operations on it become parts of expressions. What is used more than once
gets a name. Integers wrap, and nothing here has undefined cases beyond those of the instructions that it spells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.codegen.c.spelling import c_type, literal, signed_type, unsigned_type
from tilewright.codegen.cpu.kernel.text import Number, Operand, Reg, Text
from tilewright.ir import dtype as dt
from tilewright.ir.diag import InternalError
from tilewright.ir.dtype import DType

_ORDER = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INTRINSICS = {"fma": "fma", "fabs": "fabs", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "sqrt": "sqrt",
               "copysign": "copysign", "roundeven": "rint"}  # fmt: skip
"""What C calls intrinsics of LLVM."""


@dataclass(frozen=True)
class _Node:
    """An operation: its text, with `{0}` for its first operand, and the names of these."""

    template: str
    operands: tuple[str, ...]
    type: str


class CText(Text):
    """The expressions of one function, and the functions that it calls (`needs`, by name)."""

    def __init__(self, call: Callable[[str, DType], str]) -> None:
        """`call` gives the C name of a function that code for LLVM calls by another."""
        super().__init__()
        self._call = call
        self._nodes: dict[str, _Node] = {}
        self._same: dict[_Node, str] = {}
        self.needs: dict[str, None] = {}

    def named(self, name: str, dtype: DType, lanes: int = 1) -> Reg:
        return CReg(name, dtype, lanes, self)

    def constant(self, dtype: DType, value: Number, lanes: int = 1) -> Reg:
        whole = {"int": dt.i8, "uint": dt.u8}.get(dtype.kind, dtype) if dtype.bits < 8 else dtype
        text = ("true" if value else "false") if dtype.kind == "bool" else literal(whole, value)
        if "_of_bits" in text:
            self.needs[text.partition("(")[0]] = None
        return self.named(text, dtype, lanes)

    def made(self, dtype: DType, template: str, *operands: Reg) -> Reg:
        """The result of an operation."""
        type = "int" if dtype.kind == "bool" else c_type(dtype)
        node = _Node(template, tuple(o.name for o in operands), type)
        name = self._same.setdefault(node, f"%{len(self._nodes)}")
        self._nodes[name] = node
        return self.named(name, dtype)

    def helper(self, dtype: DType, name: str, *operands: Reg) -> Reg:
        """The result of a call of a function of ours."""
        self.needs[name] = None
        places = ", ".join(f"{{{k}}}" for k in range(len(operands)))
        return self.made(dtype, f"{name}({places})", *operands)

    def call(self, dtype: DType, lanes: int, callee: str, *operands: Reg) -> Reg:
        if callee.startswith("llvm.canonicalize"):
            return operands[0]
        own = _INTRINSICS.get(callee.split(".")[1]) if callee.startswith("llvm.") else None
        if own is not None:
            places = ", ".join(f"{{{k}}}" for k in range(len(operands)))
            return self.made(dtype, f"{own}{'f' if dtype is dt.f32 else ''}({places})", *operands)
        return self.helper(dtype, self._call(callee, dtype), *operands)

    def emit(self, instruction: str) -> str:
        raise InternalError(f"there is no C for the instruction '{instruction}'")

    def reg(self, dtype: DType, lanes: int, instruction: str) -> Reg:
        raise InternalError(f"there is no C for the instruction '{instruction}'")

    def body(self, result: Reg) -> list[str]:
        """The statements that give `result`."""
        uses: dict[str, int] = {}
        pending = [result.name]
        while pending:
            name = pending.pop()
            uses[name] = uses.get(name, 0) + 1
            if uses[name] == 1 and name in self._nodes:
                pending += self._nodes[name].operands
        spelled: dict[str, str] = {}
        lines: list[str] = []
        for name, node in self._nodes.items():
            if name not in uses:
                continue
            text = node.template.format(*(_spelled(o, spelled) for o in node.operands))
            is_long = len(text) > _LONG and name != result.name
            if is_long or (uses[name] > 1 and node.operands):
                spelled[name] = f"v{len(lines)}"
                lines.append(f"const {node.type} {spelled[name]} = {_bare(text)};")
            else:
                spelled[name] = text
        return [*lines, f"return {_bare(_spelled(result.name, spelled))};"]


_LONG = 72
"""Characters of an expression that gets a name, as none is longer than a line."""


def _spelled(name: str, spelled: dict[str, str]) -> str:
    return spelled[name] if name in spelled else {"true": "1", "false": "0"}.get(name, name).removeprefix("%")


def _bare(text: str) -> str:
    """An expression without parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    return text[1:-1]


class CReg(Reg):
    """One element as an expression of C."""

    __slots__ = ()

    @property
    def _out(self) -> CText:
        assert isinstance(self.text, CText)
        return self.text

    def op(self, opcode: str, other: Operand) -> Reg:
        other = self.like(other)
        spell = (_OF_FLAGS if self.dtype.kind == "bool" else _OPERATIONS)[opcode.split()[0]]
        return self._out.made(self.dtype, spell(self.dtype, other.name), self, other)

    def test(self, opcode: str, other: Operand) -> Reg:
        other = self.like(other)
        kind, relation = opcode.split()
        if kind == "fcmp":
            if relation == "uno":
                return self._out.made(dt.bool_, "({0} != {0})", self)
            if relation == "one":
                return self._out.made(dt.bool_, "({0} < {1} || {0} > {1})", self, other)
            return self._out.made(dt.bool_, f"({{0}} {_ORDER[relation[1:]]} {{1}})", self, other)
        cast = ""
        if relation[0] in "us" and relation not in _ORDER:
            wanted = "uint" if relation[0] == "u" else "int"
            relation = relation[1:]
            if self.dtype.kind not in (wanted, "bool"):
                cast = f"({unsigned_type(self.dtype) if wanted == 'uint' else signed_type(self.dtype)})"
        return self._out.made(dt.bool_, f"({cast}{{0}} {_ORDER[relation]} {cast}{{1}})", self, other)

    def select(self, then: Reg, otherwise: Operand) -> Reg:
        if self.known is not None:
            return then if self.known else then.like(otherwise)
        return self._out.made(then.dtype, "({0} ? {1} : {2})", self, then, then.like(otherwise))

    def convert(self, opcode: str, to: DType) -> Reg:
        out = self._out
        if opcode == "bitcast":
            return self._reinterpreted(to)
        if opcode == "fpext" and self.dtype is dt.f16:
            wide = out.helper(dt.f32, "f32_from_f16", self)
            return wide if to is dt.f32 else wide.convert("fpext", to)
        if opcode == "fptrunc" and to is dt.f16:
            return out.helper(dt.f16, "f16_from_f32", self)
        cast = ""
        if opcode == "zext" and self.dtype.kind == "int":
            cast = f"({unsigned_type(self.dtype)})"
        if opcode == "fptoui" and to.kind == "int":
            cast = f"({unsigned_type(to)})"
        return out.made(to, f"({c_type(to)}){cast}{{0}}", self)

    def _reinterpreted(self, to: DType) -> Reg:
        out = self._out
        if self.dtype in (dt.f32, dt.f64):
            bits = out.helper(dt.u32 if self.dtype is dt.f32 else dt.u64, f"bits_of_{self.dtype.name}", self)
            return out.made(to, f"({c_type(to)}){{0}}", bits) if to.is_int else bits
        if to in (dt.f32, dt.f64):
            return out.helper(to, f"{to.name}_of_bits", self)
        return out.made(to, f"({c_type(to)}){{0}}", self)

    def __neg__(self) -> Reg:
        if not self.dtype.is_float:
            return 0 - self
        if self.name.startswith("-"):
            return self.text.named(self.name[1:], self.dtype)
        return self._out.made(self.dtype, "(-{0})", self)

    def splat(self, lanes: int) -> Reg:
        assert lanes == 1
        return self


Spell = Callable[[DType, str], str]
"""The template of an instruction on operands of a dtype, of which the second has this name."""


def _infix(sign: str) -> Spell:
    def spell(dtype: DType, _: str) -> str:
        cast = f"({c_type(dtype)})" if dtype.is_int and dtype.bytes < 4 else ""
        return f"{cast}({{0}} {sign} {{1}})"

    return spell


def _wrapping(sign: str) -> Spell:
    """Arithmetic of integers by those that have no sign and are as long as C's own at least."""

    def spell(dtype: DType, _: str) -> str:
        if dtype.kind != "int" and dtype.bytes >= 4:
            return f"({{0}} {sign} {{1}})"
        wide = _wide(dtype)
        return f"({c_type(dtype)})(({wide}){{0}} {sign} ({wide}){{1}})"

    return spell


def _shifted(sign: str, own: Callable[[DType], str]) -> Spell:
    """A shift of the type that has or has no sign."""
    return lambda dtype, _: f"({c_type(dtype)})(({own(dtype)}){{0}} {sign} {{1}})"


def _wide(dtype: DType) -> str:
    return "uint64_t" if dtype.bytes == 8 else "uint32_t"


_OPERATIONS: Mapping[str, Spell] = {
    "fadd": _infix("+"),
    "fsub": _infix("-"),
    "fmul": _infix("*"),
    "fdiv": _infix("/"),
    "frem": lambda dtype, _: f"fmod{'f' if dtype is dt.f32 else ''}({{0}}, {{1}})",
    "add": _wrapping("+"),
    "sub": _wrapping("-"),
    "mul": _wrapping("*"),
    "sdiv": _infix("/"),
    "udiv": _infix("/"),
    "srem": _infix("%"),
    "urem": _infix("%"),
    "and": _infix("&"),
    "or": _infix("|"),
    "xor": _infix("^"),
    "shl": _shifted("<<", _wide),
    "lshr": _shifted(">>", unsigned_type),
    "ashr": _shifted(">>", signed_type),
}
_OF_FLAGS: Mapping[str, Spell] = {
    "and": _infix("&"),
    "or": _infix("|"),
    "xor": lambda _, other: "(!{0})" if other == "true" else "({0} ^ {1})",
}
"""Instructions of LLVM."""


def traced(
    build: Callable[..., Reg], arguments: Sequence[tuple[str, DType]], call: Callable[[str, DType], str]
) -> tuple[list[str], DType, list[str]]:
    """The statements of a function of these arguments, the dtype of what it gives, and the functions that it needs."""
    text = CText(call)
    result = build(*[text.named(f"%{name}", dtype) for name, dtype in arguments])
    return text.body(result), result.dtype, list(text.needs)
