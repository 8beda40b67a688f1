"""Which step of a kernel's schedule makes it wrong: the steps are taken one by one, and after each the interpreter runs
the loops on the same operands."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.compilation import Compilation, Setting
from tilewright.ir.core import Func, Module, Op, Value
from tilewright.ir.diag import ScheduleError, TilewrightError
from tilewright.ir.optional_steps import OptionalSteps
from tilewright.loops.conditions.specialize import specialize_less
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.storage.packing import PackedArray
from tilewright.ops.define.bodies import evaluate_sym
from tilewright.ops.define.interp import evaluate_op
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.schedule.edited import EditedSchedules
from tilewright.schedule.replay import take
from tilewright.schedule.text import parse_trace
from tilewright.schedule.trace import Step, Trace
from tilewright.target.machine import Machine
from tilewright.validation.closeness import Deviation, deviation, nudged, steps
from tilewright.validation.races import races_of
from tilewright.validation.values import EVALUATION

LOWERING = "lowering"
FINISHING = "what follows the last step, which leaves its loops right"
CODE = "code generation"
SCHEDULE = "schedule"

SHARES = "parallel"
"""The primitive after which threads share the iterations of a loop."""


class _LoweredKernels(EditedSchedules):
    """Keeps each kernel as it is before its schedule, and has no steps of its own for any."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Func] = {}

    def scheduled(self, naive: Func, machine: Machine) -> Func | None:
        self.kept[naive.name] = naive.clone()
        return None


@dataclass(frozen=True)
class _Call:
    """A kernel of a program, and what it is called with: `arrays` are its operands as the model has them."""

    naive: Func
    final: Func
    arrays: tuple[np.ndarray, ...]
    dims: Mapping[str, int]


def wrong_step(
    module: Module, inputs: Mapping[str, np.ndarray], setting: Setting, deadline: float, wanted: Sequence[np.ndarray]
) -> tuple[str, str]:  # fmt: skip
    """The stage of the way from a graph to code that is wrong, and of a schedule in words the first step after which a
    kernel computes something else than before: its number, primitive and arguments. `wanted` are the results of the
    graph. The stage is "schedule" without a step where the interpreter of loops does not tell in time."""
    lowered = _LoweredKernels()
    compilation = Compilation(module.copy(), _plain(setting, lowered))
    arrays = [inputs[name] for name in module.main.attrs["inputs"]]
    try:
        compilation.run("scheduled")
        calls, results = _calls(compilation.module, lowered.kept, arrays)
        for call in calls:
            if found := _first_wrong(call, setting.machine, deadline):
                return SCHEDULE, f"the kernel {call.naive.name}: {found}" if len(calls) > 1 else found
        differs = any(deviation(x, y, of_floats=True) for x, y in zip(wanted, results, strict=True))
    except (*EVALUATION, KeyError, AssertionError):
        return SCHEDULE, ""
    return LOWERING if differs else CODE if calls else SCHEDULE, ""


def _plain(setting: Setting, lowered: _LoweredKernels) -> Setting:
    """The setting without what watches or replaces."""
    optional = OptionalSteps(verified=False)
    return Setting.of(setting.options, setting.machine, setting.plugins, optional=optional, edited=lowered)


def _calls(
    module: Module, naive: Mapping[str, Func], arrays: Sequence[np.ndarray]
) -> tuple[list[_Call], list[np.ndarray]]:
    """The kernels that a program calls, each on what the loops before their schedules make of its inputs; and its
    results by these loops."""
    main = module.main
    known: dict[Value, np.ndarray] = dict(zip(main.args, arrays, strict=True))
    env = {
        d.name: n for v, a in known.items() for d, n in zip(v.tensor.shape, a.shape, strict=True) if not d.is_const
    }  # fmt: skip
    calls = []
    for op in main.body.ops[:-1]:
        if op.name == "constant":
            found = module.constants.held[op.attrs["name"]]
            known[op.result] = found.array if isinstance(found, PackedArray) else module.constants[op.attrs["name"]]
        elif op.name == "call":
            call = _call(op, module, naive, known, env)
            calls.append(call)
            made = _run(call.naive, call.arrays, call.dims)
            shapes = [[int(evaluate_sym(d, env)) for d in v.tensor.shape] for v in op.results]
            known.update((v, a.reshape(s)) for v, a, s in zip(op.results, made, shapes, strict=True))
        else:
            known.update(zip(op.results, evaluate_op(op, [known[v] for v in op.operands], env, module), strict=True))
    return calls, [known[v] for v in main.returns]


