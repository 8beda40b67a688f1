"""Optional steps of a compilation: what fails as none should is left out, and never fails the model.

A failure costs what failed, and no more: a pass, the fusion of one region, the schedule of one kernel. Where it is not
known what was to blame, that is found by compiling again without halves of what ran.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NoReturn, TypeVar

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


@dataclass(frozen=True)
class Part:
    """What can be left out of a compilation: a step, or with `of` what the step does to one thing, such as a region,
    which `label` names for people; `instead` says what comes in its place."""

    step: str
    of: Hashable = None
    label: str = field(default="the model", compare=False)
    instead: str = field(default="", compare=False)


class StepFailed(Exception):
    """What can be left out raised what it never should, which is the cause of this."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        super().__init__(", ".join(part.step for part in self.parts))


class EnoughAttempts(Exception):
    """Who looks at attempts has seen enough of them: what worked is taken, or else the `error` told."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class Taken:
    """What one attempt did: the parts that ran, in order, and those to which things that were made go back."""

    parts: dict[Part, None] = field(default_factory=dict)
    makers: dict[str, list[Part]] = field(default_factory=dict)


@dataclass(frozen=True)
class OptionalSteps:
    """Which optional steps run.

    With `verified` programs are verified after each step. With `raises` what an optional step raises is an error, for
    those who want to know of its defect. Otherwise it is a StepFailed, and the caller starts again with
    `without(...)`, or the step itself goes on with something simpler.
    """

    off: frozenset[Part] = frozenset()
    verified: bool = True
    raises: bool = True
    remarks: tuple[Remark, ...] = ()
    taken: Taken = field(default_factory=Taken, compare=False)

    def takes(self, part: Part) -> bool:
        """Whether a part runs; it is noted if it does."""
        if part in self.off:
            return False
        self.taken.parts[part] = None
        return True

    def attempt(self, step: str, action: Callable[[], T], instead: Callable[[], T]) -> T:
        """What the optional step `step` gives; what `instead` gives where it is switched off."""
        if not self.takes(Part(step)):
            return instead()
        try:
            return action()
        except (StepFailed, *EXPECTED):
            raise
        except Exception as error:
            self.fail([Part(step)], error)

    def fail(self, parts: Iterable[Part], error: Exception) -> NoReturn:
        """Raise what an error means with which these parts failed."""
        if self.raises:
            raise error
        raise StepFailed(parts) from error

    def run(self, step: str, action: Callable[[], None]) -> None:
        """Take the optional step `step`, unless it is switched off."""
        self.attempt(step, action, lambda: None)

    def survive(self, action: Callable[[], T], instead: Callable[[Exception], T]) -> T:
        """What a small thing gives that can be left out by itself; where it fails what `instead` makes of the error."""
        try:
            return action()
        except (StepFailed, EnoughAttempts, *EXPECTED):
            raise
        except Exception as error:
            if self.raises:
                raise
            return instead(error)

    def made(self, name: str, part: Part) -> None:
        """Note which part made what has this name: a kernel, or a constant."""
        self.taken.makers.setdefault(name, []).append(part)

    def blame(self, name: str, error: Exception) -> NoReturn:
        """Raise what an error means that came of what has this name: that the parts failed that made it, or itself."""
        parts = [part for part in self.taken.makers.get(name, ()) if part not in self.off]
        if not parts or self.raises or isinstance(error, (StepFailed, *EXPECTED)):
            raise error
        raise StepFailed(parts) from error

    def without(self, parts: Iterable[Part], error: Exception, how: str = "") -> OptionalSteps:
        """Without what failed with an error; a remark for each, with `how` it was found."""
        parts = tuple(parts)
        told = [
            failure(part.step, part.label, error, how + (part.instead or f"'{part.step}' is switched off"))
            for part in parts
        ]
        return replace(self, off=self.off | set(parts), remarks=(*self.remarks, *told))


CHECKED = OptionalSteps()


def retry_without_failed_steps(
    begin: Callable[[], S],
    finish: Callable[[S, OptionalSteps], T],
    steps: OptionalSteps,
    is_ours: Callable[[Exception], bool],
) -> T:
    """What `finish` makes of what `begin` gives, with as little left out as possible; each attempt begins anew.

    Errors that are not `is_ours` reach the caller, as those of `begin` do, and those with which nothing that can be
    left out has to do.
    """
    return _Attempts(begin, finish, is_ours).result(steps)


class _Unexplained(Exception):
    """An attempt failed, and nothing says what of it was to blame."""

    def __init__(self, error: Exception, steps: OptionalSteps) -> None:
        super().__init__(str(error))
        self.error = error
        self.steps = steps


@dataclass
class _Attempts(Generic[S, T]):
    """The attempts of one compilation."""

    begin: Callable[[], S]
    finish: Callable[[S, OptionalSteps], T]
    is_ours: Callable[[Exception], bool]
    last: list[T] = field(default_factory=list)

    def result(self, steps: OptionalSteps) -> T:
        try:
            return self._run(steps)
        except _Unexplained as failed:
            try:
                return self._narrowed(failed)
            except EnoughAttempts:
                if self.last:
                    return self.last[0]
                raise failed.error from None
        except EnoughAttempts as enough:
            raise enough.error from None

    def _run(self, steps: OptionalSteps) -> T:
        """What comes out without the parts that say themselves that they failed."""
        while True:
            start = self.begin()
            steps = replace(steps, taken=Taken())
            try:
                return self.finish(start, steps)
            except (EnoughAttempts, *EXPECTED):
                raise
            except StepFailed as failed:
                error = failed.__cause__
                assert isinstance(error, Exception)
                if steps.off.issuperset(failed.parts):  # it runs without them, too
                    raise _Unexplained(error, steps) from error
                steps = steps.without(failed.parts, error)
            except Exception as error:
                if steps.raises or not self.is_ours(error):
                    raise
                raise _Unexplained(error, steps) from error

    def _narrowed(self, failed: _Unexplained) -> T:
        """What comes out without the fewest of the parts that ran before an error of which nothing says where it came
        from: whole steps rather than single regions and kernels, of which there may be thousands, these rather than a
        step that can be left out for single ones, and all last. The error itself where nothing helps."""
        steps, error = failed.steps, failed.error
        single = [part for part in steps.taken.parts if part.of is not None]
        coarse = {part.step for part in single}
        whole = [part for part in steps.taken.parts if part.of is None and part.step not in coarse]
        for parts in (whole, single, [*steps.taken.parts]):
            if parts and self._works(steps, parts, error):
                return self._without_fewest(steps, parts, error)
        raise error

    def _works(self, steps: OptionalSteps, parts: Sequence[Part], error: Exception) -> bool:
        try:
            self.last[:] = [self._run(steps.without(parts, error, _FOUND))]
            return True
        except (_Unexplained, *EXPECTED):
            return False

    def _without_fewest(self, steps: OptionalSteps, parts: Sequence[Part], error: Exception) -> T:
        """The result without the fewest of these parts, without all of which it works."""
        minimal_subset(parts, lambda tried: self._works(steps, tried, error))
        return self.last[0]  # each result is that of fewer parts than the one before


def minimal_subset(parts: Sequence[S], holds: Callable[[Sequence[S]], bool]) -> list[S]:
    """A smallest part of a sequence that still `holds`, as all of it does and nothing of it does not: of the parts
    that are left none can be missed where more of them never hold less (Zeller & Hildebrandt, "Simplifying and
    isolating failure-inducing input", 2002). `holds` is asked about twice the binary logarithm of the length for each
    part that is left."""

    def fewest(parts: Sequence[S], base: Sequence[S]) -> list[S]:
        if len(parts) == 1:
            return [*parts]
        first, second = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        for half in (first, second):
            if holds([*base, *half]):
                return fewest(half, base)
        found = fewest(first, [*base, *second])
        return found + fewest(second, [*base, *found])

    return fewest(parts, [])


_FOUND = "it works without this: "
