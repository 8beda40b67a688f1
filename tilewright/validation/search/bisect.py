"""`tilewright diff --bisect`: which pass, rule, schedule or pair of rules makes a compiled model give wrong answers, as
a program of a few operators that shows it in a fresh process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tilewright.compiler import compile_request
from tilewright.ir.core import Module
from tilewright.ir.diag import TilewrightError
from tilewright.options import OnProgress, Options, Request
from tilewright.plugins import used_files
from tilewright.session import Session
from tilewright.validation.cases import Feed
from tilewright.validation.findings import Fault, MeaningChanged
from tilewright.validation.passes import EVALUATION
from tilewright.validation.reproducers import save
from tilewright.validation.rerun import SavedProgram, is_wrong
from tilewright.validation.search.shrink import smallest
from tilewright.validation.validate import Validation

SECONDS = 60.0
"""For all of it; a process of its own comes after that."""

RERUN_SECONDS = 120


@dataclass(frozen=True)
class Bisection:
    """What was found: `fault` is None where no step changes the meaning in the calls that were tried. `folder` holds
    the smallest program; `is_confirmed` says whether a fresh process gave the wrong answer, too, and `said` what it
    printed."""

    fault: Fault | None
    folder: str = ""
    is_confirmed: bool = False
    said: str = ""
    calls: int = 0
    seconds: float = 0.0


def bisect(
    request: Request, options: Options, session: Session, *, feeds: Sequence[Feed] = (), folder: Path,
    progress: OnProgress | None = None, seconds: float = SECONDS,
) -> Bisection:  # fmt: skip
    """The first step that changes what the model means, in the order in which steps are taken. Programs are compiled
    with `options`, so that nothing is left out that they would do."""
    began = time.monotonic()
    validation = Validation(feeds, None, seconds)
    try:
        compile_request(
            request, replace(options, strict=True, validate=True), progress, session=session, checks=validation
        )
        return Bisection(None, calls=validation.calls, seconds=time.monotonic() - began)
    except MeaningChanged as error:
        fault = error.finding
    small = _smallest(fault, began + seconds)
    place = save(small, folder, most=None)
    confirmed, said = _again(Path(place)) if place else (False, "nothing could be saved")
    return Bisection(small, place, confirmed, said, validation.calls, time.monotonic() - began)


def _smallest(fault: Fault, deadline: float) -> Fault:
    """The fault with the smallest program that shows it when it is compiled by itself."""
    if fault.before is None or not _shows(fault.before, fault.inputs):
        return fault
    module, inputs = smallest((fault.before, fault.inputs), _shows, deadline)
    return replace(fault, before=module, inputs=inputs)


def _shows(module: Module, inputs: Mapping[str, np.ndarray]) -> bool:
    """Whether a program's code gives another answer than the interpreter."""
    try:
        arrays = tuple(inputs[name] for name in module.main.attrs["inputs"])
        return bool(is_wrong(SavedProgram(module, arrays)))
    except (TilewrightError, *EVALUATION, KeyError):
        return False


def _again(folder: Path) -> tuple[bool, str]:
    """Whether a process of its own gives the wrong answer for a saved program, and what it says."""
    command = [sys.executable, "-m", "tilewright.validation.rerun", str(folder), *map(str, used_files())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RERUN_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, f"it could not be run again: {error}"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return done.returncode == 1, lines[-1] if lines else f"the process ended with {done.returncode}"
