"""`tilewright diff --bisect`: which pass, rule, schedule or pair of rules makes a compiled model give wrong answers, as
a program of a few operators that shows it in a fresh process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tilewright.compilation import Setting
from tilewright.compiler import compile_request
from tilewright.ir.core import Module
from tilewright.ir.diag import TilewrightError
from tilewright.options import OnProgress, Options, Request
from tilewright.plugins import used_files
from tilewright.session import Session
from tilewright.validation.cases import Feed
from tilewright.validation.findings import Fault, MeaningChanged
from tilewright.validation.guarded import THREADS
from tilewright.validation.reproducers import NOT_WRITTEN, put
from tilewright.validation.rerun import Expected, SavedProgram, is_wrong
from tilewright.validation.search.interactions import Interactions, named
from tilewright.validation.search.schedule_steps import SCHEDULE, wrong_step
from tilewright.validation.search.shrink import Program, with_fewer_ops, with_smaller_dims
from tilewright.validation.validate import WHOLE, Validation
from tilewright.validation.values import EVALUATION

SECONDS = 60.0
"""For all of it; a process of its own comes after that."""

RERUN_SECONDS = 120


@dataclass(frozen=True)
class Bisection:
    """What was found: `fault` is None where no step changes the meaning in the calls that were tried. `folder` holds
    the smallest program ("" where there is none); `is_confirmed` says whether a fresh process gave the wrong answer,
    too, and `said` what it printed, or why there is no folder."""

    fault: Fault | None
    folder: str = ""
    is_confirmed: bool = False
    said: str = ""
    calls: int = 0
    seconds: float = 0.0


def bisect(
    request: Request, options: Options, session: Session, *, feeds: Sequence[Feed] = (), folder: Path,
    progress: OnProgress | None = None, seconds: float = SECONDS,
    on_found: Callable[[Fault], None] = lambda fault: None, on_written: Callable[[str], None] = lambda place: None,
) -> Bisection:  # fmt: skip
    """The first step that changes what the model means, in the order in which steps are taken. Programs are compiled
    with `options`, so that nothing is left out that they would do. `on_found` is told of the step before the search for
    a small program, `on_written` of the folder of that before it runs again."""
    began = time.monotonic()
    validation = Validation(feeds, None, seconds)
    try:
        compile_request(
            request, replace(options, strict=True, validate=True), progress, session=session, checks=validation
        )
        return Bisection(None, calls=validation.calls, seconds=time.monotonic() - began)
    except MeaningChanged as error:
        fault = error.finding
    on_found(fault)
    setting = Setting.of(Options(threads=THREADS), session.machine(options), session.loaded_plugins)
    small = _Search(setting, fault, began + seconds).run(validation)
    place, (confirmed, said) = "", (False, "no program shows it by itself")
    if small.before is not None:
        try:
            place = str(put(small, folder))
            on_written(place)
            confirmed, said = _again(Path(place))
        except NOT_WRITTEN as error:
            said = f"a program that shows it could not be written to {folder}: {error}"
    return Bisection(small, place, confirmed, said, validation.calls, time.monotonic() - began)


@dataclass
class _Search:
    """From the first step that is seen to change the meaning to what it takes for that, in a small program."""

    setting: Setting
    fault: Fault
    deadline: float

    def run(self, validation: Validation) -> Fault:
        """The fault with the smallest program that shows it when it is compiled by itself: one of the model's own
        operators where it shows there, else of those that the step saw. It is named what is needed."""
        found = self.fault
        for program in self._programs(validation):
            module, inputs = with_smaller_dims(program, self._shows, self.deadline)
            found, is_explained = self._explained(replace(self.fault, before=module, inputs=inputs))
            if is_explained:
                break
        return found

    def _programs(self, validation: Validation) -> Iterator[Program]:
        """Programs that show the fault."""
        watch = next((w for w in validation.watches if w.compilation is validation.blamed), None)
        if watch is not None and watch.original is not None:
            named = sorted(watch.cases, key=lambda case: str(case) != self.fault.case)
            names = watch.original.main.attrs.get("inputs", ())
            for case in named[:1]:
                original = watch.original, dict(zip(names, case.arrays, strict=False))
                near = frozenset(self.fault.places)
                if (found := with_fewer_ops(original, self._shows, self._share(), near)) is not None:
                    yield found
        if self.fault.before is not None and self._shows(self.fault.before, self.fault.inputs):
            seen = self.fault.before, self.fault.inputs
            yield with_fewer_ops(seen, self._shows, self.deadline) or seen

    def _share(self) -> float:
        """When the search in the model's operators ends: half of the time is for what the step saw."""
        now = time.monotonic()
        return now + max(0.0, self.deadline - now) / 2

    def _shows(self, module: Module, inputs: Mapping[str, np.ndarray]) -> bool:
        """Whether a program's code gives another answer than the interpreter."""
        try:
            arrays = tuple(inputs[name] for name in module.main.attrs["inputs"])
            return bool(is_wrong(SavedProgram(module, arrays)))
        except (TilewrightError, *EVALUATION, KeyError):
            return False

    def _explained(self, fault: Fault) -> tuple[Fault, bool]:
        """The fault with all that it takes, and whether the step that was seen is of that; what takes its place where
        it is not."""
        assert fault.before is not None
        arrays = tuple(fault.inputs[name] for name in fault.before.main.attrs["inputs"])
        expected = Expected(SavedProgram(fault.before, arrays))
        search = Interactions(
            expected, self.setting, self.deadline, is_guarded=fault.stage not in WHOLE, of_code=fault.stage == SCHEDULE
        )
        needed = search.needed(fault.parts)
        if fault.stage == SCHEDULE:
            stage, step = wrong_step(fault.before, fault.inputs, self.setting, self.deadline, expected.arrays)
            fault = replace(fault, stage=stage, step=step)
        if not needed:
            return fault, True
        own = [p for p in needed if p in fault.parts or (search.of_code and p.step in ("kernel", SCHEDULE))]
        steps = {p.step for p in own}
        others = [p for p in needed if p not in own and (p.step not in steps or isinstance(p.of, str))]
        if not own:
            first = others.pop(0)
            rule = first.of if isinstance(first.of, str) else ""
            fault = replace(fault, stage=first.step, rule=rule, parts=needed, step="")
        return replace(fault, also="", together=tuple(map(named, others))), bool(own)


def _again(folder: Path) -> tuple[bool, str]:
    """Whether a process of its own gives the wrong answer for a saved program, and what it says."""
    command = [sys.executable, "-m", "tilewright.validation.rerun", str(folder), *map(str, used_files())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RERUN_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, f"it could not be run again: {error}"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return done.returncode == 1, lines[-1] if lines else f"the process ended with {done.returncode}"
