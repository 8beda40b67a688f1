"""Which optional parts of a compilation it takes to get a wrong answer: of all rules, passes, schedules and plans that
ran, a smallest set with which alone it is wrong. Where it takes two, both are named; one that is right by itself is
not blamed for another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_rest
from tilewright.ir.core import Module, Op, Value
from tilewright.ir.optional_steps import OptionalSteps, Part, minimal_subset
from tilewright.runtime.errors import BeyondBufferError, TilewrightError
from tilewright.validation.guarded import between_zones, with_room_for_zones
from tilewright.validation.kernels import PLANNING
from tilewright.validation.rerun import Expected
from tilewright.validation.values import EVALUATION

MAKES_CODE = ("kernel", "schedule", *PLANNING)
"""Optional steps from regions to code."""


class OutOfTime(Exception):
    """The search has not come to an end."""


@dataclass
class _AppliedRules:
    """The rules that a compilation applies, as parts that can be left out."""

    parts: dict[Part, None] = field(default_factory=dict)

    def replaced(self, stage: str, rule: str, op: Op, values: Sequence[Value], emitted: Sequence[Op]) -> None:
        self.parts[Part(stage, rule, f"rule '{rule}' of '{stage}'")] = None

    def passed(self, name: str, module: Module) -> None:
        pass


@dataclass
class Interactions:
    """The search in one program. `is_guarded`: between guard zones, where tensors share no memory. `of_code`: what a
    kernel is made of is right, so that only how it is made can be wrong."""

    expected: Expected
    setting: Setting
    deadline: float
    is_guarded: bool = True
    of_code: bool = False
    compilations: int = 0

    def needed(self, first: Sequence[Part] = ()) -> tuple[Part, ...] | None:
        """A smallest set of parts with which alone the program is wrong: () where it is wrong without any, None where
        it is right with all or there is no time. `first` are those that are suspected."""
        rules = _AppliedRules()
        optional = OptionalSteps(verified=False)
        try:
            if not self._is_wrong(optional, rules):
                return None
            ran = list(dict.fromkeys((*rules.parts, *optional.taken.parts)))
            of_rules = {part.step for part in rules.parts}
            parts = [part for part in ran if part.of is not None or part.step not in of_rules]
            if self.of_code:
                parts = [part for part in parts if part.step in MAKES_CODE]

            def is_wrong_with(kept: Sequence[Part]) -> bool:
                off = frozenset(parts).difference(kept)
                return self._is_wrong(OptionalSteps(off, verified=False), None)

            if is_wrong_with(()):
                return ()
            suspected = [part for part in parts if part in first]
            if not (suspected and is_wrong_with(suspected)):
                suspected = [*suspected, *(part for part in parts if part not in first)]
            return tuple(minimal_subset(suspected, is_wrong_with))
        except OutOfTime:
            return None

    def _is_wrong(self, optional: OptionalSteps, rules: _AppliedRules | None) -> bool:
        """Whether the program gives a wrong answer; not where nothing can be made of it without what is off."""
        if time.monotonic() > self.deadline:
            raise OutOfTime
        self.compilations += 1
        program = self.expected.program
        setting = replace(
            self.setting, optional=optional, watch=None if rules is None else lambda compilation: rules,
            numbers=count(), progress=None, observe=None,
        )  # fmt: skip
        setting = with_room_for_zones(setting) if self.is_guarded else setting
        try:
            model = between_zones(compile_rest(Compilation(program.module.copy(), setting)))
            return bool(self.expected.why_not(_listed(model(*program.arrays))))
        except BeyondBufferError:
            return True
        except (*EVALUATION, TilewrightError):
            return False


def _listed(found: object) -> Sequence[np.ndarray]:
    return found if isinstance(found, tuple | list) else (found,)


def named(part: Part) -> str:
    """A part in words."""
    return f"'{part.step}'" if part.of is None else part.label if part.label != "the model" else f"'{part.step}'"
