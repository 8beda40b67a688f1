"""What a part of a model has on its device: what it was given last, and what it has made, which stays there until
somebody else needs it, or the part runs again."""

from __future__ import annotations

import weakref
from collections.abc import Container, Sequence

import numpy as np

from tilewright.runtime.arena import address_of
from tilewright.runtime.devices.device import OUTPUTS, Device
from tilewright.runtime.kept.away import Holder, hold, holds, lose, written
from tilewright.runtime.values.addresses import bytes_at


class LeftOutputs:
    """The outputs of the last call of a part, for a `holder`, who is asked for them."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._arrays: list[tuple[weakref.ref[np.ndarray], int]] = []

    def leave(self, made: Sequence[np.ndarray], places: Sequence[int]) -> None:
        """These arrays are on the device, each at its place among the outputs."""
        pairs = [(array, place) for array, place in zip(made, places, strict=False) if array.nbytes]
        self._arrays = [(weakref.ref(array), place) for array, place in pairs]
        for array, _ in pairs:
            hold(array, self._holder, is_newer=True)

    def place_of(self, array: np.ndarray) -> int:
        """Where among the outputs an array is that the holder has."""
        return next(place for own, place in self._arrays if own() is array)

    def fetch(self, device: Device, array: np.ndarray) -> None:
        """Let an array have what is on the device, if it is one of these."""
        for own, place in self._arrays:
            if own() is array and holds(self._holder, array):
                _fetch(device, array, place)

    def make_room(self, device: Device, freed: Container[int] = ()) -> None:
        """The device writes other outputs next: those go to the host that somebody may look at, but for arrays with
        these identities."""
        for own, place in self._arrays:
            array = own()
            if array is not None and holds(self._holder, array):
                if id(array) not in freed:
                    _fetch(device, array, place)
                written(array)
        self._arrays = []

    def lose(self) -> None:
        """The device is gone."""
        for own, _ in self._arrays:
            if (array := own()) is not None and holds(self._holder, array):
                lose(array)
        self._arrays = []


class GivenInputs:
    """The inputs of the last call of a part, each an array of one run of the model; within that nobody writes to it."""

    def __init__(self) -> None:
        self._run: object = None
        self._arrays: dict[int, weakref.ref[np.ndarray]] = {}

    def forget(self) -> None:
        """The device has none of them any more."""
        self._arrays = {}

    def has(self, run: object, place: int, array: np.ndarray) -> bool:
        """Whether an array is on the device since an earlier call of this run, and if not, that it comes there now."""
        if run is not self._run:
            self._run, self._arrays = run, {}
        before = self._arrays.get(place)
        self._arrays[place] = weakref.ref(array)
        return before is not None and before() is array


def _fetch(device: Device, array: np.ndarray, place: int) -> None:
    bytes_at(address_of(array), array.nbytes)[:] = device.fetch(OUTPUTS, place, array.nbytes)
    written(array)
