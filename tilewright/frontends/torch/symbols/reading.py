"""Guards as text: lines of Python, which become conditions on sizes. They are read from the syntax tree, never
evaluated."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sympy
from torch.utils._sympy.functions import CeilToInt, FloatTrueDiv, FloorToInt, RoundToInt, ToFloat, TruncToInt

from tilewright.frontends.problems import shown
from tilewright.frontends.torch.symbols.compared import Compared, LongNumberError
from tilewright.frontends.torch.symbols.hosted import Hosted
from tilewright.frontends.torch.symbols.sizes import Sizes
from tilewright.frontends.translation import Translation
from tilewright.ir import sym as s
from tilewright.ir.sym import Sym, sym
from tilewright.ops.define.floats import LARGEST_COMPARED, UnknownValueError

MOST_INTERVALS = 16
"""Intervals of one size that a guard on floats may allow."""

_LONGEST = 2000  # characters of a guard that is read

_OF_LAYOUTS = re.compile(
    r"(?P<input>.+?)(?:(?:\._base)*\.(?:stride\(\)\[\d+\]|storage_offset\(\))|(?:\._base)+\.size\(\)\[\d+\])"
)
"""Strides and first elements of inputs, and of the tensors that these are views of, with their sizes."""

_FAR, _STEP = 1 << 30, 1 << 12


class UnreadableGuardError(Exception):
    """The text has what is not known here."""


class _OnFloatsError(Exception):
    """The text computes with what expressions of sizes do not have."""


_OPERATIONS: Mapping[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.Eq: "==", ast.NotEq: "!=",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.And: "and", ast.Or: "or", ast.Not: "not",
    ast.USub: "negative", ast.Invert: "inverted",
}  # fmt: skip
_ROUNDED = {"int": "trunc", "torch.sym_int": "trunc", "math.trunc": "trunc", "math.floor": "floor", "math.ceil": "ceil",
            "round": "round"}  # fmt: skip
_FUNCTIONS: Mapping[str, str] = {
    **_ROUNDED, "float": "float", "torch.sym_float": "float", "abs": "abs", "torch._sym_sqrt": "sqrt",
    **{f"math.{name}": name for name in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "sinh", "cosh",
                                         "tanh", "asin", "acos", "atan")},
}  # fmt: skip
_EXTREMA = {"max": "max", "torch.sym_max": "max", "min": "min", "torch.sym_min": "min"}
_CONSTANTS = {"math.inf": math.inf, "math.nan": math.nan, "math.pi": math.pi, "math.e": math.e}

_OF_SIZES: Mapping[str, Callable[..., Sym]] = {
    "==": s.eq, "!=": s.ne, "<": s.lt, "<=": s.le, ">": s.gt, ">=": s.ge, "and": s.logical_and, "or": s.logical_or,
    "not": s.logical_not, "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "%": operator.mod, "negative": operator.neg, "max": s.maximum, "min": s.minimum, "select": s.select,
}  # fmt: skip
_ROUNDINGS: Mapping[str, Callable[[sympy.Expr], sympy.Expr]] = {
    "trunc": TruncToInt, "floor": FloorToInt, "ceil": CeilToInt, "round": RoundToInt,
}  # fmt: skip


class WrittenGuard:
    """One line of Python, read."""

    def __init__(
        self,
        code: str,
        paths: Mapping[str, str],
        size_of: Callable[[tuple[str, int | None]], Sym | None],
        sizes: Sizes,
    ) -> None:
        self._code, self._paths, self._size_of, self._sizes = code, paths, size_of, sizes
        self._layouts: dict[str, Sym] = {}

    def layouts(self) -> set[str]:
        """What the text names of how inputs lie in memory."""
        try:
            tree = self._tree()
        except UnreadableGuardError:
            return set()
        return {text for node in ast.walk(tree) if (text := self._layout(node)) is not None}

    def lying_apart(self, layouts: Sequence[str]) -> None:
        """Read the text for inputs that are parts of tensors of other sizes, larger than any that is asked for: what is
        said of `layouts` are numbers far from each other."""
        self._layouts = {text: sym(_FAR - _STEP * k) for k, text in enumerate(layouts)}

    @property
    def words(self) -> str:
        """The guard in words of the user: `L['x'].size()[2]` is x.shape[2]."""
        text = re.sub(r"L\['(\w+)'\]", r"\1", self._code)
        text = re.sub(r"\.size\(\)\[(\d+)\]", r".shape[\1]", text)
        return shown(text.replace("torch.sym_float(", "float(").replace("math.trunc(", "int("))

    def places(self) -> list[tuple[str, int | None]]:
        """The axes, and inputs, that the text names; none where it is no text that can be read."""
        try:
            tree = self._tree()
        except UnreadableGuardError:
            return []
        return [place for node in ast.walk(tree) if (place := self._place(node)) is not None]

    def condition(self, translation: Translation) -> Sym:
        """When it holds: over sizes, where that can be said, else over what the host computes in each call.
        UnreadableGuardError for what is not known here."""
        tree = self._tree()
        try:
            return s.truth(self._in_sizes(tree))
        except (_OnFloatsError, UnknownValueError):
            pass
        except ZeroDivisionError as error:
            raise UnreadableGuardError("it divides by zero") from error
        found = self._compared(tree)
        if found is None and self.layouts():
            raise UnreadableGuardError("it computes with how inputs lie in memory")
        return self._hosted(tree, translation) if found is None else found

    def _tree(self) -> ast.expr:
        if len(self._code) > _LONGEST:
            raise UnreadableGuardError("it is too long")
        try:
            return ast.parse(self._code.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UnreadableGuardError("it is no expression of Python") from error

    # Sizes

    def _place(self, node: ast.AST) -> tuple[str, int | None] | None:
        """What an expression names: `path.size()[k]`, `path.shape[k]`, or the path of a number."""
        if not isinstance(node, ast.Subscript | ast.Attribute):
            return None
        if (name := self._paths.get(ast.unparse(node))) is not None:
            return (name, None) if self._size_of((name, None)) is not None else None
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
            return None
        whole, axis = node.value, node.slice.value
        if isinstance(whole, ast.Call) and not whole.args:
            whole = whole.func
        if not isinstance(whole, ast.Attribute) or whole.attr not in ("size", "shape") or not isinstance(axis, int):
            return None
        name = self._paths.get(ast.unparse(whole.value))
        return None if name is None else (name, axis)

    def _layout(self, node: ast.AST) -> str | None:
        """What an expression names of how an input lies in memory."""
        if not isinstance(node, ast.Subscript | ast.Call):
            return None
        text = ast.unparse(node)
        found = _OF_LAYOUTS.fullmatch(text)
        return text if found is not None and found["input"] in self._paths else None

    def _size(self, node: ast.AST) -> Sym | None:
        if self._layouts and (text := self._layout(node)) in self._layouts:
            return self._layouts[text]
        place = self._place(node)
        return None if place is None else self._size_of(place)

    # The three ways to read it

    def _in_sizes(self, node: ast.expr) -> Sym:
        """An expression of sizes; _OnFloatsError where it has what these do not."""
        if (size := self._size(node)) is not None:
            return size
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return sym(int(node.value))
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            raise _OnFloatsError
        name, operands = _operation(node)
        if name == "**" and isinstance(operands[1], ast.Constant) and operands[1].value in (2, 3):
            base = self._in_sizes(operands[0])
            return base * base if operands[1].value == 2 else base * base * base
        if name in _ROUNDINGS:
            return self._sizes.rounded(_ROUNDINGS[name](self._float(operands[0])), may_measure=False)
        if name not in _OF_SIZES:
            raise _OnFloatsError
        return _OF_SIZES[name](*map(self._in_sizes, operands))

    def _float(self, node: ast.expr) -> sympy.Expr:
        """A float of sizes, as PyTorch's tracing has it."""
        match node:
            case ast.Constant(value=int() | float() as number):
                return sympy.Float(number) if isinstance(number, float) else ToFloat(sympy.Integer(number))
            case ast.BinOp(left=left, op=ast.Add() | ast.Mult() | ast.Div() as op, right=right):
                a, b = self._float(left), self._float(right)
                return a + b if isinstance(op, ast.Add) else a * b if isinstance(op, ast.Mult) else FloatTrueDiv(a, b)
            case ast.Call(func=function, args=[arg]) if ast.unparse(function) in ("float", "torch.sym_float"):
                return self._float(arg)
        size = self._in_sizes(node)
        return ToFloat(sympy.Integer(size.value) if size.is_const else self._sizes.symbol_of(size))

    def _compared(self, tree: ast.expr) -> Sym | None:
        """A guard on one size: the intervals of that for which it holds; None where that is not said in few words."""
        found = [size for node in ast.walk(tree) if (size := self._size(node)) is not None]
        variables = frozenset().union(*(size.vars for size in found))
        if len(variables) > 1:
            return None
        if not variables:
            values, v = np.zeros(1, np.int64), None
        else:
            (v,) = variables
            low, high = v.bounds
            values = np.arange(low or 0, min(LARGEST_COMPARED if high is None else high, LARGEST_COMPARED) + 1)
        named = {} if v is None else {v.name: values}
        compared = Compared(len(values))

        def value(node: ast.expr) -> Any:
            if (size := self._size(node)) is not None:
                return np.broadcast_to(size.evaluate_numpy(named), values.shape)
            if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
                return np.asarray(node.value)
            name, operands = _operation(node)
            return np.asarray(_CONSTANTS[name]) if name in _CONSTANTS else compared.apply(name, *map(value, operands))

        try:
            holds = compared.holds(value(tree))
        except LongNumberError:
            return None
        if v is None:
            return sym(int(holds[0]))
        starts, ends = (np.flatnonzero(np.diff(np.r_[0, holds, 0]) == step) for step in (1, -1))
        if len(starts) > MOST_INTERVALS:
            return None
        spans = zip(values[starts].tolist(), (values[ends - 1]).tolist(), strict=True)
        return s.logical_or(*(s.logical_and(s.ge(v, a), s.le(v, b)) for a, b in spans))

    def _hosted(self, tree: ast.expr, translation: Translation) -> Sym:
        """A condition that the host computes in each call; it does not hold where that is an error."""
        hosted = Hosted()

        def write(node: ast.expr) -> None:
            if (size := self._size(node)) is not None:
                hosted.size(size)
            elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
                hosted.number(node.value)
            else:
                name, operands = _operation(node)
                for operand in operands:
                    write(operand)
                if name in _CONSTANTS:
                    hosted.number(_CONSTANTS[name])
                else:
                    hosted.apply(name)

        write(tree)
        return s.ne(hosted.computed(translation, otherwise=0, least=None), 0)


