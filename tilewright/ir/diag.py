"""Where things came from, why things were not done, and the errors that users see."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.runtime.errors import ExecutionError as ExecutionError
from tilewright.runtime.errors import InputError as InputError
from tilewright.runtime.errors import InternalError as InternalError
from tilewright.runtime.errors import Remark as Remark
from tilewright.runtime.errors import RemarkKind as RemarkKind
from tilewright.runtime.errors import TilewrightError as TilewrightError


@dataclass(frozen=True, slots=True)
class Loc:
    """Where a piece of program came from: the source node's name and operator, or a line of a text file.

    `value` names what a node without a name gives, which tells it from others of its operator. What several nodes
    became together came from the first one, and `also` from the others.
    """

    node: str = ""
    op: str = ""
    file: str = ""
    line: int = 0
    value: str = ""
    also: tuple[Loc, ...] = ()

    @property
    def sources(self) -> tuple[Loc, ...]:
        """The places, each of one node."""
        return (replace(self, also=()), *self.also) if self.also else (self,)

    def joined(self, *others: Loc) -> Loc:
        """The place of what this and others became together, each of their nodes once."""
        first, *also = dict.fromkeys(source for loc in (self, *others) for source in loc.sources)
        return replace(first, also=tuple(also))

    def __str__(self) -> str:
        if self.node or self.op:
            unnamed = f"an unnamed {self.op} node" + (f" (of '{self.value}')" if self.value else "")
            return f"node '{self.node}' ({self.op})" if self.node else unnamed
        if self.line:
            return f"{self.file or 'text'}:{self.line}"
        return "an unknown place"


UNKNOWN = Loc()

def failure(stage: str, subject: str, error: Exception, consequence: str) -> Remark:
    """The remark about something optional that failed as nothing should, which asks for a report; or that a machine has
    no room for."""
    if isinstance(error, NoRoomError):
        (first_line, *_) = error.what.splitlines()
        return Remark(stage, subject, f"{first_line}; {consequence}", "warning")
    (first_line, *_) = f"{type(error).__name__}: {getattr(error, 'what', error)}".splitlines()
    return Remark(stage, subject, f"{first_line}; {consequence}: please report this with the model", "failed")


class ModelError(TilewrightError):
    """The model file cannot be read, or contradicts itself."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A node that cannot be translated, why, and what to do about it ("" where nothing is known)."""

    operator: str
    node: str
    reason: str
    hint: str = ""


class UnsupportedError(TilewrightError):
    """The model asks for something that is not built yet; the message lists all of it, `problems` by nodes."""

    problems: tuple[Problem, ...] = ()


class TypeRuleError(TilewrightError):
    """Operands of an operator do not fit: names the operator, the node, the shapes and the dtypes."""


class TextError(TilewrightError):
    """IR text cannot be parsed; the message shows the line and a caret."""


class VerifyError(TilewrightError):
    """A program breaks a rule of its level."""


class NoRoomError(VerifyError):
    """A program needs more of a memory than the machine has. That is no defect of the compiler: smaller tiles, or
    kernels of single operators, take its place."""


class ScheduleError(TilewrightError):
    """A scheduling step is not legal; the message says why."""


class GivenScheduleError(ScheduleError):
    """A schedule that the user gave cannot be used; the message shows the line."""
