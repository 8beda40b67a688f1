"""Passes over the data in which tensors are observed; what was counted is kept now and then, to go on from there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tilewright.quantization.data import Dataset
from tilewright.quantization.methods.histogram import Observer
from tilewright.quantization.methods.inputs import UnitInputs, bytes_of
from tilewright.quantization.methods.windows import spread
from tilewright.quantization.network import LayerGroup, Network
from tilewright.quantization.probe import Tap
from tilewright.quantization.state import State
from tilewright.runtime.errors import ExecutionError

KEEP_S = 10.0
"""Seconds after which what was counted is kept."""

MOST_GATHERED = 256
"""Samples from which rows and moments are gathered."""

MOST_BYTES = 512 << 20
"""Of rows and moments that are held at once: the units of a large model are gathered for in several passes."""

Steps = Callable[[str, int, int], None]


def observe(
    tap: Tap, network: Network, data: Dataset, state: State, name: str, progress: Steps
) -> dict[str, Observer]:
    """Observers of all units, filled with all samples that the judgement does not see."""
    observers = {unit.name: Observer(unit.data_axis) for unit in network.units}
    numbers = sorted({*data.part("ranges"), *data.part("choice")})
    kept = state.get(name)
    done = 0
    if kept is not None:
        done = int(kept["done"])
        observers = {unit: Observer.restored(record) for unit, record in kept["observers"].items()}
    last = time.monotonic()
    for place, number in enumerate(numbers[done:], done):
        progress("calibrating", place, len(numbers))
        tensors = tap(data.read(number).feed)
        for unit in network.units:
            _check(tensors[unit.name], unit, number)
            observers[unit.name].add(tensors[unit.name])
        if time.monotonic() - last > KEEP_S:
            _keep(state, name, observers, place + 1)
            last = time.monotonic()
    if done < len(numbers):
        _keep(state, name, observers, len(numbers))
    progress("calibrating", len(numbers), len(numbers))
    return observers


def _keep(state: State, name: str, observers: Mapping[str, Observer], done: int) -> None:
    state.put(name, {"done": done, "observers": {unit: o.record() for unit, o in observers.items()}})


def _check(tensor: np.ndarray, unit: LayerGroup, sample: int) -> None:
    if not np.isfinite(tensor).all():
        raise ExecutionError(
            "the float32 model computes NaN or infinity",
            where=f"what '{unit.name}' reads, in sample {sample}",
            hint="leave such samples out, or repair the model: there is no range that holds them",
        )


def gather(tap: Tap, units: Sequence[LayerGroup], data: Dataset, progress: Steps) -> dict[str, UnitInputs]:
    """What the layers of units meet: for making forms from the samples for ranges, for comparing them from others, so
    that what was fitted too closely is not taken for good."""
    found = {unit.name: UnitInputs(unit) for unit in units}
    fit, check = (_some(data.part(name)) for name in ("ranges", "choice"))
    for place, number in enumerate([*fit, *check]):
        progress("gathering inputs", place, len(fit) + len(check))
        feed = data.read(number).feed
        tensors, dims = tap(feed), tap.dims(feed)
        for unit in units:
            for inputs in found[unit.name].each:
                if place < len(fit):
                    inputs.add_fit(tensors[unit.name], len(fit), dims)
                else:
                    inputs.add_check(tensors[unit.name], len(check), dims)
    return found


def _some(numbers: Sequence[int]) -> list[int]:
    return [numbers[i] for i in spread(len(numbers), MOST_GATHERED)]


def in_groups(units: Sequence[LayerGroup]) -> Iterator[list[LayerGroup]]:
    """Units in their order, so many at a time that what they meet can be held in memory."""
    group: list[LayerGroup] = []
    size = 0
    for unit in units:
        more = bytes_of(unit)
        if group and size + more > MOST_BYTES:
            yield group
            group, size = [], 0
        group.append(unit)
        size += more
    if group:
        yield group
