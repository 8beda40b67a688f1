"""The first call of a model with what a command line says, and what was assumed where inputs are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.cli.inputs.specs import Given, indices_chosen, read_specs, sizes_chosen
from tilewright.runtime import Model
from tilewright.runtime.errors import ExecutionError
from tilewright.runtime.values.inputs import INDICES


@dataclass(frozen=True)
class FirstCall:
    """The `inputs` of a call, what it gave, the sizes that were chosen for dims, and `notes` of what was assumed."""

    inputs: Mapping[str, Any]
    results: Sequence[np.ndarray]
    sizes: Mapping[str, int]
    notes: tuple[str, ...]


def given_inputs(model: Model, specs: Sequence[str], dims: Mapping[str, int]) -> Given:
    """What --input and --dim say of the inputs of a model; random indices are within what they look up."""
    return read_specs(model.inputs, specs, dims, model.artifact.attached.get(INDICES))


def first_call(
    model: Model, specs: Sequence[str], dims: Mapping[str, int], *, or_zeros: bool = True
) -> FirstCall:
    """Call a model. Where it refuses random integers, as ids that it computes others of, these are zeros (`or_zeros`).
    Errors are those of `Given.first_call` and of the call."""
    given = given_inputs(model, specs, dims)
    try:
        return _called(model, given, ())
    except ExecutionError:
        integers = [info.name for info in model.inputs if given.made.get(info.name) == "random" and "int" in info.dtype]
        if not or_zeros or not integers:
            raise
        note = "integer inputs are zeros, as the model refuses random ones (--input gives others)"
        return _called(model, replace(given, below=dict.fromkeys(integers, (1,))), (note,))


def tried_call(model: Model, specs: Sequence[str], dims: Mapping[str, int]) -> FirstCall:
    """A first call that only finds out what the model takes: states are behind it what they are in a new model, so that
    what is measured next finds the caches empty."""
    found = first_call(model, specs, dims)
    if model.states:
        model.reset()
    return found


def _called(model: Model, given: Given, notes: tuple[str, ...]) -> FirstCall:
    inputs, results, sizes = given.first_call(model.run, model.artifact.assumed)
    chosen = (sizes_chosen(sizes),) if sizes else ()
    indices = {} if notes else given.indices(sizes)
    return FirstCall(inputs, results, sizes, (*chosen, *((indices_chosen(indices),) if indices else ()), *notes))
