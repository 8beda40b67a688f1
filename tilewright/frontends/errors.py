"""Errors that only this frontend has, and how names of the file are shown in messages."""

from __future__ import annotations

from tilewright.ir.diag import UnsupportedError
from tilewright.runtime.errors import short_name


class ConstantNeededError(UnsupportedError):
    """An operand's value must be known at compile time; `inputs` names the graph inputs behind it."""

    def __init__(
        self, what: str, *, where: str | None = None, hint: str | None = None, inputs: tuple[str, ...] = ()
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.inputs = inputs


def shown(name: str, limit: int = 80) -> str:
    """A name from the file, safe to print: control characters escaped, long ones cut."""
    return short_name(name, limit)
