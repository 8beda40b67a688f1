"""What rewrites and passes note on the way: remarks for people, and what was decided about an op as a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tilewright.ir.core import Module, Op, Value
from tilewright.ir.diag import UNKNOWN, Loc, Remark
from tilewright.ir.optional_steps import CHECKED, OptionalSteps


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule did or did not do to an op, and why.

    `stage` is the pass, `rule` the rule, `op` the name of the operator and `loc` its place. Who wants to know what
    became of a layer compares these; people read the remark that is made of them. What was decided about the whole
    program names no operator: `rule` says what it is about.
    """

    stage: str
    rule: str
    reason: str
    op: str = ""
    loc: Loc = UNKNOWN
    is_applied: bool = False

    @property
    def is_general(self) -> bool:
        """Whether it was decided about the whole program."""
        return not self.op

    @property
    def subject(self) -> str:
        """What it is about, for people."""
        place = f" of {self.loc}" if self.loc.node or self.loc.op else ""
        return f"{self.rule} at {self.op}{place}" if self.op else self.rule

    def remark(self) -> Remark:
        """All of it for people."""
        return Remark(self.stage, self.subject, self.reason, "applied" if self.is_applied else "missed")


@dataclass(frozen=True, eq=False)
class EdgeNote:
    """Whether the value that one operator gives to another stays within a kernel (`is_fused`), and why.

    `producer` and `consumer` are the operators in words. Of values that go through memory, `suggestion` says what would
    change that ("": nothing that is known), `blockers` are the operators that stand in the way, and `cycles` what one
    kernel would save one core, for usual sizes: memory traffic without what would be computed again (None: nothing).
    `made` has, at the end, the op for the `region` that computes the value, and for that of the `reader`.
    """

    producer: str
    consumer: str
    value: str
    type: str
    is_fused: bool
    reason: str
    suggestion: str = ""
    blockers: tuple[str, ...] = ()
    cycles: float | None = None
    region: Any = None
    reader: Any = None
    made: Mapping[Any, Op] = field(default_factory=dict)

    @property
    def ends(self) -> tuple[Op | None, Op | None]:
        """The op of the kernel-to-be that computes the value, and that of the one that reads it."""
        return self.made.get(self.region), self.made.get(self.reader)


class ProgramWatch(Protocol):
    """Looks at what passes do to a program while it is compiled (`validation`)."""

    def replaced(self, stage: str, rule: str, op: Op, values: Sequence[Value], emitted: Sequence[Op]) -> None:
        """A rule of a pass is about to put `values` in the place of the results of `op`; it has `emitted` ops."""

    def passed(self, name: str, module: Module) -> None:
        """A pass or a stage is done."""


@dataclass
class RewriteNotes:
    """Remarks and outcomes so far, which steps are optional, and who looks at what passes do."""

    remarks: list[Remark] = field(default_factory=list, kw_only=True)
    optional: OptionalSteps = field(default=CHECKED, kw_only=True)
    outcomes: list[Outcome] = field(default_factory=list, kw_only=True)
    edges: list[EdgeNote] = field(default_factory=list, kw_only=True)
    watch: ProgramWatch | None = field(default=None, kw_only=True)

    def remark(self, stage: str, subject: str, message: str, applied: bool = False) -> None:
        """Note what was (`applied`) or was not done to `subject`, and why."""
        self.remarks.append(Remark(stage, subject, message, "applied" if applied else "missed"))

    def note(self, *outcomes: Outcome) -> None:
        """Note what was decided, with the remark of each."""
        self.outcomes.extend(outcomes)
        self.remarks.extend(outcome.remark() for outcome in outcomes)
