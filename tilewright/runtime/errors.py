"""The errors a user of a compiled model can meet, and the root of every error of the package.

The root lives here, and not beside the compiler's diagnostics, because the runtime must be importable
on its own: `tilewright.ir.diag` takes `TilewrightError` from this module.
"""

from __future__ import annotations

import re

_LONGEST_WORD = 1000


def printable(text: str) -> str:
    """The text with what names of a model may hold made safe to print: control characters and marks of direction are
    escaped, and words of more than a thousand characters cut. Lines stay lines."""
    if not text.isprintable():
        text = "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(text) <= _LONGEST_WORD:
        return text
    return re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: f"{word[0][:80]}...{word[0][-20:]}", text)


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


class ArtifactError(TilewrightError):
    """A compiled model's file cannot be written or read: damaged, foreign, too new, for another CPU."""


class OptionError(TilewrightError):
    """An option has a value outside of its range."""


class InternalError(TilewrightError):
    """A defect of the compiler itself; the message asks for a report."""


class PluginError(TilewrightError):
    """The back end of a plugin, or what runs its code, failed as it should not; the message names it."""


class TilewrightWarning(UserWarning):
    """Something that is not wrong, and costs time or safety until somebody changes it: the text says how."""


class PerformanceWarning(TilewrightWarning):
    """A compiled model is right, but slower or larger than it should be: something failed in its compilation, or its
    intermediate results take much memory."""


_CLASSES: dict[str, type[TilewrightError]] = {"input": InputError, "execution": ExecutionError}


def error_class(kind: str) -> type[TilewrightError]:
    """The class raised for a run-time error entry of `kind`; kinds not known here are execution errors."""
    return _CLASSES.get(kind, ExecutionError)
