"""What users are told: the errors that they can meet, the root of every error of the package, and remarks.

They are here, and not beside the compiler's diagnostics, because the runtime must be importable on its own:
`tilewright.ir.diag` takes `TilewrightError` and `Remark` from this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_LONGEST_WORD = 1000
_LONG_WORDS = re.compile(rf"\S{{{_LONGEST_WORD},}}")
_LONGEST_NAME = 200


def printable(text: str) -> str:
    """The text with what names of a model may hold made safe to print: control characters and marks of direction are
    escaped, and words of more than a thousand characters cut. Lines stay lines."""
    if not text.isprintable():
        text = "\n".join(map(_escaped, text.split("\n")))
    if len(text) <= _LONGEST_WORD:
        return text
    return _LONG_WORDS.sub(lambda word: f"{word[0][:80]}...{word[0][-20:]}", text)


def short_name(name: str, limit: int = _LONGEST_NAME) -> str:
    """A name of a model or a file, safe to print within a line: it stays in it, and is cut at `limit` characters."""
    safe = _escaped(name[: limit + 1])
    return safe if len(safe) <= limit else safe[:limit] + "..."


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class TilewrightError(Exception):
    """Root of all errors a user's mistake or a damaged file can cause.

    `what` says what is wrong (with the shapes and dtypes involved), `where` names the place (node, file,
    text line) and `hint` says how to go on; `str()` shows all three.
    """

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.where is not None:
            lines.append(f"  where: {self.where}")
        if self.hint is not None:
            lines.append(f"  hint: {self.hint}")
        return printable("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the keyword parts too (errors cross process borders in test and server pools)."""
        return (_rebuild, (type(self), self.what, self.where, self.hint))


def _rebuild(kind: type[TilewrightError], what: str, where: str | None, hint: str | None) -> TilewrightError:
    return kind(what, where=where, hint=hint)


class InputError(TilewrightError):
    """A call's arguments do not fit the model: name, count, dtype, rank, shape or value."""


class ExecutionError(TilewrightError):
    """The model itself failed while it ran: index out of range, division by zero, no memory."""


class CancelledError(ExecutionError):
    """Somebody called `Model.cancel` while the call ran."""


class DeviceError(ExecutionError):
    """There is no GPU, or it cannot hold or run a model: no driver, too little memory, or it was reset or taken away.
    A call after one that failed begins anew, on whatever GPU there is then."""


class NoMemoryError(ExecutionError, MemoryError):
    """There is no memory for what is needed now: there may be some when others have given theirs back."""


class ArtifactError(TilewrightError):
    """A compiled model's file cannot be written or read: damaged, foreign, too new, for another CPU."""


class OptionError(TilewrightError):
    """An option has a value outside of its range."""


class InternalError(TilewrightError):
    """A defect of the compiler itself; the message asks for a report."""


class BeyondBufferError(InternalError):
    """Native code has touched memory outside of its buffers, as calls between guard zones find out. It was one of the
    `kernels`, where these are known."""

    kernels: tuple[str, ...] = ()


class PluginError(TilewrightError):
    """The back end of a plugin, or what runs its code, failed as it should not; the message names it."""


class TilewrightWarning(UserWarning):
    """Something that is not wrong, and costs time or safety until somebody changes it: the text says how."""

    def __str__(self) -> str:
        return printable(super().__str__())


class PerformanceWarning(TilewrightWarning):
    """A compiled model is right, but slower or larger than it should be: something failed in its compilation, or its
    intermediate results take much memory."""


def cancelled() -> CancelledError:
    """The error of a call that was."""
    return CancelledError("the call was cancelled", hint="Model.cancel() ends calls that are running in other threads")


_CLASSES: dict[str, type[TilewrightError]] = {"input": InputError, "execution": ExecutionError}


def error_class(kind: str) -> type[TilewrightError]:
    """The class raised for a run-time error entry of `kind`; kinds not known here are execution errors."""
    return _CLASSES.get(kind, ExecutionError)


RemarkKind = Literal["applied", "missed", "failed", "warning", "analysis"]
_PREFIXES = {"missed": "not done: ", "failed": "failed: ", "warning": "warning: "}


@dataclass(frozen=True, slots=True)
class Remark:
    """What a pass or schedule did or did not do to something, and why.

    `stage` is the pass or the strategy, `subject` the kernel or the node. `kind` is "applied" for what was done,
    "missed" for what was not, with the reason, "failed" for what a defect of the compiler or of a plugin prevented,
    "warning" for what users should know before they rely on the result, and "analysis" for what was found out.
    """

    stage: str
    subject: str
    message: str
    kind: RemarkKind = "missed"

    def __str__(self) -> str:
        return printable(f"[{self.stage}] {self.subject}: {_PREFIXES.get(self.kind, '')}{self.message}")
