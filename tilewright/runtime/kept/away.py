"""Arrays of the host whose content a device holds: of states that stay there from call to call, and of values that
parts of a model hand on.

Who looks at such an array asks for it first (`bring_home`), and who writes one says so (`written`). One holder at a
time has an array; what it has is newer than the array, or the same.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.runtime.errors import ExecutionError


class Holder(Protocol):
    """What holds the content of arrays."""

    def fetch(self, array: np.ndarray) -> None:
        """Write to an array what is newer. The array is this holder's until then and afterwards."""


@dataclass
class _Held:
    """`holder` is None where what is newer is lost."""

    array: weakref.ref[np.ndarray]
    holder: Holder | None
    is_newer: bool


_held: dict[int, _Held] = {}


def hold(array: np.ndarray, holder: Holder, *, is_newer: bool) -> None:
    """A holder has what an array has, or what is newer."""
    key = id(array)
    found = _held.get(key)
    if found is None:
        _held[key] = _Held(weakref.ref(array, lambda _: _forget(key)), holder, is_newer)
    else:
        found.holder, found.is_newer = holder, is_newer


def _forget(key: int) -> None:
    _held.pop(key, None)


def holds(holder: Holder, array: np.ndarray) -> bool:
    """Whether a holder has at least what an array has."""
    found = _held.get(id(array))
    return found is not None and found.holder is holder


def holder_of(array: np.ndarray) -> Holder | None:
    """What has what is newer than an array; None where the array has all, or that is lost."""
    found = _held.get(id(array))
    return found.holder if found is not None and found.is_newer else None


def is_newer_elsewhere(array: np.ndarray) -> bool:
    """Whether an array has not what it should."""
    found = _held.get(id(array))
    return found is not None and found.is_newer


def is_lost(array: np.ndarray) -> bool:
    """Whether what an array should have is gone."""
    found = _held.get(id(array))
    return found is not None and found.holder is None


def written(array: np.ndarray) -> None:
    """All of an array that counts was written: what a device has of it is old."""
    _forget(id(array))


def lose(array: np.ndarray) -> None:
    """What is newer than an array is gone, where a holder had that; otherwise nobody has the array any more."""
    found = _held.get(id(array))
    if found is not None and found.is_newer:
        found.holder = None
    else:
        _forget(id(array))


def bring_home(array: np.ndarray) -> None:
    """Let an array have what it should. ExecutionError where that is lost, DeviceError where it gets so now."""
    found = _held.get(id(array))
    if found is None or not found.is_newer:
        return
    if found.holder is None:
        raise ExecutionError(
            "what a call has computed is lost: the device that held it failed",
            hint="call the model again; begin anew with reset() where it keeps states",
        )
    found.holder.fetch(array)
    if is_lost(array):
        bring_home(array)


def at_home(value: Any) -> Any:
    """A value that the host reads, which has what it should if it is an array."""
    if _held and type(value) is np.ndarray:  # without devices nothing is held
        bring_home(value)
    return value


def _lose_all() -> None:
    """A device belongs to the process that opened it, and not to those that are forked off."""
    for found in _held.values():
        if found.is_newer:
            found.holder = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_all)
