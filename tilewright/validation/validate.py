"""One validation: what is replayed of a compilation, what is found, and what that switches off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_request
from tilewright.ir.core import Func, Module
from tilewright.ir.diag import Remark, TilewrightError, failure
from tilewright.ir.notes import ProgramWatch
from tilewright.ir.optional_steps import EnoughAttempts, Part
from tilewright.options import OnProgress, Options, Request
from tilewright.program.native import GroupNative
from tilewright.program.split import is_of_parts
from tilewright.program.states import STATES
from tilewright.runtime import Artifact, Model
from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.errors import InputError
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.runtime.values.known_call import KNOWN_CALL, MOST_BYTES, KnownCall, KnownResult
from tilewright.session import Session
from tilewright.target.host import host_target
from tilewright.target.target import Target
from tilewright.validation.cases import (
    SIZES,
    Case,
    Feed,
    cases_of,
    dims_of_inputs,
    given_case,
    integer_cases,
    recorded_cases,
    why_no_cases,
)
from tilewright.validation.closeness import MOVED, allowance, is_float
from tilewright.validation.findings import Fault, MeaningChanged
from tilewright.validation.guarded import fault_of
from tilewright.validation.kernels import PLANNING, KernelCheck
from tilewright.validation.passes import PassWatch
from tilewright.validation.programs import ProgramReplay, numerics_of
from tilewright.validation.races import Races
from tilewright.validation.recorded import feeds_of
from tilewright.validation.reproducers import save
from tilewright.validation.values import (
    EVALUATION,
    ReplayedValues,
    SharedValues,
    bytes_of_values,
    is_repeatable,
    moved_results,
)

STAGE = "validate"

SECONDS = 240.0
"""That the interpreter may take for one program, passes and kernels together."""

LONG = 1.0
"""Seconds that the calls of a program have taken from which on no other begins: what follows, for passes and kernels,
takes several times as long for each."""

MOST_SIZES = 2
"""Sizes of the dims that a call chooses for which passes are replayed; kernels are at more."""

MOST_RECORDED = 3

MOST_HELD = 4 << 30
"""Bytes that the values of all calls may take that passes are replayed on."""

MOST_ATTEMPTS = 24
"""Of one compilation: what is still wrong then is wrong whatever is left out."""

NEAR = 0.25
"""The part of what results may differ by, up to which it is not asked by how much rounding moves them."""

WHOLE = (GroupNative.name, *PLANNING)
"""What is left out of a program whose kernels are right and that is wrong as a whole."""

REPRODUCERS = "reproducers"
"""The folder in that of the session's cache where programs are kept that show a fault."""


def compile_validated(
    request: Request, options: Options, progress: OnProgress | None, session: Session
) -> Artifact:
    """The artefact of a request, without what changes its meaning. InputError for recorded inputs that cannot be
    read; else as `compile_request`, and InternalError where the meaning changes whatever is left out."""
    feeds = feeds_of(options.validate) if isinstance(options.validate, str) else ()
    validation = Validation(feeds, session.folder / REPRODUCERS)
    return compile_request(request, options, progress, session=session, checks=validation)


