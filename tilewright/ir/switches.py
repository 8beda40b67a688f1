"""Optional steps of a compilation: one that fails as none should is switched off, and never fails the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from tilewright.ir.diag import (
    GivenScheduleError,
    InputError,
    ModelError,
    Remark,
    TextError,
    UnsupportedError,
    failure,
)
from tilewright.runtime.errors import ExecutionError, OptionError

S = TypeVar("S")
T = TypeVar("T")

EXPECTED = (
    ModelError, UnsupportedError, OptionError, InputError, ExecutionError, GivenScheduleError, TextError, MemoryError,
)  # fmt: skip
"""What says something of the model, of the options or of the machine. All else that is raised is a defect."""


class StepFailed(Exception):
    """An optional step raised what it never should, which is the cause of this."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


@dataclass(frozen=True)
class Switches:
    """Which optional steps run. Without any, with `plain`, what is left is what every program needs.

    With `checked` programs are verified after each step, and what an optional step raises is an error, as nothing else
    would find its defect. Otherwise it is a StepFailed, and the caller starts again with `without(...)`.
    """

    off: frozenset[str] = frozenset()
    plain: bool = False
    checked: bool = True
    remarks: tuple[Remark, ...] = ()

    def attempt(self, step: str, action: Callable[[], T], instead: Callable[[], T]) -> T:
        """What the optional step `step` gives; what `instead` gives where it is switched off."""
        if self.plain or step in self.off:
            return instead()
        try:
            return action()
        except EXPECTED:
            raise
        except Exception as error:
            if self.checked:
                raise
            raise StepFailed(step) from error

    def run(self, step: str, action: Callable[[], None]) -> None:
        """Take the optional step `step`, unless it is switched off."""
        self.attempt(step, action, lambda: None)

    def without(self, failed: Exception) -> Switches:
        """Without the step that failed, or without all optional ones where it is not known which of them did."""
        if isinstance(failed, StepFailed) and isinstance(failed.__cause__, Exception):
            remark = failure(failed.step, "the model", failed.__cause__, f"'{failed.step}' is switched off")
            return replace(self, off=self.off | {failed.step}, remarks=(*self.remarks, remark))
        remark = failure("compile", "the model", failed, "all optimisations are switched off, and it is slow")
        return replace(self, plain=True, remarks=(*self.remarks, remark))


CHECKED = Switches()


def persist(
    begin: Callable[[], S], finish: Callable[[S, Switches], T], switches: Switches, is_ours: Callable[[Exception], bool]
) -> T:
    """What `finish` makes of what `begin` gives, with as few steps switched off as possible; each attempt begins anew.

    Errors that are not `is_ours` reach the caller, as those of `begin` do.
    """
    while True:
        start = begin()
        try:
            return finish(start, switches)
        except EXPECTED:
            raise
        except Exception as error:
            if switches.checked or switches.plain or not is_ours(error):
                raise
            switches = switches.without(error)
