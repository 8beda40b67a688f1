"""Rules that operators have for what is done with them, and that definitions do not tell.

A slot is one kind of rule, of which an operator has one or none: its form on integers, how it is computed in fixed
point, and whatever later work asks for (gradients, shards). A rule stands beside the definition; where it needs what a
pass knows, beside that pass. An operator of a plugin is given rules in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tilewright.ir.core import Op
from tilewright.ir.outside import Definitions
from tilewright.ops.define.operator import OPERATORS, Operator

R = TypeVar("R")

_GIVEN = Definitions()
"""Rules of plugins change what models become, and so the key of the cache."""


class RuleSlot(Generic[R]):
    """A kind of rule."""

    def __init__(self, name: str) -> None:
        self.name = name

    def give(self, rule: R, *operators: Operator) -> R:
        """Let these operators have a rule, in place of one that they had."""
        for operator in operators:
            operator.rules[self.name] = rule
            _GIVEN.note(self.name, *(p.fn if isinstance(p, Operator) else p for p in (operator, rule)))
        return rule

    def rule(self, *operators: Operator) -> Callable[[R], R]:
        """Decorates a rule of these operators."""
        return lambda rule: self.give(rule, *operators)

    def has(self, operator: Operator) -> bool:
        """Whether an operator has a rule."""
        return self.name in operator.rules

    def of(self, op: Op) -> R | None:
        """The rule of an op's operator."""
        operator = OPERATORS.get(op.name)
        found: R | None = None if operator is None else operator.rules.get(self.name)
        return found
