"""What is known about values while the graph is being built: numbers, expressions over dims, their origin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from tilewright.ir.core import Module, Value
from tilewright.ir.sym import Sym
from tilewright.ops.define.binding import MAX_ELEMENTS
from tilewright.ops.define.floats import UnknownValueError
from tilewright.ops.define.staged import measurable_parts, measure
from tilewright.ops.define.symbolic import Known, Values, symbols


class Knowledge:
    """Evaluates values on demand, each once. What is told holds for dims that fulfil the conditions which `specialize`
    is called with."""

    def __init__(self, module: Module, specialize: Callable[[Sym], None]) -> None:
        self._values = Values(module)
        self._assume = specialize
        self._measured = 0

    def constant_of(self, value: Value) -> np.ndarray | None:
        """The value's array when it does not depend on graph inputs; None when it does, or is large."""
        known = self._values.of(value)
        if known is None or not known.is_number:
            return None
        self._rely_on(known)
        return known.elements

    def symbols_of(self, value: Value) -> np.ndarray | None:
        """The elements of a small tensor as an object array; None where they depend on data."""
        known = self._values.of(value)
        if known is None or known.elements.size > MAX_ELEMENTS:
            return None
        try:
            found = symbols(known, value)
        except UnknownValueError:
            return None
        self._rely_on(known)
        return found

    def measure(self, value: Value) -> np.ndarray | None:
        """The elements of a small integer tensor as `symbols_of` gives them, and variables, read when it has been
        computed, where they depend on data; None where it is too large or of another kind."""
        found = self.symbols_of(value)
        if found is None:
            for part in measurable_parts(value, lambda v: self.symbols_of(v) is not None):
                self._measured += 1
                self._values.tell(part, measure(part, f"{self._measured}"))
            found = self.symbols_of(value)
        return found

    def forget(self, values: Iterable[Value]) -> None:
        """Take back the measuring of values."""
        self._values.forget(values)

    def _rely_on(self, known: Known) -> None:
        for condition in known.conditions:
            self._assume(condition)

    def origin(self, value: Value) -> tuple[tuple[str, ...], tuple[Sym, ...]]:
        """Names of the graph inputs whose elements the value is computed from, and the dims."""
        names: dict[str, None] = {}
        dims: dict[Sym, None] = {}
        seen, stack = {value}, [value]
        while stack:
            v = stack.pop()
            if v.op is None:
                names[v.name] = None
                continue
            dims.update((d, None) for a in v.op.attrs.values() for d in _dims_in(a))
            for operand in v.op.operands:
                if operand not in seen:
                    seen.add(operand)
                    stack.append(operand)
        return tuple(names), tuple(dims)


def _dims_in(attribute: object) -> Iterator[Sym]:
    if isinstance(attribute, Sym) and not attribute.is_const:
        yield attribute
    elif isinstance(attribute, tuple):
        for part in attribute:
            yield from _dims_in(part)
