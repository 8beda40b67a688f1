"""Random programs under random schedules: whatever steps are accepted, the program computes the same.

Small integers in f64 or i32 make every comparison exact. A refused step must leave the program as it was, each
program reads back from its text, and the text of the steps makes the same program of the one before them.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from tests.loops import programs
from tests.loops.chance import Chance
from tests.loops.interleave import run_interleaved
from tests.loops.machine.steps import LEVELS, MACHINE
from tests.loops.random_programs import PROGRAMS
from tests.loops.steps import STEPS, WEIGHTS
from tilewright.ir.core import Func
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.analysis.happens_before import Order
from tilewright.loops.counts import iterations
from tilewright.loops.kernel_info import kernel_info, parse_kernel
from tilewright.loops.queues.events import why_no_events
from tilewright.loops.queues.waits import finish_queues
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.loops.storage.inplace import overwritable
from tilewright.loops.storage.packing import apply_packing
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.schedule.replay import take as take_step
from tilewright.schedule.text import parse_trace
from tilewright.schedule.trace import Schedule
from tilewright.target.machine import Events, Level

MOST_STEPS = 16
MOST_WORK = 20_000  # packing with large factors inside of loops multiplies the work

Arrays = list[np.ndarray]


@dataclass
class Case:
    """A program that is scheduled, with arguments and what it computes of them.

    `shapes` are those in which an argument was packed, as merged axes may have changed what its packing refers to."""

    func: Func
    env: dict[str, int]
    arrays: Arrays
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    expected: Arrays = field(default_factory=list)

    def __post_init__(self) -> None:
        self.expected = self.results(False)
        self.naive = self.func.clone()

    def given(self) -> Arrays:
        """Arguments as the program expects them now."""
        packed = kernel_info(self.func).packed
        copies = [a.copy() for a in self.arrays]
        for index, shape in enumerate(self.logical_shapes()):
            if index in packed:
                copies[index] = apply_packing(copies[index].reshape(self.shapes[index]), packed[index])
            else:
                copies[index] = copies[index].reshape(shape)  # whose axes may be merged and split
        return copies

    def results(self, backwards: bool) -> Arrays:
        copies = self.given()
        run_kernel(self.func, copies, self.env, backwards=backwards)
        return self.outputs(copies)

    def outputs(self, arrays: Arrays) -> Arrays:
        first = len(arrays) - kernel_info(self.func).outputs
        return [a.reshape(given.shape) for a, given in zip(arrays[first:], self.arrays[first:], strict=True)]

    def logical_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the arguments as the types say now."""
        return [tuple(n.evaluate(self.env) for n in value.type.shape) for value in self.func.args]  # type: ignore[union-attr]

    def check(self, backwards: bool) -> None:
        for want, got in zip(self.expected, self.results(backwards), strict=True):
            assert np.array_equal(want, got), "the result changed"

    def check_orders(self, r: random.Random) -> None:
        """A program in which all that meets is ordered computes the same whatever runs first."""
        if Order(self.func, LEVELS).why_not() is not None:
            return
        self._check_order(self.func, r)
        finished = self.func.clone()
        levels = tuple(Level(name, 4) for name in LEVELS)
        machine = replace(MACHINE, levels=levels, events=(Events("*", "*", r.choice((1, 2, 8))),))
        finish_queues(finished, machine)
        order = Order(finished, LEVELS)
        assert order.why_not() is None and why_no_events(finished, machine, order.running_at) is None
        self._check_order(finished, r)

    def _check_order(self, func: Func, r: random.Random) -> None:
        copies = self.given()
        run_interleaved(func, copies, self.env, r)
        for want, got in zip(self.expected, self.outputs(copies), strict=True):
            assert np.array_equal(want, got), "the result depends on the order of threads and queues"

    def check_text(self) -> None:
        text = print_func(self.func)
        assert print_func(parse_kernel(text)) == text, "the text reads back as another program"

    def check_replay(self, schedule: Schedule) -> None:
        """The trace, printed and read, taken on the program as it was before; from now on that is today's."""
        lines = schedule.lines()
        trace = parse_trace("\n".join(lines))
        assert trace.lines() == lines, "the trace reads back as another one"
        for step in trace.steps:
            take_step(self.naive, step, MACHINE)
        assert print_func(self.naive) == print_func(self.func), "the trace makes another program"
        schedule.steps.clear()
        self.naive = self.func.clone()

    def check_sharing(self) -> None:
        """Results in the memory of the arguments that they are said to be able to overwrite, one at a time."""
        for i, o in overwritable(self.func):
            arrays = self.given()
            arrays[i] = arrays[o] = arrays[i].copy()
            run_kernel(self.func, arrays, self.env)
            want = self.expected[o - len(arrays) + len(self.expected)]
            assert np.array_equal(want, arrays[o].reshape(want.shape)), (
                f"argument {o} in the place of {i} differs"
            )


def fuzz(seed: int, favoured: str | None = None) -> Counter[tuple[str, str]]:
    """Apply random steps to a random program, half of them of the kind `favoured` if given; how often each was accepted
    and refused."""
    r = random.Random(seed)
    func, env = PROGRAMS[seed % len(PROGRAMS)](r)
    case = Case(func, env, programs.arguments(func, env, seed))
    schedule = Schedule(func)
    history: list[str] = []
    tried: Counter[tuple[str, str]] = Counter()
    try:
        for _ in range(MOST_STEPS):
            (name,) = r.choices(list(STEPS), WEIGHTS)
            if favoured is not None and r.random() < 0.5:
                name = favoured
            history.append(name)
            history[-1], outcome = take(name, case, schedule, r)
            tried[name, outcome] += 1
            if r.random() < 0.1:
                case.check_text()
            if outcome == "refused":
                continue
            verify_func(func, LOOPS_SPEC)
            if iterations(func).evaluate(env) > MOST_WORK:
                return tried
            case.check(backwards=r.random() < 0.5)
            if any(op.name in ("run", "barrier") or "level" in op.attrs for op in func.body.walk()):
                case.check_orders(r)
        case.check_text()
        case.check_replay(schedule)
        if depends_on_inputs_only(case):
            case.check_sharing()
    except Exception as e:
        e.add_note(f"seed {seed}, {PROGRAMS[seed % len(PROGRAMS)].__name__}: {'; '.join(history)}")
        raise
    return tried


def take(name: str, case: Case, schedule: Schedule, r: random.Random) -> tuple[str, str]:
    """Try one step; how it is written, and what came of it."""
    if name == "two_kernels":  # which is no step of its own
        case.check_replay(schedule)
    before, shapes, taken = print_func(case.func), case.logical_shapes(), len(schedule.steps)
    try:
        STEPS[name](Chance(schedule, r, case.env))
    except ScheduleError as e:
        assert print_func(case.func) == before, f"refused ({e}), but the program has changed"
        return f"({name})", "refused"
    for index in kernel_info(case.func).packed:
        case.shapes.setdefault(index, shapes[index])
    if name == "two_kernels":
        case.naive = case.func.clone()
    written = [str(step) for step in schedule.steps[taken:]]
    return " ".join(written) or name, "accepted"


def depends_on_inputs_only(case: Case) -> bool:
    """Whether the results depend on the inputs only, and not on what their memory holds before."""
    arrays = case.given()
    for array in case.outputs(arrays):
        array += 1
    run_kernel(case.func, arrays, case.env)
    return all(np.array_equal(a, b) for a, b in zip(case.expected, case.outputs(arrays), strict=True))
