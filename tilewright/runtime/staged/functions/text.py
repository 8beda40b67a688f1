"""Functions of tensors of strings: arrays of objects, which are Python strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.staged.functions.registry import HostFunction, host_function, prepared


def text_array(values: Sequence[Any], shape: Sequence[int]) -> np.ndarray:
    """An array of objects of a shape, its elements in row-major order."""
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


@prepared
def text_constant(*, values: Sequence[str], shape: Sequence[int]) -> HostFunction:
    """An array that is known when compiling; nobody writes to it."""
    array = text_array(values, shape)
    array.flags.writeable = False
    return lambda: (array,)


@host_function
def take_text(places: np.ndarray, *sources: np.ndarray) -> tuple[np.ndarray, ...]:
    """The elements at `places` of all `sources`, flattened, one after the other; negative places are empty texts."""
    flat = np.concatenate([source.reshape(-1) for source in sources])
    if not flat.size:
        flat = np.array([""], object)
    found = np.asarray(flat[places], object)
    if places.size and places.min() < 0:
        found[places < 0] = ""
    return (found,)


@host_function
def equal_text(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    """Which elements are equal."""
    return (np.asarray(np.equal(x, y), bool),)


@host_function
def concatenate_text(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    """x + y, element by element."""
    return (np.asarray(np.add(x, y), object),)