@dataclass
class Validation:
    """Of one request, over all attempts to compile it. `folder` takes reproducers; None keeps none."""

    feeds: Sequence[Feed] = ()
    folder: Path | None = None
    seconds: float = SECONDS
    findings: list[Fault] = field(default_factory=list)
    watches: list[PassWatch] = field(default_factory=list)
    programs: list[ProgramReplay] = field(default_factory=list)
    attempts: int = 0
    recorded: int = 0
    passes: int = 0
    kernels: int = 0
    calls: int = 0
    skipped: dict[str, None] = field(default_factory=dict)
    failures: list[Remark] = field(default_factory=list)
    """What failed of the validation itself."""
    loops: dict[str, int] = field(default_factory=dict)
    blamed: Compilation | None = None
    """The program of the last finding."""
    _refused: dict[str, None] = field(default_factory=dict)

    def begin_attempt(self) -> None:
        """What was looked at before was of a program that is thrown away. EnoughAttempts after too many of them."""
        self.attempts += 1
        if self.attempts > MOST_ATTEMPTS and self.findings:
            raise EnoughAttempts(MeaningChanged(self.findings[-1]))
        self.watches, self.programs, self.skipped, self.failures, self.loops = [], [], {}, [], {}
        self.passes = self.kernels = self.calls = self.recorded = 0

    def watch(self, compilation: Compilation) -> ProgramWatch | None:
        """Who looks at the passes of a program; None, with a remark, where it cannot be replayed. A program that calls
        parts has no passes of its own: it is replayed when all is compiled."""
        optional = compilation.setting.optional
        return optional.survive(lambda: self._watch(compilation), lambda error: self.note_failure(compilation, error))

    def _watch(self, compilation: Compilation) -> ProgramWatch | None:
        is_of_calls = is_of_parts(compilation.module.main)
        if is_of_calls or compilation.module.main.attrs.get(STATES):
            self._replay_whole(compilation)
        if is_of_calls:
            return None
        why = self._why_not(compilation)
        if why:
            self.skip(compilation, why)
            return None
        watch = PassWatch(compilation, self, [])
        for sizes in self._sizes(compilation):
            if self._begin(watch, sizes):
                self.watches.append(watch)
                return watch
        self.skip(compilation, f"no inputs were found that it takes{self._said()}")
        return None

    def _replay_whole(self, compilation: Compilation) -> None:
        """Run a program of parts, or one with states, by the interpreter: what it gives, and what its parts get."""
        replay = ProgramReplay.of(compilation)
        why = self._why_not(compilation)
        if not why and not replay.begins_with_zeros:
            why = "its states begin as constants"
        main, deadline = compilation.module.main, time.thread_time() + self.seconds / 2
        recorded = [] if why else recorded_cases(main, self.feeds)[:MOST_RECORDED]
        for sizes in () if why else self._sizes(compilation):
            began = time.thread_time()
            for case in (*recorded, *cases_of(main, sizes)):
                try:
                    if replay.begin(case, deadline):
                        self.recorded += case.kind == "recorded"
                    else:
                        self.note_refused(case, TimeoutError("its loops take the interpreter too long"))
                except EVALUATION as error:
                    self.note_refused(case, error)
                if time.thread_time() - began > LONG and replay.sessions:
                    break
            if replay.sessions:
                self.programs.append(replay)
                return
        self.skip(compilation, f"as a whole it is not replayed: {why or f'no inputs were found{self._said()}'}")

    def _said(self) -> str:
        return f" ({next(iter(self._refused))})" if self._refused else ""

    def _why_not(self, compilation: Compilation) -> str:
        if compilation.setting.options.integer_only:
            return "with integer_only its inputs and outputs become other numbers"
        return why_no_cases(compilation.module.main)

    def _sizes(self, compilation: Compilation) -> Sequence[dict[str, int]]:
        names = dims_of_inputs(compilation.module.main)
        if not names:
            return [{}]
        apart = [dict(zip(names, (n + k for k in range(len(names))), strict=True)) for n in SIZES[:1]]
        return [*apart, *(dict.fromkeys(names, n) for n in SIZES)]

    def _begin(self, watch: PassWatch, sizes: dict[str, int]) -> bool:
        """Whether the program takes calls with these sizes: recorded ones first, as many as time allows."""
        main, deadline = watch.compilation.module.main, time.thread_time() + self.seconds
        recorded = recorded_cases(main, self.feeds)[:MOST_RECORDED] or self._cases_of_part(main)
        kinds: list[Case] = [*recorded, *cases_of(main, sizes)]
        for size in SIZES[1:]:
            if len(kinds) > len(recorded) + 2 or not sizes:
                break
            kinds += islice(cases_of(main, dict.fromkeys(sizes, size), ("random",)), 1)
        kinds += integer_cases(main, sizes)
        kept: list[ReplayedValues] = []
        shared, numerics = SharedValues(), numerics_of(watch.compilation)
        held, began = 0, time.thread_time()
        for case in kinds:
            held += (needed := bytes_of_values(main, case.env))
            if held > MOST_HELD:
                self.note_refused(case, MemoryError(f"its values would take {needed >> 20} MiB"))
                break
            watch.values = [ReplayedValues(watch.compilation.module, case, deadline, numerics, shared)]
            if watch.begin():
                kept += watch.values
                if time.thread_time() - began > LONG:
                    break
        self.recorded += sum(values.case.kind == "recorded" for values in kept)
        watch.values = kept
        return bool(kept) and watch.begin()

    def _cases_of_part(self, main: Func) -> list[Case]:
        """What a part gets in the calls of its program that were replayed."""
        feeds = [arrays for replay in self.programs for arrays in replay.feeds.get(main.body, ())]
        return [case for arrays in feeds if (case := given_case(main, arrays)) is not None][:MOST_RECORDED]

    def _finish_programs(self, artifact: Artifact) -> None:
        """Compare what whole programs give; with the first that is wrong the host's part of it is left out."""
        for replay in self.programs:
            if self._why_not_native(replay.compilation, artifact):
                continue
            for case, wrong in replay.wrong(artifact):
                self._fail_whole(replay.compilation, replay.module, case, wrong)
            self.calls += len(replay.sessions)

    def _fail_whole(self, compilation: Compilation, module: Module, case: Case, wrong: str) -> None:
        parts = tuple(Part(step, label=f"the step '{step}'") for step in WHOLE)
        given = dict(zip(module.main.attrs["inputs"], case.arrays, strict=False))
        self.fail(
            compilation,
            Fault("program", "", "the program as a whole", wrong, str(case), parts, None, "", given),
        )

    def finish(self, artifact: Artifact, setting: Setting) -> Artifact:
        """Compare native code with what it is made of; the artefact with what was looked at."""
        self.check_feeds(artifact)

        def without(error: Exception) -> Artifact:
            self.failures.append(failure(STAGE, "the model", error, "its native code is not compared to the end"))
            return artifact

        artifact = setting.optional.survive(lambda: self._compared(artifact, setting), without)
        return artifact.reporting(remarks=(*artifact.report.remarks, *self.remarks()))

    def _compared(self, artifact: Artifact, setting: Setting) -> Artifact:
        for watch in self.watches:
            if watch.fused is None:
                continue
            why = self._why_not_native(watch.compilation, artifact)
            if why:
                self.skip(watch.compilation, why)
            else:
                is_whole = watch.compilation.parts is None and artifact.program is None and not artifact.states
                whole = artifact if is_whole else None
                KernelCheck(self, watch.fused, setting).run(whole)
        self._finish_programs(artifact)
        return self._with_known_call(artifact)

    def _with_known_call(self, artifact: Artifact) -> Artifact:
        """The artefact with the first replayed call that it takes, for `tilewright verify`."""
        why, compilation = "", None
        for replayed in self._replayed_calls(artifact):
            compilation = replayed.compilation
            call = self._kept_call(artifact, replayed)
            if isinstance(call, KnownCall):
                return replace(artifact, attached={**artifact.attached, KNOWN_CALL: call.record()})
            why = call
        if compilation is not None:
            self.skip(compilation, f"no call is kept for `tilewright verify`: {why}")
        return artifact

    def _replayed_calls(self, artifact: Artifact) -> Iterator[_Replayed]:
        for replay in self.programs[:1]:
            for session in replay.sessions:
                moves = partial(replay.moved, session, 0)
                yield _Replayed(replay.compilation, replay.module, session.case, session.wanted[0], moves)
        for watch in self.watches[:1] if not self.programs and not artifact.states else ():
            assert watch.original is not None
            for case, wanted in zip(watch.cases, watch.wanted, strict=True):
                moves = partial(self._moved, watch, case, wanted)
                yield _Replayed(watch.compilation, watch.original, case, wanted, moves)

    def _moved(self, watch: PassWatch, case: Case, wanted: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        assert watch.original is not None
        deadline = time.thread_time() + self.seconds / 8
        return moved_results(ReplayedValues(watch.original, case, deadline, numerics_of(watch.compilation)), wanted)

    def _kept_call(self, artifact: Artifact, replayed: _Replayed) -> KnownCall | str:
        """A call that the model is to be compared with, or why it is none: the model refuses it, or rounds more than is
        known. How far inputs move results is only asked where floats decide integers, and where results differ from
        what they should be by more than a part of what is allowed without: it takes as long as the call itself."""
        call = replayed.call(artifact, [None] * len(replayed.wanted))
        if isinstance(call, str) or self._why_not_native(replayed.compilation, artifact):
            return call if isinstance(call, str) else replayed.call(artifact, replayed.moves())
        names = [o.name for o in artifact.outputs]
        try:
            found = _called(artifact, tuple(call.inputs.values()))
            if not call.within(NEAR).differences(lambda *_: found, names) and not replayed.has_integers:
                return call
            call = replayed.call(artifact, replayed.moves())
            others = {} if isinstance(call, str) else call.differences(lambda *_: found, names)
        except TilewrightError as error:
            if wrong := fault_of(error):
                self._fail_whole(replayed.compilation, replayed.module, replayed.case, wrong)
            return f"the model refuses it: {error.what}"
        return next((f"'{name}' has {how}" for name, how in others.items()), call)

    def _why_not_native(self, compilation: Compilation, artifact: Artifact) -> str:
        machine = compilation.setting.machine
        if not isinstance(machine, Target) or machine.triple != host_target().triple:
            return f"its kernels are not compared: code for {machine.name} does not run here"
        if missing := set(machine.features) - set(host_target().features):
            return f"its kernels are not compared: this machine has no {', '.join(sorted(missing)[:3])}"
        return ""

    def check_feeds(self, artifact: Artifact) -> None:
        """InputError for recorded calls of another model; a remark where those of this one are not replayed."""
        if not self.feeds or self.recorded:
            return
        infos = [info.parts for info in artifact.inputs]
        if any(all(_takes(info, feed.get(info.name)) for info in infos) for feed in self.feeds):
            self.skipped["the model: the recorded calls are not replayed"] = None
            return
        given = ", ".join(f"{name}: {a.dtype}{list(a.shape)}" for name, a in sorted(self.feeds[0].items()))
        raise InputError(
            f"none of the {len(self.feeds)} recorded calls gives what the model takes, "
            f"which is {', '.join(map(str, artifact.inputs)) or 'nothing'}; the first holds {given or 'nothing'}",
            hint="record calls of this model: Model.record(folder), or tilewright record",
        )

    # What is told

    def skip(self, compilation: Compilation, why: str) -> None:
        self.skipped[f"{self._place(compilation)}: {why}"] = None

    def _place(self, compilation: Compilation) -> str:
        return compilation.module.main.attrs.get("place") or "the model"

    def note_failure(self, compilation: Compilation, error: Exception) -> None:
        """Something of the validation failed as nothing should."""
        consequence = "its passes are not validated from here on"
        self.failures.append(failure(STAGE, self._place(compilation), error, consequence))

    def note_races(self, found: Races) -> None:
        """What is known of the parallel loops of one more kernel."""
        for name in ("proved", "tried", "left"):
            self.loops[name] = self.loops.get(name, 0) + getattr(found, name)

    def _said_of_loops(self) -> str:
        said = {
            "proved": "are proved to have no race", "tried": "had none in a call",
            "left": "were not looked at to the end",
        }  # fmt: skip
        told = [f"{n} {said[name]}" for name, n in self.loops.items() if n]
        return f"; of the parallel loops {', '.join(told)}" if told else ""

    def note_refused(self, case: Case, error: Exception) -> None:
        self._refused[f"{case}: {getattr(error, 'what', error)}".splitlines()[0][:200]] = None

    def fail(self, compilation: Compilation, finding: Fault, *others: Fault) -> None:
        """Switch off what changed the meaning: the compilation begins anew without it."""
        self.findings += [finding, *others]
        self.blamed = compilation
        for other in others:
            save(other, self.folder)
        error = MeaningChanged(finding, save(finding, self.folder), len(others))
        parts = dict.fromkeys(part for fault in (finding, *others) for part in fault.parts)
        compilation.setting.optional.fail(parts, error)

    def remarks(self) -> list[Remark]:
        """What was looked at and what not, for the report."""
        told = [Remark(STAGE, subject, why) for subject, _, why in (text.partition(": ") for text in self.skipped)]
        told += self.failures
        if self.watches:
            applied = sum(w.applied for w in self.watches)
            said = (
                f"{self.passes} passes with {applied} replacements and {self.kernels} kernels compute what they are "
                f"made of, in {self.calls} calls{self._said_of_loops()}"
            )
            told.append(Remark(STAGE, "the model", said, "applied"))
        return told


@dataclass(frozen=True)
class _Replayed:
    """A call of a program by the interpreter. `moves` tells by how much results move where inputs do by their last
    bits."""

    compilation: Compilation
    module: Module
    case: Case
    wanted: Sequence[Any]
    moves: Callable[[], Sequence[np.ndarray | None]]

    @property
    def has_integers(self) -> bool:
        return any(isinstance(a, np.ndarray) and not is_float(a.dtype) for a in self.wanted)

    def call(self, artifact: Artifact, moved: Sequence[np.ndarray | None]) -> KnownCall | str:
        return known_call(artifact, self.module, self.case, self.wanted, moved)


def known_call(
    artifact: Artifact, module: Module, case: Case, wanted: Sequence[Any], moved: Sequence[np.ndarray | None]
) -> KnownCall | str:
    """A call and what it gives, with what rounding may do to it: `moved` is by how much results move where inputs do by
    their last bits. Or why there is none."""
    infos = artifact.inputs
    arrays = case.arrays[: len(infos)]
    if not all(map(_takes, [info.parts for info in infos], arrays)) or len(arrays) != len(infos):
        return "the model takes other inputs than its graph"
    if not all(map(is_repeatable, module.main.body.ops[:-1])):
        return "it draws random numbers"
    if any(not isinstance(a, np.ndarray) or a.dtype.hasobject for a in wanted):
        return "it gives something else than numbers"
    results = [_known_result(a, step) for a, step in zip(wanted, moved, strict=True)]
    call = KnownCall(dict(zip((info.name for info in infos), arrays, strict=True)), results)
    return call if call.nbytes <= MOST_BYTES else f"it would take {call.nbytes >> 20} MiB"


def _known_result(wanted: np.ndarray, step: np.ndarray | None) -> KnownResult:
    flips = 0.0 if is_float(wanted.dtype) or step is None or not step.size else float((step != 0).mean())
    return KnownResult(wanted, allowance(wanted, step), min(1.0, MOVED * flips))


def _called(artifact: Artifact, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    found = Model(artifact, 1)(*arrays)
    return found if isinstance(found, tuple | list) else (found,)


def _takes(info: TensorInfo, array: np.ndarray | None) -> bool:
    """Whether a recorded array can be an input."""
    return array is not None and array.dtype == numpy_dtype(info.dtype) and array.ndim == len(info.shape)
