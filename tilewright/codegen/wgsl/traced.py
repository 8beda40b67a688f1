"""Scalar functions of WGSL, written by what writes them for LLVM: the same definitions, in expressions of WGSL.

What a driver may do with floats differs: it may fuse a product and a sum or not, and it may take an infinite or missing
number for impossible. So whether a number is missing is asked of its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.codegen.cpu.kernel.text import Number, Operand, Reg, Text
from tilewright.codegen.wgsl.spelling import is_wide, literal, wgsl_type
from tilewright.ir import dtype as dt
from tilewright.ir.diag import InternalError
from tilewright.ir.dtype import DType

_ORDER = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OPPOSITE = {"lt": ">=", "le": ">", "gt": "<=", "ge": "<", "ne": "=="}
_INTRINSICS = {"fma": "fma", "fabs": "abs", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "sqrt": "sqrt",
               "roundeven": "round"}  # fmt: skip
"""What WGSL calls intrinsics of LLVM."""


@dataclass(frozen=True)
class _Node:
    """An operation: its text, with `{0}` for its first operand, and the names of these."""

    template: str
    operands: tuple[str, ...]


class WgslText(Text):
    """The expressions of one function, and the functions that it calls (`needs`, by name)."""

    def __init__(self, call: Callable[[str, DType], str]) -> None:
        super().__init__()
        self._call = call
        self._nodes: dict[str, _Node] = {}
        self._same: dict[_Node, str] = {}
        self._types: dict[str, DType] = {}
        self.needs: dict[str, None] = {}

    def named(self, name: str, dtype: DType, lanes: int = 1) -> Reg:
        own = self._types.get(name, dtype)
        found = WgslReg(name, dtype, lanes, self)
        if own.kind == dtype.kind or not own.is_int or not dtype.is_int:
            return found
        if is_wide(own):
            return found
        return found._wrapped(self.made(dtype, f"bitcast<{wgsl_type(dtype)}>({{0}})", WgslReg(name, own, 1, self)))

    def argument(self, name: str, dtype: DType) -> Reg:
        """A parameter of the function."""
        self._types[f"%{name}"] = dtype
        return self.named(f"%{name}", dtype)

    def constant(self, dtype: DType, value: Number, lanes: int = 1) -> Reg:
        whole = {"int": dt.i8, "uint": dt.u8}.get(dtype.kind, dtype) if dtype.bits < 8 else dtype
        text = literal(whole, value)
        if text.startswith("f32_of_bits"):
            self.needs["f32_of_bits"] = None
        return self.named(text, dtype)

    def made(self, dtype: DType, template: str, *operands: Reg) -> Reg:
        """The result of an operation."""
        node = _Node(template, tuple(o.name for o in operands))
        name = self._same.setdefault(node, f"%{len(self._nodes)}")
        self._nodes[name] = node
        self._types[name] = dtype
        return self.named(name, dtype)

    def helper(self, dtype: DType, name: str, *operands: Reg) -> Reg:
        """The result of a call of a function of ours."""
        self.needs[name] = None
        places = ", ".join(f"{{{k}}}" for k in range(len(operands)))
        return self.made(dtype, f"{name}({places})", *operands)

    def exact(self, x: Reg) -> Reg:
        """An operand of a sum; where it is a sum itself, as one that drivers do not join with the other: `(a + b) - b`
        is not `a`."""
        node = self._nodes.get(x.name)
        is_sum = node is not None and (node.template.startswith("fma") or node.template[4:7] in (" + ", " - "))
        return self.helper(x.dtype, "exact_f32", x) if is_sum else x

    def call(self, dtype: DType, lanes: int, callee: str, *operands: Reg) -> Reg:
        if callee.startswith("llvm.canonicalize"):
            return operands[0]
        name = callee.split(".")[1] if callee.startswith("llvm.") else ""
        if (own := _INTRINSICS.get(name)) is not None:
            places = ", ".join(f"{{{k}}}" for k in range(len(operands)))
            return self.made(dtype, f"{own}({places})", *operands)
        return self.helper(dtype, "copysign_f32" if name == "copysign" else self._call(callee, dtype), *operands)

    def emit(self, instruction: str) -> str:
        raise InternalError(f"there is no WGSL for the instruction '{instruction}'")

    def reg(self, dtype: DType, lanes: int, instruction: str) -> Reg:
        raise InternalError(f"there is no WGSL for the instruction '{instruction}'")

    def body(self, result: Reg) -> list[str]:
        """The statements that give `result`."""
        used, pending = set[str](), [result.name]
        while pending:
            name = pending.pop()
            if name in self._nodes and name not in used:
                used.add(name)
                pending += self._nodes[name].operands
        names = {name: f"v{k}" for k, name in enumerate(self._nodes)}
        lines = [
            f"let {names[name]} = {node.template.format(*(names.get(o, o.removeprefix('%')) for o in node.operands))};"
            for name, node in self._nodes.items()
            if name in used
        ]
        return [*lines, f"return {names.get(result.name, result.name.removeprefix('%'))};"]


class WgslReg(Reg):
    """One element as an expression of WGSL."""

    __slots__ = ()

    @property
    def _out(self) -> WgslText:
        assert isinstance(self.text, WgslText)
        return self.text

    def op(self, opcode: str, other: Operand) -> Reg:
        other, name = self.like(other), opcode.split()[0]
        if is_wide(self.dtype):
            return self._out.helper(self.dtype, f"{name}_64", self, other)
        return (_OF_FLAGS if self.dtype.kind == "bool" else _OPERATIONS)[name](self, other)

    def _wrapped(self, found: Reg) -> Reg:
        """A word as an integer of fewer bits, with its sign."""
        dtype, bits = self.dtype, 8 * self.dtype.bytes
        if not dtype.is_int or bits >= 32:
            return found if dtype.is_int or dtype is dt.f32 else self._out.made(dtype, "({0} & 0xffffu)", found)
        if dtype.kind == "uint":
            return self._out.made(dtype, f"({{0}} & {(1 << bits) - 1:#x}u)", found)
        return self._out.made(dtype, f"(({{0}} << {32 - bits}u) >> {32 - bits}u)", found)

    def test(self, opcode: str, other: Operand) -> Reg:
        other, out = self.like(other), self._out
        kind, relation = opcode.split()
        if kind == "fcmp":
            if relation == "uno":
                return out.helper(dt.bool_, "is_nan_f32", self)
            if relation == "one":
                return out.made(dt.bool_, "({0} < {1} || {0} > {1})", self, other)
            if relation[0] == "u" and relation[1:] in _OPPOSITE:
                return out.made(dt.bool_, f"(!({{0}} {_OPPOSITE[relation[1:]]} {{1}}))", self, other)
            return out.made(dt.bool_, f"({{0}} {_ORDER[relation[1:]]} {{1}})", self, other)
        sign = ""
        if relation not in _ORDER:
            sign, relation = relation[0], relation[1:]
        if is_wide(self.dtype):
            return out.helper(dt.bool_, f"{sign}{relation}_64", self, other)
        if self.dtype.kind == "bool":
            return out.made(dt.bool_, f"(u32({{0}}) {_ORDER[relation]} u32({{1}}))", self, other)
        wanted = {"u": "u32", "s": "i32"}.get(sign, wgsl_type(self.dtype))
        if wanted == wgsl_type(self.dtype):
            return out.made(dt.bool_, f"({{0}} {_ORDER[relation]} {{1}})", self, other)
        return out.made(
            dt.bool_, f"(bitcast<{wanted}>({{0}}) {_ORDER[relation]} bitcast<{wanted}>({{1}}))", self, other
        )

    def select(self, then: Reg, otherwise: Operand) -> Reg:
        if self.known is not None:
            return then if self.known else then.like(otherwise)
        return self._out.made(then.dtype, "select({2}, {1}, {0})", self, then, then.like(otherwise))

    def convert(self, opcode: str, to: DType) -> Reg:
        out, own = self._out, self.dtype
        wgsl_type(own), wgsl_type(to)  # which WGSL must have
        if opcode == "bitcast" or (not own.is_float and not to.is_int and to.kind != "bool" and opcode == "trunc"):
            return out.made(to, f"bitcast<{wgsl_type(to)}>({{0}})", self)
        if opcode == "fpext":
            return out.helper(dt.f32, f"f32_from_{own.name}", self)
        if opcode == "fptrunc":
            return out.helper(to, f"{to.name}_from_f32", self)
        if opcode in ("sitofp", "uitofp"):
            if is_wide(own):
                return out.helper(dt.f32, "f32_from_i64" if opcode == "sitofp" else "f32_from_u64", self)
            return out.made(to, "f32({0})", self)
        if opcode in ("fptosi", "fptoui"):
            if is_wide(to):
                return out.helper(to, "whole_i64" if opcode == "fptosi" else "whole_u64", self)
            return out.made(to, f"{wgsl_type(to)}({{0}})", self)
        return self._resized(opcode, to)

    def _resized(self, opcode: str, to: DType) -> Reg:
        out, own = self._out, self.dtype
        if own.kind == "bool":
            bit = "select(0u, 0xffffffffu, {0})" if opcode == "sext" else "select(0u, 1u, {0})"
            return out.made(to, f"vec2<u32>({bit}, 0u)" if is_wide(to) else f"bitcast<{wgsl_type(to)}>({bit})", self)
        if is_wide(own):
            low = out.made(dt.u32, "{0}.x", self)
            return low if to is dt.u32 else low.convert("trunc", to) if to.bits < 64 else self
        zeros = opcode == "zext" and own.kind == "int"
        kept = f" & {(1 << 8 * own.bytes) - 1:#x}u" if zeros and own.bytes < 4 else ""
        word = f"(bitcast<u32>({{0}}){kept})"
        if is_wide(to):
            high = "bitcast<u32>(bitcast<i32>({0}) >> 31u)" if opcode == "sext" else "0u"
            return out.made(to, f"vec2<u32>({word}, {high})", self)
        made = out.made(to, f"bitcast<{wgsl_type(to)}>{word}", self)
        return WgslReg._wrapped(self._as(made, to), made) if opcode == "trunc" else made

    def _as(self, made: Reg, to: DType) -> WgslReg:
        return WgslReg(made.name, to, 1, self._out)

    def __neg__(self) -> Reg:
        return self._out.made(self.dtype, "(-{0})", self) if self.dtype.is_float else 0 - self

    def splat(self, lanes: int) -> Reg:
        assert lanes == 1
        return self


Emit = Callable[[WgslReg, Reg], Reg]
"""The result of an instruction on numbers of at most 32 bits."""


def _infix(sign: str) -> Emit:
    return lambda x, other: x._wrapped(x._out.made(x.dtype, f"({{0}} {sign} {{1}})", x, other))


def _sum(sign: str) -> Emit:
    return lambda x, other: x._out.made(x.dtype, f"({{0}} {sign} {{1}})", x._out.exact(x), x._out.exact(other))


def _on_flags(sign: str) -> Emit:
    return lambda x, other: x._out.made(x.dtype, f"({{0}} {sign} {{1}})", x, other)


def _shifted(sign: str, wanted: str = "") -> Emit:
    """A shift of words that have or have no sign, of the operand's own without `wanted`."""

    def emit(x: WgslReg, by: Reg) -> Reg:
        own = wgsl_type(x.dtype)
        if wanted in ("", own):
            return x._wrapped(x._out.made(x.dtype, f"({{0}} {sign} u32({{1}}))", x, by))
        kept = f" & {(1 << 8 * x.dtype.bytes) - 1:#x}u" if wanted == "u32" and x.dtype.bytes < 4 else ""
        word = f"(bitcast<{wanted}>({{0}}){kept})"
        return x._wrapped(x._out.made(x.dtype, f"bitcast<{own}>({word} {sign} u32({{1}}))", x, by))

    return emit


