"""What is known of the values of a program that is being rewritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tilewright.graph.integer.curves import Curve, numbers_of
from tilewright.graph.integer.fixed import Fixed, known_numbers
from tilewright.graph.integer.obstacles import Obstacle
from tilewright.graph.match import filled_with, is_constant, type_of
from tilewright.ir.core import Module, Op, Value
from tilewright.ir.diag import Problem
from tilewright.ir.rewrite import constant_array
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.interp import evaluate
from tilewright.ops.traits.slots import RuleSlot

Weights = tuple[np.ndarray, np.ndarray]
"""Known integers without their zero points, and their scales."""


@dataclass(eq=False)
class Numbers:
    """For each value of floats its integers, where it has some: those of `fixed`, or those of the table of `curves`.

    What is in `known` follows from constants alone, and is evaluated when it is asked for; so are the integers that
    stand for it, in `quantized`.
    """

    module: Module
    fixed: dict[Value, Fixed] = field(default_factory=dict)
    curves: dict[Value, Curve] = field(default_factory=dict)
    known: dict[Value, Callable[[], np.ndarray]] = field(default_factory=dict)
    quantized: dict[Value, Callable[[], Weights]] = field(default_factory=dict)
    missing: set[Value] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def of(self, value: Value) -> Fixed:
        """A tensor of floats in fixed point."""
        if value not in self.fixed:
            curve = self.curves.get(value)
            if curve is not None:
                self.fixed[value] = numbers_of(curve)
            else:
                array = self.array(value)
                if array is None:
                    raise Obstacle("it reads floats that are not quantised")
                self.fixed[value] = known_numbers(np.broadcast_to(array, array.shape))
        return self.fixed[value]

    def is_known(self, value: Value) -> bool:
        """Whether the elements follow from constants."""
        if value in self.known:
            return True
        return is_constant(value) and type_of(value).is_static

    def array(self, value: Value) -> np.ndarray | None:
        """The elements of what is known; one for all of a `full`."""
        if value in self.known:
            return self.known[value]()
        number = filled_with(value)
        if number is not None:
            return np.asarray(number).astype(type_of(value).dtype.storage)
        return constant_array(value, self.module)

    def note_known(self, op: Op) -> None:
        """Remember how to evaluate an operator on known operands."""
        operands, attrs, found = op.operands, dict(op.attrs), list[np.ndarray]()

        def result() -> np.ndarray:
            if not found:
                arrays = [self._elements(v) for v in operands]
                found.append(evaluate(OPERATORS[op.name], *arrays, **attrs))
            return found[0]

        self.known[op.result] = result

    def _elements(self, value: Value) -> np.ndarray:
        array = self.known[value]() if value in self.known else constant_array(value, self.module)
        assert array is not None
        return array


FixedRule = Callable[[Op, Numbers], Fixed | Value]

FIXED_POINT: RuleSlot[FixedRule] = RuleSlot("fixed_point")
"""How an operator on floats is computed on the integers that stand for them: a result of floats as such integers, one
of others as it is. A rule raises an Obstacle where it cannot."""