def _operation(node: ast.expr) -> tuple[str, Sequence[ast.expr]]:
    """The operation that a part of the text is, by its name in `runtime.staged.functions.arithmetic`, and its operands.
    UnreadableGuardError for what is not known."""
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            return _named(op), (left, right)
        case ast.UnaryOp(op=op, operand=operand):
            return _named(op), (operand,)
        case ast.BoolOp(op=op, values=[first, *others]):
            return _named(op), (first, others[0] if len(others) == 1 else ast.BoolOp(op, others))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _named(op), (left, right)
        case ast.Compare(left=left, ops=[op, *ops], comparators=[right, *others]):
            return "and", (ast.Compare(left, [op], [right]), ast.Compare(right, ops, others))
        case ast.IfExp(test=test, body=body, orelse=other):
            return "select", (test, body, other)
        case ast.Call(func=function, args=args, keywords=[]) if args:
            return _called(ast.unparse(function), args)
        case ast.Attribute() if ast.unparse(node) in _CONSTANTS:
            return ast.unparse(node), ()
    raise UnreadableGuardError(f"'{shown(ast.unparse(node))}' is not known")


def _named(op: ast.AST) -> str:
    if type(op) not in _OPERATIONS:
        raise UnreadableGuardError(f"the operation {type(op).__name__} is not known")
    return _OPERATIONS[type(op)]


def _called(name: str, args: Sequence[ast.expr]) -> tuple[str, Sequence[ast.expr]]:
    if name in _EXTREMA:
        first, *others = args
        if len(others) > 1:
            others = [ast.Call(ast.parse(name, mode="eval").body, others, [])]
        return (_EXTREMA[name], (first, *others)) if others else ("+", (first, ast.Constant(0)))
    if name == "round" and len(args) == 2:
        return "rounded to", args
    if name in _FUNCTIONS and len(args) == 1:
        return _FUNCTIONS[name], args
    raise UnreadableGuardError(f"the function '{shown(name)}' is not known")
