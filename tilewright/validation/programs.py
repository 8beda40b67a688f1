"""Programs of parts, and those that keep states, as a whole: several calls one after the other, by the interpreter and
as native code. What the parts of a program get in these calls is what they are replayed on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tilewright.compilation import Compilation
from tilewright.graph.assumptions import Assumption, assumptions
from tilewright.ir.core import Block, Func, Module
from tilewright.ir.diag import TilewrightError
from tilewright.ops.define.binding import bound_dims
from tilewright.options import bits_of_rows
from tilewright.program.interp import Memory, run_program
from tilewright.program.spec import STATE
from tilewright.program.split import alone, part_functions
from tilewright.program.states import STATES
from tilewright.runtime import Artifact, Model
from tilewright.runtime.errors import BeyondBufferError
from tilewright.validation.cases import Case, refuse_call
from tilewright.validation.closeness import deviation, is_float, nudged
from tilewright.validation.guarded import NO_FAULT, fault_of
from tilewright.validation.values import EVALUATION, NudgedValues, ReplayedValues, SharedValues, largest_step

CALLS = 2
"""Of a model that keeps states, one after the other."""

MOST_FEEDS = 2
"""Calls of each part that it is replayed on: the first and the last one of a loop."""

MOST_TRIPS = 10_000
"""Of the loops of a call that is replayed: the interpreter takes some tenths of a millisecond for a short one, and a
condition that is drawn may never end a loop."""

THREADS = 2


@dataclass(frozen=True)
class ReplayedCalls:
    """Calls with the same inputs, one after the other, and what each gives."""

    case: Case
    wanted: Sequence[Sequence[Any]]


@dataclass
class ProgramReplay:
    """A program as it was before its parts, or its passes, changed it."""

    compilation: Compilation
    module: Module
    sessions: list[ReplayedCalls] = field(default_factory=list)
    feeds: dict[Block, list[tuple[np.ndarray, ...]]] = field(default_factory=dict)
    """What the parts get, by their body in the compilation's module."""
    shared: SharedValues = field(default_factory=SharedValues)
    _trips: int = 0
    _assumed: dict[str, Sequence[Assumption]] = field(default_factory=dict)
    _moves: dict[int, list[list[np.ndarray | None]]] = field(default_factory=dict)

    @classmethod
    def of(cls, compilation: Compilation) -> ProgramReplay:
        return cls(compilation, compilation.module.copy())

    def begin(self, case: Case, deadline: float) -> bool:
        """Run the program on one case; whether it takes it. Raises what the interpreter raises."""
        parts = {func.name: func for func in part_functions(self.compilation.module)}
        bodies = {name: func.body for name, func in parts.items()}
        refuse_call(case, self.compilation.assumed)
        given: dict[str, list[tuple[np.ndarray, ...]]] = {}

        def pace() -> None:
            self._trips += 1
            if self._trips > MOST_TRIPS or time.thread_time() > deadline:
                raise TimeoutError

        self._trips = 0

        def note(part: str, arrays: Sequence[Any]) -> None:
            if time.thread_time() > deadline:
                raise TimeoutError
            if part in bodies and all(isinstance(a, np.ndarray) for a in arrays):
                self._refuse(parts[part], arrays)
                kept = given.setdefault(part, [])
                del kept[MOST_FEEDS - 1 :]
                kept.append(tuple(np.array(a) for a in arrays))

        try:
            self.sessions.append(ReplayedCalls(case, self._calls(case.arrays, note, pace=pace)))
        except (TimeoutError, AssertionError):
            return False
        for part, arrays in given.items():
            self.feeds.setdefault(bodies[part], []).extend(arrays)
        return True

    def _refuse(self, part: Func, arrays: Sequence[np.ndarray]) -> None:
        """InputError for a call in which a part gets sizes that it does not take: the model refuses it."""
        if part.name not in self._assumed:
            self._assumed[part.name] = assumptions(alone(part, self.compilation.module))
        assumed = self._assumed[part.name]
        if assumed:
            refuse_call(Case("observed", tuple(arrays), bound_dims(part.args, arrays)), assumed)

    def _calls(
        self, arrays: Sequence[np.ndarray], note: Any = None, sign: int = 0, pace: Callable[[], None] = lambda: None
    ) -> list[list[Any]]:
        """The results of some calls; with a `sign`, where what operators give is moved to one side."""
        if keeps := self.module.main.attrs.get(STATES, ()):
            return self._calls_of_graph(arrays, len(keeps), sign)
        memory: Memory = {}
        count = CALLS if self._states() else 1
        evaluate = partial(self._moved_part, sign) if sign else None
        return [run_program(self.module, arrays, memory, note=note, evaluate=evaluate, pace=pace) for _ in range(count)]

    def _moved_part(self, sign: int, part: Func, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What a part gives where what its operators give is moved to one side."""
        case = Case("observed", tuple(arrays), bound_dims(part.args, arrays))
        values = ReplayedValues(alone(part, self.module), case, float("inf"), "strict", self.shared)  # as interpreted
        return NudgedValues(values, case, sign).compute_all()

    def _calls_of_graph(self, arrays: Sequence[np.ndarray], count: int, sign: int) -> list[list[Any]]:
        """Of a program in one piece whose last inputs and outputs are its states."""
        kept = [np.zeros_like(a) for a in arrays[-count:]]
        found = []
        for _ in range(CALLS):
            values = self._values([*arrays[:-count], *kept])
            results = (NudgedValues(values, values.case, sign) if sign else values).compute_all()
            found.append(results[:-count])
            kept = results[-count:]
        return found

    def _values(self, arrays: Sequence[np.ndarray]) -> ReplayedValues:
        case = Case("observed", tuple(arrays), bound_dims(self.module.main.args, arrays))
        return ReplayedValues(self.module, case, float("inf"), numerics_of(self.compilation), self.shared)

    def _states(self) -> list[Any]:
        return [op for op in self.module.main.body.ops if op.name == STATE]

    @property
    def begins_with_zeros(self) -> bool:
        """Whether all states do: those that begin as constants are not replayed."""
        named = (initial for _, _, initial in self.module.main.attrs.get(STATES, ()))
        return not any(named) and not any(op.attrs.get("initial") for op in self._states())

    def wrong(self, artifact: Artifact) -> Iterator[tuple[Case, str]]:
        """How the native code gives something else, for each case."""
        taken = len(artifact.inputs)
        for session in self.sessions:
            try:
                model = Model(artifact, THREADS)
                found = [model(*session.case.arrays[:taken]) for _ in session.wanted]
            except BeyondBufferError:
                raise
            except NO_FAULT:
                continue
            except TilewrightError as error:
                yield session.case, fault_of(error) or f"it refuses the call: {error.what}"
                continue
            for number, (wanted, given) in enumerate(zip(session.wanted, found, strict=True)):
                results = given if isinstance(given, tuple | list) else (given,)
                for place, (x, y) in enumerate(zip(wanted, results, strict=False)):
                    if not isinstance(x, np.ndarray) or x.dtype == object:
                        continue
                    if not isinstance(y, np.ndarray) or y.dtype == object:
                        yield session.case, f"result {place} of call {number + 1} is no tensor of numbers"
                        continue
                    moved = partial(self._moved, session, number, place)
                    if (why := deviation(x, y, moved=moved, of_floats=True)) is not None:
                        yield session.case, f"result {place} of call {number + 1}: {why}"

    def _moved(self, session: ReplayedCalls, number: int, place: int) -> np.ndarray | None:
        return self.moved(session, number)[place]

    def moved(self, session: ReplayedCalls, number: int) -> list[np.ndarray | None]:
        """By how much the results of a call move where inputs do by their last bits, or what operators give where no
        input is a float."""
        if id(session) not in self._moves:
            self._moves[id(session)] = self._distances(session)
        return self._moves[id(session)][number]

    def _distances(self, session: ReplayedCalls) -> list[list[np.ndarray | None]]:
        """Of all calls, one after the other."""
        ways = self._moved_calls(session.case)
        return [
            [largest_step(a, [way[number][place] for way in ways]) for place, a in enumerate(wanted)]
            for number, wanted in enumerate(session.wanted)
        ]

    def _moved_calls(self, case: Case) -> list[list[list[Any]]]:
        rounding = numerics_of(self.compilation)
        arrays = [nudged(a, k, rounding=rounding) for k, a in enumerate(case.arrays)]
        given = arrays[: len(arrays) - len(self.module.main.attrs.get(STATES, ()))]
        signs = (0,) if any(is_float(a.dtype) for a in given) else (1, -1)
        try:
            return [self._calls(arrays, sign=sign) for sign in signs]
        except (*EVALUATION, AssertionError):
            return []


def numerics_of(compilation: Compilation) -> str:
    """How a program may round: what rows of its products are rounded to, or its numerics; "strict" where all of it is
    integers, which have no denormals to be zeros."""
    options = compilation.setting.options
    bits = bits_of_rows(options, compilation.module.main.attrs.get("activations"))
    if bits == 8 or (bits and options.numerics != "fast"):
        return f"int{bits}"
    return "strict" if options.integer_only else options.numerics
