"""States of a program in the memory of its device, where they stay from call to call.

A state goes to the device when a call finds that the host has written it, and comes back when somebody looks at it
(`kept/away.py`). Of one that grows rows alone go that are filled, and of these those come back that the host has not.
Small integers, which say how far others are filled and on which sizes may depend, are known on both sides: they go
where the host has changed them, and come back with the outputs.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.runtime.arena import address_of
from tilewright.runtime.artifact import StateInfo
from tilewright.runtime.devices.device import ALIGNMENT, STATES, BufferSizes, Device
from tilewright.runtime.kept.away import Holder, hold, holds, is_newer_elsewhere, lose, written
from tilewright.runtime.kept.state_memory import PIECE, SLACK, bytes_of, shape_of
from tilewright.runtime.values.addresses import bytes_at

_MOST_COPIES = 64
"""Pieces of a state that are copied one by one; more of them go together with what lies between them."""
_WORD = 16
"""Copies begin and end at multiples of so many bytes."""


def is_known_on_both_sides(dtype: str, nbytes: int) -> bool:
    """Whether a state comes back with each call."""
    return dtype in ("int32", "int64") and nbytes <= ALIGNMENT


@dataclass
class _Slot:
    """The array of the host that a state was of last. Of one that grows `rows` are filled, of which the host has
    `known`. Of one on both sides the device holds `told` (None: not known)."""

    array: weakref.ref[np.ndarray] | None = None
    rows: int = 0
    known: int = 0
    told: bytes | None = None


class DeviceStates:
    """What a device holds of the states of a program; `holder` is asked for it."""

    def __init__(self, infos: Sequence[StateInfo], holder: Holder) -> None:
        self._infos, self._holder = tuple(infos), holder
        names = [info.info.name for info in infos]
        self._counters = [names.index(info.counter) if info.counter else -1 for info in infos]
        self.sizes = [bytes_of(info.info) for info in self._infos]
        self.swapped = [info.way == "swapped" for info in self._infos]
        self.known = [
            is_known_on_both_sides(info.info.dtype, size)
            for info, size in zip(self._infos, self.sizes, strict=True)
        ]
        self._slots = [_Slot() for _ in infos]

    def tell_again(self) -> None:
        """The device has forgotten what lies with the outputs."""
        for slot in self._slots:
            slot.told = None

    def bring(self, device: Device, sizes: BufferSizes, held: Sequence[np.ndarray]) -> None:
        """Let the device have what these arrays have."""
        for number, array in enumerate(held):
            slot, (buffer, at) = self._slots[number], sizes.place_of_state(number)
            if self.known[number]:
                now = _bytes_of(array).tobytes()
                if slot.told != now and now:
                    slot.told = None
                    device.write(buffer, at, np.frombuffer(now, np.uint8))
                    slot.told = now
            elif holds(self._holder, array):
                slot.known = min(slot.known, self._filled(number, held))
            else:
                self._leave(device, sizes, number)
                slot.rows = slot.known = rows = self._filled(number, held)
                for begin, end, _ in self._runs(number, 0, rows):
                    device.write(buffer, at + begin, _bytes_of(array)[begin:end])
                slot.array = weakref.ref(array)
                hold(array, self._holder, is_newer=False)

    def follow(
        self, device: Device, sizes: BufferSizes, held: Sequence[np.ndarray], taken: np.ndarray
    ) -> None:
        """After a call: what it has computed is what the states hold; `taken` has come back with the outputs."""
        for number, array in enumerate(held):
            slot, (buffer, at) = self._slots[number], sizes.place_of_following(number)
            if not self.known[number]:
                if self.swapped[number] and self.sizes[number]:
                    device.copy(buffer, at, STATES, sizes.place_of_state(number)[1], _whole(self.sizes[number]))
                continue
            found = taken[at : at + array.nbytes]
            _bytes_of(array)[:] = found
            slot.told = None if self.swapped[number] else found.tobytes()
        for number, array in enumerate(held):
            if not self.known[number]:
                self._slots[number].rows = self._filled(number, held)
                hold(array, self._holder, is_newer=True)

    def fail(self, held: Sequence[np.ndarray]) -> None:
        """A call has failed that the device ran: what it writes in place is not what it was, and neither are counters.
        Of what grows rows before the counter are."""
        for number, array in enumerate(held):
            self._slots[number].told = None
            if not self.known[number] and not self.swapped[number] and self._counters[number] < 0:
                lose(array)

    def fetch(self, device: Device, sizes: BufferSizes, array: np.ndarray) -> None:
        """Let an array have what the device holds of it, where that is newer."""
        for number, slot in enumerate(self._slots):
            if slot.array is not None and slot.array() is array and holds(self._holder, array):
                self._fetch(device, sizes, number, array)

    def give_back(self, device: Device, sizes: BufferSizes | None, *, is_whole: bool) -> None:
        """The device is released: the host gets what can be had, if the device `is_whole`; the rest is lost."""
        for number, slot in enumerate(self._slots):
            array = None if slot.array is None else slot.array()
            if array is not None and holds(self._holder, array):
                try:
                    if is_whole and sizes is not None:
                        self._fetch(device, sizes, number, array)
                except Exception:  # whatever a driver may raise, which has failed before
                    is_whole = False
                lose(array)
            self._slots[number] = _Slot()

    def _leave(self, device: Device, sizes: BufferSizes, number: int) -> None:
        """Another array takes a place: the one that it had gets what is newer."""
        slot = self._slots[number]
        array, slot.array = None if slot.array is None else slot.array(), None
        if array is not None and holds(self._holder, array):
            slot.array = weakref.ref(array)  # until it has it
            self._fetch(device, sizes, number, array)
            written(array)
            slot.array = None

    def _fetch(self, device: Device, sizes: BufferSizes, number: int, array: np.ndarray) -> None:
        if not is_newer_elsewhere(array):
            return
        slot, (buffer, at), memory = self._slots[number], sizes.place_of_state(number), _bytes_of(array)
        first, window = slot.known, self._infos[number].window
        if window >= 0:  # rows before are not kept
            first = max(first, slot.rows - window - SLACK - PIECE)
        for begin, end, pieces in self._runs(number, min(first, slot.rows), slot.rows):
            found = device.fetch(buffer, at + begin, _whole(end - begin))
            for piece in pieces:
                memory[piece] = found[piece.start - begin : piece.stop - begin]
        slot.known = slot.rows
        hold(array, self._holder, is_newer=False)

    def _filled(self, number: int, held: Sequence[np.ndarray]) -> int:
        """The rows of a state that are filled; 1 of one that does not grow."""
        counter = self._counters[number]
        if counter < 0:
            return 1
        most = shape_of(self._infos[number].info)[self._infos[number].grows]
        return min(max(int(held[counter].reshape(-1)[0]), 0), most)

    def _runs(self, number: int, first: int, end: int) -> Iterator[tuple[int, int, list[slice]]]:
        """Bytes to copy together, and the pieces of these that are rows from `first` to `end`."""
        info, size = self._infos[number], self.sizes[number]
        if self._counters[number] < 0:
            first, end = 0, 1
        grows, shape = (0, (1,)) if self._counters[number] < 0 else (info.grows, shape_of(info.info))
        parts = math.prod(shape[:grows])
        whole = size // max(parts, 1)
        row = whole // max(shape[grows], 1)
        if first >= end or not size:
            return
        if end - first == shape[grows]:
            pieces = [slice(0, size)]
        else:
            pieces = [slice(p * whole + first * row, p * whole + end * row) for p in range(parts)]
        groups = [pieces] if len(pieces) > _MOST_COPIES else [[piece] for piece in pieces]
        for group in groups:
            begin = group[0].start // _WORD * _WORD
            yield begin, min(_whole(group[-1].stop), size), group


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return bytes_at(address_of(array), array.nbytes)


def _whole(size: int) -> int:
    return -(-size // _WORD) * _WORD
