"""Functions of sequences, which are lists, and of optionals, which are None or the value. None of them changes what it
is given."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.staged.functions.registry import hands_on, host_function


@hands_on
@host_function
def sequence(*elements: Any) -> tuple[list[Any]]:
    return (list(elements),)


@host_function
def sequence_length(given: list[Any]) -> tuple[np.ndarray]:
    return (np.array(len(given), np.int64),)


def _place(given: list[Any], position: np.ndarray, beyond: int = 0) -> int:
    """A position from 0 on; IndexError for one that is not in the list (or up to `beyond` its last)."""
    place, size = int(position.reshape(())), len(given)
    if not -size <= place < size + beyond:
        raise IndexError(f"position {place} of a sequence of {size} elements")
    return place + size if place < 0 else place


@hands_on
@host_function
def sequence_at(given: list[Any], position: np.ndarray) -> tuple[Any]:
    return (given[_place(given, position)],)


@hands_on
@host_function
def sequence_insert(given: list[Any], element: Any, position: np.ndarray | None = None) -> tuple[list[Any]]:
    """The list with an element more, by default at its end."""
    place = len(given) if position is None else _place(given, position, beyond=1)
    return ([*given[:place], element, *given[place:]],)


@hands_on
@host_function
def sequence_erase(given: list[Any], position: np.ndarray | None = None) -> tuple[list[Any]]:
    """The list with an element less, by default the last."""
    place = _place(given, np.array(-1) if position is None else position)
    return ([*given[:place], *given[place + 1 :]],)


@host_function
def concatenate_sequence(given: list[np.ndarray], *, axis: int, new_axis: bool) -> tuple[np.ndarray]:
    """The arrays along an axis, or along a new one."""
    if not given:
        raise ValueError("an empty sequence is concatenated")
    return (np.stack(given, axis) if new_axis else np.concatenate(given, axis),)


@host_function
def split_to_sequence(
    x: np.ndarray, sizes: np.ndarray | None = None, *, axis: int, keeps_axis: bool
) -> tuple[list[np.ndarray]]:
    """Pieces along an axis: of length 1, of one length (the last may be shorter), or of several."""
    size = x.shape[axis]
    if sizes is None or not sizes.ndim:
        step = 1 if sizes is None else int(sizes)
        if step < 1:
            raise ValueError(f"pieces of {step} elements")
        ends = list(range(step, size, step))
    else:
        if (sizes.size and sizes.min() < 0) or sizes.sum() != size:
            raise ValueError(f"{size} elements into pieces of {sizes.tolist()}")
        ends = np.cumsum(sizes)[:-1].tolist()
    pieces = np.split(x, ends, axis) if size or (sizes is not None and sizes.size) else []
    return ([np.array(p if keeps_axis else p.squeeze(axis), order="C") for p in pieces],)


@hands_on
@host_function
def optional(value: Any = None) -> tuple[Any]:
    return (value,)


@host_function
def optional_has_element(given: Any) -> tuple[np.ndarray]:
    return (np.array(given is not None),)


@hands_on
@host_function
def optional_get_element(given: Any) -> tuple[Any]:
    if given is None:
        raise ValueError("the optional has no value")
    return (given,)


@host_function
def copied(given: Any) -> tuple[Any]:
    """An array, or a list of such, in memory of its own."""
    return (_copied(given),)


def _copied(given: Any) -> Any:
    return [_copied(element) for element in given] if isinstance(given, list) else given.copy()
