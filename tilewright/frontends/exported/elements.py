"""Elements of tensors at symbolic positions, as expressions: what masks and positions of decoders are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS, Compute
from tilewright.ops.define.exact import Arithmetic, element_of
from tilewright.ops.define.floats import Element, Ratio, UnknownValueError
from tilewright.ops.define.symbolic import Values, symbols

Position = Sequence[Sym]

_MASKS = ("bool", "float")
_NOTHING = -1e30
"""What a float mask adds at most where nothing may be attended to: no score is that far below another, so that the
exponential is 0."""


class ElementsAt:
    """What elements of values are, where that follows from their positions, dims, and integers that are known."""

    def __init__(self, module: Module) -> None:
        self._values = Values(module)
        self._inner: dict[Value, Value] = {}
        self._expanded: dict[Op, Sequence[Value]] = {}

    def at(self, value: Value, position: Position) -> Element:
        """The element at a position; UnknownValueError where it depends on data, or is infinite."""
        value = self._inner.get(value, value)
        known = self._values.of(value)
        if known is not None and all(p.is_const for p in position):
            found: Element = symbols(known, value)[tuple(p.value for p in position)]
            return found
        if known is not None and known.elements.size == 1:
            one: Element = symbols(known, value).reshape(-1)[0]
            return one
        body = self._body(value)
        if isinstance(body, Value):
            return self.at(body, position)
        return _Element(self, value, body, position).of(body.body.ops[-1].operands[0])

    def known(self, value: Value, position: Position) -> Element | None:
        """The same, None where it is not known."""
        with suppress(UnknownValueError):
            return self.at(value, position)
        return None

    def is_hidden(self, value: Value, position: Position) -> bool:
        """Whether the element of a mask says that nothing is attended to there: false, or so small that softmax makes 0
        of it."""
        value = self._inner.get(value, value)
        with suppress(UnknownValueError):
            if _is_nothing(self.at(value, position), value.tensor.dtype):
                return True
        with suppress(UnknownValueError):
            body = self._body(value)
            if isinstance(body, Value):
                return self.is_hidden(body, position)
            return _Element(self, value, body, position).is_hidden(body.body.ops[-1].operands[0])
        return False

    def _body(self, value: Value) -> Compute | Value:
        """What computes a value: of a composite the value that it is composed to."""
        op = value.op
        operator = None if op is None else OPERATORS.get(op.name)
        if op is None or operator is None or op.blocks or operator.kind == "irregular":
            raise UnknownValueError("it depends on data")
        if operator.kind == "composite":
            if op not in self._expanded:
                block = Block([v.type for v in op.operands])
                with Builder(block, Module(), op.loc):
                    self._expanded[op] = operator.expand(block.args, op.attrs)
                self._inner |= dict(zip(block.args, op.operands, strict=True))
            return self._expanded[op][op.results.index(value)]
        types = [v.type for v in op.operands if isinstance(v.type, TensorType)]
        found = operator.compute(types, op.attrs)
        if found.combine or found.tiles or found.reduce:
            raise UnknownValueError("it is a sum")
        return found


class _Element:
    """One element of what a primitive computes."""

    def __init__(self, elements: ElementsAt, value: Value, computation: Compute, position: Position) -> None:
        assert value.op is not None
        self._elements = elements
        self._operands = dict(zip(computation.body.args, value.op.operands, strict=True))
        axes = (variable for variable, _ in computation.axes)
        self._at: Mapping[Sym, Sym] = dict(zip(axes, position, strict=True))
        self._arithmetic = Arithmetic(exceptions=False)

    def of(self, scalar: Value) -> Element:
        op = scalar.op
        assert op is not None
        match op.name:
            case "load":
                return self._elements.at(*self._loaded(op))
            case "const":
                return element_of(op.attrs["value"], scalar.scalar.dtype)
            case "index":
                expression: Sym = op.attrs["expr"].subs(self._at)
                return self._arithmetic.cast(expression, scalar.scalar.dtype, scalar.scalar.dtype)
            case "cast":
                source = op.operands[0]
                return self._arithmetic.cast(self.of(source), scalar.scalar.dtype, source.scalar.dtype)
            case "select":
                condition, first, second = op.operands
                chosen = self.of(condition)
                if chosen.is_const:
                    return self.of(first if _is_true(chosen) else second)
            case "bitcast" | "bind" | "check":
                raise UnknownValueError(f"{op.name} is not followed")
        operands = [self.of(x) for x in op.operands]
        found = self._arithmetic.apply(op.name, operands, op.operands[-1].scalar.dtype, scalar.scalar.dtype)
        if self._arithmetic.conditions:
            raise UnknownValueError("it holds for some dims alone")
        return found

    def is_hidden(self, scalar: Value) -> bool:
        op = scalar.op
        assert op is not None
        if op.name == "load":
            return self._elements.is_hidden(*self._loaded(op))
        if op.name == "const":
            least = _NOTHING if scalar.scalar.dtype.is_float else 0
            return scalar.scalar.dtype.kind in _MASKS and bool(op.attrs["value"] <= least)
        if op.name == "select":
            condition, *ways = op.operands
            with suppress(UnknownValueError):
                chosen = self.of(condition)
                if chosen.is_const:
                    return self.is_hidden(ways[0 if _is_true(chosen) else 1])
            return all(map(self.is_hidden, ways))
        if op.name == "and" or (op.name == "add" and scalar.scalar.dtype.is_float):
            return any(map(self.is_hidden, op.operands))
        if op.name == "or":
            return all(map(self.is_hidden, op.operands))
        if op.name == "cast" and op.operands[0].scalar.dtype.kind == scalar.scalar.dtype.kind:
            return self.is_hidden(op.operands[0])
        with suppress(UnknownValueError):
            return _is_nothing(self.of(scalar), scalar.scalar.dtype)
        return False

    def _loaded(self, op: Op) -> tuple[Value, list[Sym]]:
        """The operand, and the position in it."""
        for condition in op.attrs.get("guard", ()):
            holds = condition.subs(self._at)
            if not (holds.is_const and holds.value):
                raise UnknownValueError("whether it is read is not known")
        return self._operands[op.operands[0]], [sym(e).subs(self._at) for e in op.attrs["idx"]]


def _is_true(element: Element) -> bool:
    return isinstance(element, Sym) and bool(element.value)


def _is_nothing(element: Element, dtype: DType) -> bool:
    if isinstance(element, Sym):
        return dtype.kind == "bool" and element.is_const and not element.value
    return isinstance(element, Ratio) and element.is_const and element.value <= _NOTHING