_OPERATIONS: Mapping[str, Emit] = {
    "fadd": _sum("+"),
    "fsub": _sum("-"),
    "fmul": _infix("*"),
    "fdiv": _infix("/"),
    "frem": lambda x, other: x._out.helper(x.dtype, "rem_f32", x, other),
    "add": _infix("+"),
    "sub": _infix("-"),
    "mul": _infix("*"),
    "sdiv": _infix("/"),
    "udiv": _infix("/"),
    "srem": _infix("%"),
    "urem": _infix("%"),
    "and": _infix("&"),
    "or": _infix("|"),
    "xor": _infix("^"),
    "shl": _shifted("<<"),
    "lshr": _shifted(">>", "u32"),
    "ashr": _shifted(">>", "i32"),
}
_OF_FLAGS: Mapping[str, Emit] = {"and": _on_flags("&"), "or": _on_flags("|"), "xor": _on_flags("!=")}
"""Instructions of LLVM."""


def traced(
    build: Callable[..., Reg], arguments: Sequence[tuple[str, DType]], call: Callable[[str, DType], str]
) -> tuple[list[str], DType, list[str]]:
    """The statements of a function of these arguments, the dtype of what it gives, and the functions that it needs."""
    text = WgslText(call)
    result = build(*[text.argument(name, dtype) for name, dtype in arguments])
    return text.body(result), result.dtype, list(text.needs)
