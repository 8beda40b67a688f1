"""Guards of exported programs: what PyTorch took for granted of sizes while it traced, as conditions of each call.

A guard is a line of Python about `L['x'].size()[2]`, with L the arguments of `forward` by name. It is read as text,
never evaluated: it may come from a file.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import CeilToInt, FloatTrueDiv, FloorToInt, RoundToInt, ToFloat, TruncToInt

from tilewright.frontends.errors import shown
from tilewright.frontends.inputs import Bounds
from tilewright.frontends.torch.symbols.sizes import Sizes
from tilewright.frontends.translation import Translation
from tilewright.ir import sym as s
from tilewright.ir.diag import Loc, ModelError, UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ops.define.floats import LARGEST_COMPARED, UnknownValueError

MOST_INTERVALS = 16
"""Intervals of one size that a guard on floats may allow."""

_LONGEST = 2000  # characters of a guard that is read

_EXPORTED, _OTHERS = "the program was exported for", "; export it again for others"

SizeOf = Callable[[str, int | None], Sym | None]
"""The size of an axis of an input, or an input that is a number itself; None for what is none."""


@dataclass(frozen=True)
class Guards:
    """What a program takes for granted: `code` as lines of Python, of which `paths` gives the inputs by the text of the
    expressions for them; `ranges` of symbols, and of expressions that are the size of an axis, that are beyond what
    every size is; `traced` of symbols, found while the program was decomposed."""

    code: tuple[str, ...] = ()
    paths: tuple[tuple[str, str], ...] = ()
    ranges: tuple[tuple[str, int, int | None], ...] = ()
    traced: tuple[sympy.Basic, ...] = ()


class UnreadableGuardError(Exception):
    """The text has what is not known here."""


class _OnFloatsError(Exception):
    """The text computes with floats."""


# What a program takes for granted


def guards_of(program: ExportedProgram, minima: Mapping[str, int]) -> Guards:
    """Those that the program was exported with. `minima` are those of dims that the caller has declared, by symbol."""
    found = []
    for symbol, bounds in program.range_constraints.items():
        low, high = range_of(bounds)
        if low == USUAL_LEAST:
            low = minima.get(str(symbol), 0)
        if low or high is not None:
            found.append((str(symbol), low, high))
    return Guards(tuple(program._guards_code or ()), tuple(_paths(program).items()), tuple(found))


USUAL_LEAST = 2
"""The least size that torch.export takes for granted where nobody declares one, and that its programs do not check."""


def range_of(bounds: Any) -> Bounds:
    """The range that PyTorch knows of a symbol, as that of a size."""
    low, high = _finite(bounds.lower), _finite(bounds.upper)
    return max(low or 0, 0), high


def _finite(end: Any) -> int | None:
    try:
        value = int(end)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    return value if abs(value) < torch.iinfo(torch.int64).max else None


def _paths(program: ExportedProgram) -> dict[str, str]:
    """The names of inputs by the text of the expression that guards have for them."""
    inputs = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    found = {f"L[{name!r}]": name for name in inputs}
    spec = program.call_spec.in_spec
    signature = program.module_call_graph[0].signature if program.module_call_graph else None
    names = list(getattr(signature, "forward_arg_names", None) or [])
    if spec is None or spec.num_leaves != len(inputs):
        return found
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        kind, place, *inner = path
        is_positional = getattr(kind, "idx", None) == 0
        place = getattr(place, "idx", getattr(place, "key", None))
        if is_positional and not (isinstance(place, int) and place < len(names)):
            continue
        name = names[place] if is_positional and isinstance(place, int) else str(place)
        rest = "".join(map(_step, inner))
        roots = [f"L[{name!r}]", f"L['kwargs'][{name!r}]"]
        if gathered := re.fullmatch(r"(.+)_(\d+)", name):
            roots.append(f"L[{gathered[1]!r}][{gathered[2]}]")
        for root in roots:
            found.setdefault(root + rest, inputs[leaf])
    return found


def _step(key: Any) -> str:
    if hasattr(key, "name"):
        return f".{key.name}"
    return f"[{getattr(key, 'idx', getattr(key, 'key', None))!r}]"


# Their conditions


def require_guards(guards: Guards, translation: Translation, sizes: Sizes, size_of: SizeOf) -> None:
    """Refuse calls for which a guard does not hold. UnsupportedError for one that cannot be read."""
    for symbol, low, high in guards.ranges:
        known = sizes.named(symbol)
        if known is None:
            continue  # a number that depends on data: nodes of the graph assert its range
        if low:
            _require(translation, s.ge(known, low), f"{_EXPORTED} {known} from {low} on{_OTHERS}")
        if high is not None:
            _require(translation, s.le(known, high), f"{_EXPORTED} {known} up to {high}{_OTHERS}")
    for expression in guards.traced:
        if sizes.knows(expression):
            _require(translation, sizes.of(expression), f"PyTorch decomposed the program for sizes with {expression}")
    for code in guards.code:
        guard = _Guard(code, dict(guards.paths), size_of, sizes)
        try:
            condition = guard.condition()
        except UnreadableGuardError as error:
            raise UnsupportedError(
                f"{_EXPORTED} sizes with {guard.words}, which is not followed: {error}",
                hint="export the model with these sizes fixed, or without the condition",
            ) from error
        _require(translation, condition, f"{_EXPORTED} sizes with {guard.words}{_OTHERS}")


def _require(translation: Translation, condition: Sym, words: str) -> None:
    if condition.is_const and not condition.value:
        raise ModelError(words, hint="the sizes that are given contradict that: export the model for these")
    if not condition.is_const:
        with translation.builder.at(Loc(node="forward", op="guard of torch.export")):
            translation.require(condition, words)


_TRUTH: Mapping[type, Callable[..., Any]] = {
    ast.Eq: s.eq, ast.NotEq: s.ne, ast.Lt: s.lt, ast.LtE: s.le, ast.Gt: s.gt, ast.GtE: s.ge,
    ast.And: s.logical_and, ast.Or: s.logical_or, ast.Not: s.logical_not,
}  # fmt: skip
_OF_ARRAYS: Mapping[type, Callable[..., Any]] = {
    ast.Eq: np.equal, ast.NotEq: np.not_equal, ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater,
    ast.GtE: np.greater_equal, ast.And: lambda *xs: reduce(np.logical_and, xs),
    ast.Or: lambda *xs: reduce(np.logical_or, xs), ast.Not: np.logical_not,
}  # fmt: skip
_ARITHMETIC: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.USub: operator.neg,
}  # fmt: skip
_EXTREMA: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    name: functions
    for names, functions in {
        ("max", "torch.sym_max"): (s.maximum, lambda *xs: reduce(np.maximum, xs)),
        ("min", "torch.sym_min"): (s.minimum, lambda *xs: reduce(np.minimum, xs)),
    }.items()
    for name in names
}
_ON_FLOATS: Mapping[str, Callable[[Any], Any]] = {
    "float": lambda x: np.asarray(x, np.float64), "torch.sym_float": lambda x: np.asarray(x, np.float64),
    "int": np.trunc, "torch.sym_int": np.trunc, "math.trunc": np.trunc, "math.floor": np.floor,
    "math.ceil": np.ceil, "round": np.rint, "abs": np.abs, "math.sqrt": np.sqrt, "torch._sym_sqrt": np.sqrt,
}  # fmt: skip


_ROUNDINGS: Mapping[str, Callable[[sympy.Expr], sympy.Expr]] = {
    "int": TruncToInt, "torch.sym_int": TruncToInt, "math.trunc": TruncToInt, "math.floor": FloorToInt,
    "math.ceil": CeilToInt, "round": RoundToInt,
}  # fmt: skip


class _Guard:
    """One line of Python, read."""

    def __init__(self, code: str, paths: Mapping[str, str], size_of: SizeOf, sizes: Sizes) -> None:
        self._code, self._paths, self._size_of, self._sizes = code, paths, size_of, sizes
        self._fixed: dict[Sym, np.ndarray] | None = None  # the sizes, while the text is computed for arrays of them
        self._may_measure = False

    @property
    def words(self) -> str:
        """The guard in words of the user: `L['x'].size()[2]` is x.shape[2]."""
        text = re.sub(r"L\['(\w+)'\]", r"\1", self._code)
        text = re.sub(r"\.size\(\)\[(\d+)\]", r".shape[\1]", text)
        return shown(text.replace("torch.sym_float(", "float(").replace("math.trunc(", "int("))

    def condition(self) -> Sym:
        """When it holds; UnreadableGuardError for what is not known here."""
        if len(self._code) > _LONGEST:
            raise UnreadableGuardError("it is too long")
        try:
            tree = ast.parse(self._code.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UnreadableGuardError("it is no expression of Python") from error
        try:
            return self._in_sizes(tree, may_measure=False)
        except (_OnFloatsError, UnknownValueError):
            pass
        try:
            return self._compared(tree)
        except UnreadableGuardError as error:
            try:
                return self._in_sizes(tree, may_measure=True)
            except _OnFloatsError:
                raise error from None

    def _in_sizes(self, tree: ast.expr, *, may_measure: bool) -> Sym:
        """The guard as an expression of sizes, of which some may be measured."""
        self._fixed, self._may_measure = None, may_measure
        try:
            return s.truth(self._value(tree))
        except ZeroDivisionError as error:
            raise UnreadableGuardError("it divides by zero") from error

    def _compared(self, tree: ast.expr) -> Sym:
        """A guard on floats of one size: the intervals of that for which it holds."""
        found = [size for node in ast.walk(tree) if (size := self._size(node)) is not None]
        variables = frozenset().union(*(size.vars for size in found))
        if len(variables) != 1:
            raise UnreadableGuardError(f"it computes floats of {len(variables)} sizes")
        (v,) = variables
        low, high = v.bounds
        values = np.arange(low or 0, min(LARGEST_COMPARED if high is None else high, LARGEST_COMPARED) + 1)
        self._fixed = {size: np.asarray(size.evaluate_numpy({v.name: values})) for size in found}
        with np.errstate(all="ignore"):
            holds = np.broadcast_to(np.asarray(self._value(tree)) != 0, values.shape)
        starts, ends = (np.flatnonzero(np.diff(np.r_[0, holds, 0]) == step) for step in (1, -1))
        if len(starts) > MOST_INTERVALS:
            raise UnreadableGuardError("it holds for too many sizes apart from each other")
        spans = zip(values[starts].tolist(), (values[ends - 1]).tolist(), strict=True)
        return s.logical_or(*(s.logical_and(s.ge(v, a), s.le(v, b)) for a, b in spans))

    def _size(self, node: ast.AST) -> Sym | None:
        """The size that an expression is: `path.size()[k]`, `path.shape[k]`, or the path of a number."""
        if not isinstance(node, ast.Subscript | ast.Attribute):
            return None
        if (name := self._paths.get(ast.unparse(node))) is not None:
            return self._size_of(name, None)
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
            return None
        whole, axis = node.value, node.slice.value
        if isinstance(whole, ast.Call) and not whole.args:
            whole = whole.func
        if not isinstance(whole, ast.Attribute) or whole.attr not in ("size", "shape") or not isinstance(axis, int):
            return None
        name = self._paths.get(ast.unparse(whole.value))
        return None if name is None else self._size_of(name, axis)

    def _value(self, node: ast.expr) -> Any:
        if (size := self._size(node)) is not None:
            return size if self._fixed is None else self._fixed[size]
        match node:
            case ast.Constant(value=bool() | int() as number):
                return sym(int(number)) if self._fixed is None else np.asarray(int(number))
            case ast.Constant(value=float() as number):
                self._require_arrays()
                return np.asarray(number)
            case ast.BinOp(left=left, op=op, right=right):
                return self._operation(op, left, right)
            case ast.UnaryOp(op=op, operand=operand):
                known = _ARITHMETIC if type(op) in _ARITHMETIC else self._truth
                return self._apply(known, op, operand)
            case ast.BoolOp(op=op, values=values):
                return self._apply(self._truth, op, *values)
            case ast.Compare(left=left, ops=ops, comparators=others):
                pairs = zip(ops, (left, *others), others, strict=False)
                return self._truth[ast.And](*(self._apply(self._truth, op, a, b) for op, a, b in pairs))
            case ast.Call(func=function, args=args, keywords=[]):
                return self._call(ast.unparse(function), args)
        raise UnreadableGuardError(f"'{shown(ast.unparse(node))}' is not known")

    @property
    def _truth(self) -> Mapping[type, Callable[..., Any]]:
        return _TRUTH if self._fixed is None else _OF_ARRAYS

    def _apply(self, known: Mapping[type, Callable[..., Any]], op: ast.AST, *operands: ast.expr) -> Any:
        if type(op) not in known:
            raise UnreadableGuardError(f"the operation {type(op).__name__} is not known")
        return known[type(op)](*map(self._value, operands))

    def _operation(self, op: ast.operator, left: ast.expr, right: ast.expr) -> Any:
        if isinstance(op, ast.Pow) and isinstance(right, ast.Constant) and right.value == 2:
            return self._value(left) * self._value(left)
        if isinstance(op, ast.Div):
            self._require_arrays()
            return self._value(left) / self._value(right)
        return self._apply(_ARITHMETIC, op, left, right)

    def _call(self, name: str, args: Sequence[ast.expr]) -> Any:
        if name in _EXTREMA and args:
            of_sizes, of_arrays = _EXTREMA[name]
            return (of_sizes if self._fixed is None else of_arrays)(*map(self._value, args))
        if name in _ON_FLOATS and len(args) == 1:
            if self._fixed is None and name in _ROUNDINGS:
                return self._sizes.rounded(_ROUNDINGS[name](self._float(args[0])), may_measure=self._may_measure)
            self._require_arrays()
            return _ON_FLOATS[name](self._value(args[0]))
        raise UnreadableGuardError(f"the function '{shown(name)}' is not known")

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
        size = self._value(node)
        return ToFloat(sympy.Integer(size.value) if size.is_const else self._sizes.symbol_of(size))

    def _require_arrays(self) -> None:
        if self._fixed is None:
            raise _OnFloatsError
