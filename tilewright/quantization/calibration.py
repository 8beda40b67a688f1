"""Passes over the data in which tensors are observed; what was counted is kept now and then, to go on from there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.quantization.data import Dataset
from tilewright.quantization.methods.histogram import Observer
from tilewright.quantization.methods.moments import Moments
from tilewright.quantization.network import LayerGroup, Network
from tilewright.quantization.probe import Tap
from tilewright.quantization.state import State
from tilewright.runtime.errors import ExecutionError

KEEP_S = 10.0
"""Seconds after which what was counted is kept."""

Steps = Callable[[str, int, int], None]


def observe(
    tap: Tap, network: Network, data: Dataset, state: State, name: str, progress: Steps
) -> dict[str, Observer]:
    """Observers of all units, filled with the samples for ranges."""
    observers = {unit.name: Observer(unit.data_axis) for unit in network.units}
    numbers = data.part("ranges")
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
            _check(tensors[unit.data], unit, number)
            observers[unit.name].add(tensors[unit.data])
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


def count_moments(
    tap: Tap, units: Sequence[LayerGroup], moments: Mapping[str, Moments], data: Dataset, progress: Steps
) -> None:
    """Fill the moments of units with the samples for ranges."""
    numbers = data.part("ranges")
    for place, number in enumerate(numbers):
        progress("moments", place, len(numbers))
        tensors = tap(data.read(number).feed)
        for unit in units:
            moments[unit.name].add(tensors[unit.data])
