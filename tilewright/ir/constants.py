"""The arrays of a module by name, of which some are still to be made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, MutableMapping

import numpy as np


class Deferred(ABC):
    """How an array is made from others that exist."""

    __slots__ = ()

    @abstractmethod
    def make(self) -> np.ndarray:
        """The array."""


class ConstantArrays(MutableMapping[str, np.ndarray]):
    """Arrays by name. One that is deferred is made when it is read; who takes it as it is can make it in its place,
    without a copy."""

    def __init__(self, arrays: Mapping[str, np.ndarray | Deferred] | None = None) -> None:
        self._held: dict[str, np.ndarray | Deferred] = dict(arrays or {})

    def __getitem__(self, name: str) -> np.ndarray:
        held = self._held[name]
        if isinstance(held, Deferred):
            held = self._held[name] = held.make()
        return held

    def __setitem__(self, name: str, array: np.ndarray | Deferred) -> None:
        self._held[name] = array

    def __delitem__(self, name: str) -> None:
        del self._held[name]

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"ConstantArrays({self._held!r})"

    @property
    def held(self) -> Mapping[str, np.ndarray | Deferred]:
        """The arrays, those that are deferred as they are."""
        return self._held

    def take(self, name: str) -> np.ndarray | Deferred:
        """The array, or how it is made; it is not held any more. KeyError."""
        return self._held.pop(name)
