"""Scalar functions of C, written by what writes them for LLVM: the same definitions, in expressions of C.

A `CReg` has all that a `Reg` of one lane has; operations on it become parts of expressions. What is used more than once
gets a name. Integers wrap, and nothing here has undefined cases beyond those of the instructions that it spells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.codegen.c.spelling import c_type, literal, signed_type, unsigned_type
from tilewright.codegen.cpu.kernel.text import Number, Operand, Reg, Text
from tilewright.ir import dtype as dt
from tilewright.ir.diag import InternalError
from tilewright.ir.dtype import DType

_INFIX = {"fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/", "add": "+", "sub": "-", "mul": "*",
          "and": "&", "or": "|", "xor": "^", "sdiv": "/", "udiv": "/", "srem": "%", "urem": "%"}  # fmt: skip
_ORDER = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_MATH = ("fma", "fabs", "floor", "ceil", "trunc", "copysign", "sqrt")


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
        places = ", ".join(f"{{{k}}}" for k in range(len(operands)))
        if callee.startswith("llvm.canonicalize"):
            return operands[0]
        if callee.startswith("llvm.roundeven"):
            return self.made(dtype, f"rint{'f' if dtype is dt.f32 else ''}({places})", *operands)
        name = callee.split(".")[1] if callee.startswith("llvm.") else ""
        if name in _MATH:
            return self.made(dtype, f"{name}{'f' if dtype is dt.f32 else ''}({places})", *operands)
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
        other, name, dtype = self.like(other), opcode.split()[0], self.dtype
        if name == "frem":
            return self._out.made(dtype, f"fmod{'f' if dtype is dt.f32 else ''}({{0}}, {{1}})", self, other)
        if dtype.kind == "bool":
            if name == "xor" and other.name == "true":
                return self._out.made(dtype, "(!{0})", self)
            return self._out.made(dtype, f"({{0}} {_INFIX[name]} {{1}})", self, other)
        if name in ("shl", "lshr", "ashr"):
            return self._shifted(name, other)
        template = f"({{0}} {_INFIX[name]} {{1}})"
        if name in ("add", "sub", "mul") and (dtype.kind == "int" or dtype.bytes < 4):
            wide = "uint64_t" if dtype.bytes == 8 else "uint32_t"
            template = f"({c_type(dtype)})(({wide}){{0}} {_INFIX[name]} ({wide}){{1}})"
        elif dtype.is_int and dtype.bytes < 4:
            template = f"({c_type(dtype)}){template}"
        return self._out.made(dtype, template, self, other)

    def _shifted(self, name: str, by: Reg) -> Reg:
        wide = "uint64_t" if self.dtype.bytes == 8 else "uint32_t"
        own = {"shl": wide, "lshr": unsigned_type(self.dtype), "ashr": signed_type(self.dtype)}[name]
        sign = "<<" if name == "shl" else ">>"
        return self._out.made(self.dtype, f"({c_type(self.dtype)})(({own}){{0}} {sign} {{1}})", self, by)

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


def traced(
    build: Callable[..., Reg], arguments: Sequence[tuple[str, DType]], call: Callable[[str, DType], str]
) -> tuple[list[str], DType, list[str]]:
    """The statements of a function of these arguments, the dtype of what it gives, and the functions that it needs."""
    text = CText(call)
    result = build(*[text.named(f"%{name}", dtype) for name, dtype in arguments])
    return text.body(result), result.dtype, list(text.needs)
