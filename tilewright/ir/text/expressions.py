"""Reading scalar expressions: each becomes ops of the current block, operands first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import Sym
from tilewright.ir.text.notation import COMPARISON, INFIX
from tilewright.ir.text.scope import ScopedCursor
from tilewright.ir.types import BufferType, ScalarType, TensorType

_BY_SIGN = {sign: (name, level) for name, (sign, level) in INFIX.items()}
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Literal:
    """A number whose dtype is not known yet; `at` is its token."""

    value: bool | int | float
    at: int


Operand = Value | Literal


class Expressions(ScopedCursor):
    """Recursive descent by precedence."""

    depth = 0

    def scalar(self, dtype: dt.DType | None = None) -> Value:
        """An expression; a bare number takes `dtype`."""
        return self.typed(self.operand(COMPARISON), dtype)

    def typed(self, operand: Operand, dtype: dt.DType | None) -> Value:
        if isinstance(operand, Value):
            return operand
        if dtype is None:
            self.fail(
                "the dtype of this number does not follow from anything",
                operand.at,
                hint=f"write it as f32({operand.value}), with its dtype",
            )
        return self.emit("const", [], [ScalarType(dtype)], {"value": operand.value}).results[0]

    def operand(self, level: int) -> Operand:
        """Operators that bind at least as tightly as `level`, and what they join."""
        left = self.primary()
        while True:
            at, found = self.at, _BY_SIGN.get(self.token)
            if found is None or found[1] < level:
                return left
            self.advance()
            name, own = found
            left = self.apply(name, [left, self.operand(own + 1)], at)
            if own == COMPARISON and _BY_SIGN.get(self.token, ("", 0))[1] == COMPARISON:
                self.fail("comparisons do not chain; put one in parentheses")

    def apply(self, name: str, operands: Sequence[Operand], at: int) -> Value:
        """A scalar op; bare numbers among its operands take the dtype of the others."""
        first = SCALAR_OPS[name].conditions
        shown = next((self.dtype_of(v, at) for v in operands[first:] if isinstance(v, Value)), None)
        values = [
            self.typed(v, shown if i >= first else dt.bool_ if isinstance(v, Literal) else None)
            for i, v in enumerate(operands)
        ]
        result = SCALAR_OPS[name].result_dtype(tuple([self.dtype_of(v, at) for v in values]))
        return self.emit(name, values, [ScalarType(result)]).results[0]

    def dtype_of(self, value: Value, at: int) -> dt.DType:
        if not isinstance(value.type, ScalarType):
            self.fail(f"this takes scalars, not {value.type}", at)
        return value.type.dtype

    def primary(self) -> Operand:
        at, token = self.at, self.token
        following = self.peek()
        if self.kind == "name":
            if following == "(":
                return self.call(at)
            if following == "[":
                return self.load()
            if token in ("true", "false"):
                self.advance()
                return Literal(token == "true", at)
        if self.at_number():
            return Literal(self.number(), at)
        if token == "(":
            self.nest()
            self.advance()
            inner = self.operand(COMPARISON)
            self.expect(")")
            self.depth -= 1
            return inner
        if self.kind != "name":
            self.fail("expected an expression")
        return self.value()

    def nest(self) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.fail(f"the expression nests deeper than {_MAX_DEPTH} levels")

    def call(self, at: int) -> Value:
        """`exp(x)`, `f32(x)`, `index(i + 1)`, `lanes_reduce.add(buffer)`."""
        name = self.advance()
        self.advance()
        self.nest()
        made = self.call_of(name, at)
        self.expect(")")
        self.depth -= 1
        return made

    def call_of(self, name: str, at: int) -> Value:
        dtype = dt.BY_NAME.get(name)
        if dtype is not None:
            operand = self.operand(COMPARISON)
            if isinstance(operand, Literal):
                return self.typed(operand, dtype)
            return self.converted("cast", operand, dtype, at)
        word, _, suffix = name.partition(".")
        if word == "bitcast":
            target = dt.BY_NAME.get(suffix)
            if target is None:
                self.fail("expected bitcast.<dtype>", at)
            return self.converted("bitcast", self.scalar(), target, at)
        if word == "index":
            target = dt.BY_NAME.get(suffix or "i64")
            if target is None:
                self.fail("expected index or index.<dtype>", at)
            return self.emit("index", [], [ScalarType(target)], {"expr": self.sym()}).results[0]
        if word == "lanes_reduce":
            return self.lanes_reduce(suffix, at)
        scalar = SCALAR_OPS.get(name)
        if scalar is None:
            self.fail(f"there is no scalar function '{name}'", at)
        operands = self.several(lambda: self.operand(COMPARISON))
        if len(operands) != scalar.arity:
            self.fail(f"'{name}' takes {scalar.arity} operands, not {len(operands)}", at)
        return self.apply(name, operands, at)

    def converted(self, name: str, operand: Value, dtype: dt.DType, at: int) -> Value:
        self.dtype_of(operand, at)
        return self.emit(name, [operand], [ScalarType(dtype)]).results[0]

    def lanes_reduce(self, combine: str, at: int) -> Value:
        if combine not in SCALAR_OPS:
            self.fail("expected lanes_reduce.<op>", at)
        buffer = self.value()
        return self.emit(
            "lanes_reduce", [buffer], [ScalarType(self.element(buffer, at))], {"combine": combine}
        ).results[0]

    def element(self, buffer: Value, at: int) -> dt.DType:
        if not isinstance(buffer.type, BufferType | TensorType):
            self.fail(f"only buffers have elements, and this is {buffer.type}", at)
        return buffer.type.dtype

    def load(self) -> Value:
        at = self.at
        buffer, attrs = self.access()
        return self.emit("load", [buffer], [ScalarType(self.element(buffer, at))], attrs).results[0]

    def access(self) -> tuple[Value, dict[str, Any]]:
        """`buffer[i, j if guard, guard else number]`."""
        at = self.at
        buffer = self.value()
        self.expect("[")
        idx: list[Sym] = []
        while self.token not in ("]", "if", "else"):
            idx.append(self.sym())
            if not self.accept(","):
                break
        attrs: dict[str, Any] = {"idx": tuple(idx)}
        if self.accept("if"):
            attrs["guard"] = tuple(self.several(self.sym))
        if self.accept("else"):
            attrs["other"] = self.advance() == "true" if self.token in ("true", "false") else self.number()
        self.expect("]")
        shape = buffer.type.shape if isinstance(buffer.type, BufferType | TensorType) else ()
        if len(idx) != len(shape):
            self.fail(f"{len(idx)} indices for {buffer.type}", at)
        return buffer, attrs
