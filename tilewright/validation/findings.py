"""What validation finds: who changed what a program means, where, and on which inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.ir.core import Module
from tilewright.ir.diag import InternalError, Loc
from tilewright.ir.optional_steps import Part


@dataclass(frozen=True)
class Fault:
    """A pass (`stage`), or with `rule` one of its rules, a step of a schedule or what makes code, changed the meaning
    of a program at `subject`.

    `before` is the program as it was, in the operators of the graph, as small as it is known to show the fault, `after`
    what it became; both take `inputs` by name. `also` names what wrote the ops that the rule saw: with the two of them
    it takes both to go wrong. `parts` is what is switched off, `places` are those of the model's nodes that it is
    about. Bisection adds what it takes beside this to go wrong (`together`), by name, and of a schedule the `step`.
    """

    stage: str
    rule: str
    subject: str
    deviation: str
    case: str
    parts: tuple[Part, ...]
    before: Module | None = None
    after: str = ""
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    also: str = ""
    places: tuple[Loc, ...] = ()
    together: tuple[str, ...] = ()
    step: str = ""

    @property
    def culprit(self) -> str:
        """Its name for people."""
        own = f"rule '{self.rule}' of '{self.stage}'" if self.rule else f"'{self.stage}'"
        own += f" ({self.step})" if self.step else ""
        if self.together:
            return f"{own}, only together with {' and '.join(self.together)},"
        return f"{own} (of what {self.also} wrote)" if self.also else own

    def __str__(self) -> str:
        return f"{self.culprit} changes the meaning of {self.subject}: {self.deviation} ({self.case})"


class MeaningChanged(InternalError):
    """A step of the compiler changed what a program means. `finding` says which and where."""

    def __init__(self, finding: Fault, saved: str = "", others: int = 0) -> None:
        """Of a finding, and of so many `others` in one attempt."""
        more = f"; so do {others} more" if others else ""
        super().__init__(f"{finding}{more}" + (f"; reproducer: {saved}" if saved else ""))
        self.finding = finding
        self.saved = saved
