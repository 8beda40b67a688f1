"""Where things came from, why things were not done, and the errors that users see."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.runtime.errors import ExecutionError as ExecutionError
from tilewright.runtime.errors import InputError as InputError
from tilewright.runtime.errors import TilewrightError as TilewrightError


@dataclass(frozen=True, slots=True)
class Loc:
    """Where a piece of program came from: the source node's name and operator, or a line of a text file."""

    node: str = ""
    op: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        if self.node or self.op:
            return f"node '{self.node}' ({self.op})" if self.node else f"an unnamed {self.op} node"
        if self.line:
            return f"{self.file or 'text'}:{self.line}"
        return "an unknown place"


UNKNOWN = Loc()


@dataclass(frozen=True, slots=True)
class Remark:
    """What a pass or schedule did or did not do to something, and why."""

    stage: str
    subject: str
    message: str
    applied: bool = False

    def __str__(self) -> str:
        return f"[{self.stage}] {self.subject}: {'' if self.applied else 'not done: '}{self.message}"


class ModelError(TilewrightError):
    """The model file cannot be read, or contradicts itself."""


class UnsupportedError(TilewrightError):
    """The model asks for something that is not built yet; the message lists all of it."""


class TypeRuleError(TilewrightError):
    """Operands of an operator do not fit: names the operator, the node, the shapes and the dtypes."""


class TextError(TilewrightError):
    """IR text cannot be parsed; the message shows the line and a caret."""


class VerifyError(TilewrightError):
    """A program breaks a rule of its level."""


class ScheduleError(TilewrightError):
    """A scheduling step is not legal; the message says why."""


class InternalError(TilewrightError):
    """A defect of the compiler itself; the message asks for a report."""
