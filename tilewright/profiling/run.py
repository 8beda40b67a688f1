"""Running a model with timers around its kernels, and what the times come to beside what the machine can do."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.api import compile as compile_model
from tilewright.profiling.counters import count_events
from tilewright.profiling.machine import machine_rates, rates_again
from tilewright.profiling.others import OtherPrograms
from tilewright.profiling.records import (
    BlockProfile,
    KernelProfile,
    LayerProfile,
    MachineRates,
    ModelProfile,
    Scaling,
    ScalingPoint,
)
from tilewright.profiling.scaling import most_speedup, scaled_speedups, serial_share
from tilewright.profiling.work import CallWork, bound, works
from tilewright.runtime import Artifact, Model, TensorInfo
from tilewright.runtime.errors import CancelledError, ExecutionError, InputError, OptionError, short_name
from tilewright.runtime.profile import KernelTime
from tilewright.runtime.report.paths import module_path
from tilewright.runtime.report.records import BlockRecord
from tilewright.runtime.states import changed_by_calls
from tilewright.session import Session

ROUNDS = 5
"""Turns of calls on each number of threads, so that all meet the same disturbances."""

DOUBTFUL = 110.0
"""Percent of the roofline of arithmetic from which on the machine is taken to have been busy when it was measured."""

Feed = Mapping[str, Any]


def profile(
    model: str | Path | bytes | Any,
    inputs: Mapping[str, Any],
    *,
    runs: int = 20,
    scaling: bool = False,
    counters: bool = False,
    batch: str | None = None,
    session: Session | None = None,
    threads: int | None = None,
    **fields: Any,
) -> ModelProfile:
    """Time the kernels of a model on `inputs` by name, in at least `runs` runs, and compare them with what this machine
    does at best (measured once, which takes some seconds, and kept by the `session`).

    The model is a `Model` that was compiled with `profile=True`, or anything that `tilewright.compile` takes, with its
    options as `fields`. With `scaling` calls are also timed on fewer threads, and, where a dim of the inputs is
    symbolic (that of the name `batch`, by default the first), on inputs that grow with the threads; with `counters`
    the events that the hardware counts are read, where that is allowed.

    OptionError for a model without timers, InputError for inputs that do not fit.
    """
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise OptionError(f"runs={runs!r:.80} is not allowed", hint="give a whole number from 1 on")
    session = Session.of(session)
    opened = _opened(model, session, threads, fields)
    if scaling:
        batch_dim(opened.inputs, batch)  # says at once what is wrong with it
    if opened.states:  # those of the caller's model stay as they are
        opened = copy.copy(opened)
    others = OtherPrograms()
    times, calls_ms = _timed(opened, inputs, runs)
    disturbed = others.note()
    rates = machine_rates(session)
    artifact = _program(opened.artifact, times)
    sizes = sizes_of(opened.inputs, inputs)
    kernels = kernel_profiles(artifact, times, sizes, rates, opened.threads)
    notes = []
    computed = {peak.dtype for peak in rates.peaks}  # data may lie in a faster cache than was assumed
    if any(k.percent is not None and k.percent > DOUBTFUL and k.bound in computed for k in kernels):
        rates = rates_again(session, rates)
        kernels = kernel_profiles(artifact, times, sizes, rates, opened.threads)
        notes.append("the machine was measured again, as kernels were faster than what it had been measured to do")
    found: Scaling | None = None
    if scaling:
        others = OtherPrograms()
        found, note = measure_scaling(opened, inputs, runs, batch)
        disturbed = others.note() or disturbed
        notes += [note] if note else []
    notes += [disturbed] if disturbed else []
    events: dict[str, float] = {}
    if counters:
        first = _first_states(opened)
        events, note = count_events(lambda: _call(opened, inputs, first), runs)
        notes += [note] if note else []
    return ModelProfile(
        opened.report().model,
        opened.threads,
        sizes,
        times[0].sizes if times else "",
        runs,
        round(statistics.median(calls_ms), 6),
        round(min(calls_ms), 6),
        round(1000 * sum(t.typical for t in times), 6),
        kernels,
        layer_profiles(kernels),
        rates,
        found,
        events,
        tuple(notes),
        tuple(_block(block, kernels) for block in artifact.report.blocks),
    )


def _block(block: BlockRecord, kernels: Sequence[KernelProfile]) -> BlockProfile:
    times = [[kernels[n] for n in copy] for copy in block.kernels]
    return BlockProfile(
        block.block,
        block.copies,
        block.variants,
        tuple(round(sum(k.median_ms for k in copy), 6) for copy in times),
        round(sum(k.share for copy in times for k in copy), 6),
    )


def _opened(model: Any, session: Session, threads: int | None, fields: Mapping[str, Any]) -> Model:
    if isinstance(model, Model):
        if fields or threads is not None:
            raise OptionError("a compiled model takes no options", hint="compile it with these, and profile=True")
        return model
    return compile_model(model, session=session, threads=threads, profile=True, **fields)


def _timed(model: Model, inputs: Feed, runs: int) -> tuple[tuple[KernelTime, ...], list[float]]:
    """The times of the kernels, and milliseconds of calls without timers: one call of each in turns, as clocks and
    neighbours may change from one to the next."""
    beside = copy.copy(model) if model.states else model
    first = _first_states(beside)
    calls_ms: list[float] = []

    def call() -> None:
        calls_ms.append(_call_ms(beside, inputs, first))

    return model.profile(inputs, runs, between=call), calls_ms


def _calls_ms(model: Model, inputs: Feed, calls: int) -> list[float]:
    """Milliseconds of each of some calls, behind one that wakes the threads."""
    first = _first_states(model)
    _call(model, inputs, first)
    found = [_call_ms(model, inputs, first) for _ in range(calls)]
    _begin(model, first)
    return found


def _call_ms(model: Model, inputs: Feed, states: Mapping[str, np.ndarray]) -> float:
    """Milliseconds of a call that finds these states."""
    _begin(model, states)
    start = time.perf_counter()
    model.run(inputs)
    return 1000 * (time.perf_counter() - start)


def same_states(model: Model) -> Callable[[], None]:
    """What lets the next call find the states that the model has now."""
    first = _first_states(model)
    return lambda: _begin(model, first)


def _first_states(model: Model) -> dict[str, np.ndarray]:
    return {state.info.name: model.state(state.info.name) for state in changed_by_calls(model.states)}


def _begin(model: Model, states: Mapping[str, np.ndarray]) -> None:
    """Let a call find these states."""
    for name, value in states.items():
        model.set_state(name, value)


def _call(model: Model, inputs: Feed, states: Mapping[str, np.ndarray]) -> None:
    _begin(model, states)
    model.run(inputs)


def _program(artifact: Artifact, times: Sequence[KernelTime]) -> Artifact:
    """The program that ran: for frequent sizes, for dims that are 1, or that for all others."""
    names = [t.kernel for t in times]
    return next((p for p in artifact.programs if [c.kernel for c in p.report.calls] == names), artifact)


def sizes_of(infos: Sequence[TensorInfo], inputs: Feed) -> dict[str, int]:
    """What the symbolic dims of inputs are in a call."""
    found: dict[str, int] = {}
    for info in infos:
        if info.kind == "tensor" and info.name in inputs:
            dims = zip(info.shape, np.shape(inputs[info.name]), strict=False)
            found |= {d: int(n) for d, n in dims if isinstance(d, str) and d.isidentifier()}
    return found


def kernel_profiles(
    artifact: Artifact, times: Sequence[KernelTime], sizes: Mapping[str, int], machine: MachineRates, threads: int
) -> tuple[KernelProfile, ...]:
    """What times and a report say of each call of a kernel."""
    report = artifact.report
    found = works(report.calls, report.types, sizes)
    total = max(sum(t.seconds for t in times), 1e-12)
    constants = sum(work.constant_bytes or 0 for work in found)
    return tuple(
        _kernel(found_time, call.nodes or ((call.node,) if call.node else ()), work, total, machine, threads, constants)
        for found_time, call, work in zip(times, report.calls, found, strict=True)
    )


def _kernel(
    found: KernelTime, nodes: tuple[str, ...], work: CallWork, total: float, machine: MachineRates, threads: int,
    constants: int,
) -> KernelProfile:  # fmt: skip
    operations, touched = (_times(n, found.count) for n in (work.operations, work.bytes))
    least = bound(work, machine, threads, constants)
    bound_s = None if least is None else least.seconds * found.count
    return KernelProfile(
        found.kernel,
        nodes,
        module_path(nodes[0]) if nodes else "",
        found.count,
        _ms(found.least),
        _ms(found.seconds),
        round(found.seconds / total, 6),
        operations,
        touched,
        rate(operations, found.seconds),
        rate(touched, found.seconds),
        "" if least is None else least.by,
        None if bound_s is None else _ms(bound_s),
        percent(bound_s, found.seconds),
        tuple(map(_ms, found.busy)),
        round(statistics.fmean(found.busy) / max(found.busy), 4) if any(found.busy) else None,
    )


def _times(amount: int | None, count: int) -> int | None:
    return None if amount is None else amount * count


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 6)


def rate(amount: int | None, seconds: float) -> float | None:
    """Billions a second."""
    return None if amount is None or seconds <= 0 else round(amount / seconds / 1e9, 3)


def percent(bound_s: float | None, seconds: float) -> float | None:
    """What share of the best speed a time has."""
    return None if bound_s is None or seconds <= 0 else round(100 * bound_s / seconds, 2)


def layer_profiles(kernels: Sequence[KernelProfile]) -> tuple[LayerProfile, ...]:
    """The kernels by the modules of their main nodes, in the order of the first one of each."""
    groups: dict[str, list[int]] = {}
    for number, kernel in enumerate(kernels):
        groups.setdefault(kernel.path, []).append(number)
    return tuple(_layer(path, numbers, kernels) for path, numbers in groups.items())


def _layer(path: str, numbers: Sequence[int], every: Sequence[KernelProfile]) -> LayerProfile:
    kernels = [every[n] for n in numbers]
    median = sum(k.median_ms for k in kernels)
    flops, touched = (_sum(amounts) for amounts in ([k.flops for k in kernels], [k.bytes for k in kernels]))
    bounds = [k.bound_ms for k in kernels if k.bound_ms is not None]
    bound_s = sum(bounds) / 1000 if len(bounds) == len(kernels) else None
    return LayerProfile(
        path,
        tuple(numbers),
        round(sum(k.least_ms for k in kernels), 6),
        round(median, 6),
        round(sum(k.share for k in kernels), 6),
        flops,
        touched,
        rate(flops, median / 1000),
        rate(touched, median / 1000),
        percent(bound_s, median / 1000),
    )


def _sum(amounts: Iterable[int | None]) -> int | None:
    known = [*amounts]
    return None if None in known else sum(n for n in known if n is not None)


def measure_scaling(model: Model, inputs: Feed, runs: int, batch: str | None = None) -> tuple[Scaling, str]:
    """Median calls on 1 to all threads, in turns; and, where a dim can grow, on inputs that grow with them, or why not
    ("" where nothing is to be said)."""
    models = {n: Model(model.artifact, threads=n) for n in range(1, model.threads)} | {model.threads: model}
    feeds = dict.fromkeys(models, inputs)
    times = _medians(models, feeds, runs)
    points = tuple(ScalingPoint(n, times[n]) for n in sorted(models))
    share = serial_share(points)
    name = batch_dim(model.inputs, batch)
    same = Scaling(points, round(share, 4), most_speedup(share))
    if not name:
        return same, ""
    size = sizes_of(model.inputs, inputs)[name]
    grown = {n: grown_inputs(model.inputs, inputs, name, n) for n in models}
    try:
        times = _medians(models, grown, runs)
    except CancelledError:
        raise
    except (InputError, ExecutionError) as error:  # a table may have too few rows
        return same, f"no calls with a growing '{short_name(name)}', which the model refuses: {error.what}"
    growing = tuple(ScalingPoint(n, times[n], n * size) for n in sorted(models))
    return replace(same, batch=name, growing=growing, scaled=scaled_speedups(growing)), ""


def _medians(models: Mapping[int, Model], feeds: Mapping[int, Feed], runs: int) -> dict[int, float]:
    found: dict[int, list[float]] = {n: [] for n in models}
    for _ in range(ROUNDS):
        for n, model in models.items():
            found[n] += _calls_ms(model, feeds[n], max(1, -(-runs // ROUNDS)))
    return {n: round(statistics.median(calls), 6) for n, calls in found.items()}


def batch_dim(infos: Sequence[TensorInfo], wanted: str | None) -> str:
    """The dim that grows: the wanted one, or the first symbolic one; "" where there is none. InputError for one that no
    input has."""
    dims = [d for info in infos if info.kind == "tensor" for d in info.shape if isinstance(d, str) and d.isidentifier()]
    if wanted is not None and wanted not in dims:
        known = ", ".join(dict.fromkeys(dims)) or "there are none"
        raise InputError(f"no input has a symbolic dim '{wanted}'", hint=f"symbolic dims: {known}")
    return wanted or (dims[0] if dims else "")


def grown_inputs(infos: Sequence[TensorInfo], inputs: Feed, dim: str, times: int) -> dict[str, Any]:
    """Inputs whose dim of this name is so many times as large: repeated along it."""
    found = dict(inputs)
    for info in infos:
        if info.kind == "tensor" and info.name in found:
            array = np.asarray(found[info.name])
            for axis, d in enumerate(info.shape):
                if d == dim:
                    array = np.concatenate([array] * times, axis=axis)
            found[info.name] = array
    return found