def _call(
    op: Op, module: Module, naive: Mapping[str, Func], known: Mapping[Value, np.ndarray], env: Mapping[str, int]
) -> _Call:  # fmt: skip
    final = module.funcs[op.attrs["kernel"]]
    pairs = zip(final.dims, op.attrs["dims"], strict=True)
    dims = {d.name: int(evaluate_sym(n, env)) for d, n in pairs}
    return _Call(naive[final.name], final, tuple(known[v] for v in op.operands), dims)


def _run(kernel: Func, arrays: Sequence[np.ndarray], dims: Mapping[str, int]) -> list[np.ndarray]:
    """The results of a kernel by the interpreter, of operands as the model has them."""
    given = [np.ascontiguousarray(a) for a in arrays]
    for number, packing in kernel_info(kernel).packed.items():
        packed = PackedArray(given[number], packing)
        given[number] = np.empty(packed.shape, packed.dtype)
        packed.write(given[number])
    results = []
    for argument in kernel.args[len(given) :]:
        shape = [int(evaluate_sym(d, dims)) for d in argument.buffer.shape]
        results.append(np.zeros(shape, argument.buffer.dtype.storage))
    run_kernel(kernel, [*given, *results], dims)
    return results


def _first_wrong(call: _Call, machine: Machine, deadline: float) -> str:
    """What of the making of a kernel's loops is wrong; "" for nothing."""
    wanted = _run(call.naive, call.arrays, call.dims)
    moved = [steps(a, b) for a, b in zip(wanted, _run_nudged(call), strict=True)]
    trace = parse_trace("\n".join(kernel_info(call.final).schedule))
    naive, taken = _taken(call, trace, machine)
    func = naive.clone()
    for number, step in enumerate(taken, 1):
        if time.monotonic() > deadline:
            raise TilewrightError("there is no time left")
        take(func, step, machine)
        why = _why_wrong(func, call, wanted, moved)
        if step.primitive == SHARES and not why:
            why = races_of(func, call.dims).wrong
        if why:
            return f"step {number} of {len(taken)}, {step}: {why}"
    why = _why_wrong(call.final, call, wanted, moved) or races_of(call.final, call.dims).wrong
    return f"{FINISHING}: {why}" if why else ""


def _run_nudged(call: _Call) -> list[np.ndarray]:
    return _run(call.naive, [nudged(a, k) for k, a in enumerate(call.arrays)], call.dims)


def _taken(call: _Call, trace: Trace, machine: Machine) -> tuple[Func, Sequence[Step]]:
    """The steps that made the loops for the dims of a call, and the kernel that they begin with."""
    naive = call.naive
    while trace.otherwise is not None:
        func = naive.clone()
        for step in trace.steps:
            take(func, step, machine)
        least = kernel_info(func).specialized_for
        if all(call.dims[name] >= n for name, n in least.items()):
            break
        naive = naive.clone()
        specialize_less(naive, least)
        trace = trace.otherwise
    return naive, trace.steps


def _why_wrong(func: Func, call: _Call, wanted: Sequence[np.ndarray], moved: Sequence[np.ndarray]) -> str:
    """How loops compute something else than those before the first step."""
    try:
        found = _run(func, call.arrays, call.dims)
    except ScheduleError:
        raise
    except TilewrightError as error:
        return error.what
    for x, y, step in zip(wanted, found, moved, strict=True):
        wrong: Deviation | None = deviation(x, y.reshape(x.shape), moved=partial(_given, step), of_floats=True)
        if wrong is not None:
            return str(wrong)
    return ""


def _given(step: np.ndarray) -> np.ndarray:
    return step
