"""A table of one object per content, which does not keep its objects alive."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class _Entry(ref[Any]):
    """A weak reference that knows the key of what it refers to."""

    __slots__ = ("key",)

    key: Hashable


class InternTable(Generic[T]):
    """Objects by their content, held weakly; safe to use from several threads.

    Not a `WeakValueDictionary`, whose methods are Python code: a look-up in this one takes a fifth of the time.
    """

    __slots__ = ("_entries", "_forget", "lock")

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        # Held by who looks a key up again and adds it. Re-entrant, as an object may die while the lock is held.
        self.lock = threading.RLock()
        self._forget = self._forgotten

    def get(self, key: Hashable) -> T | None:
        """The living object with this content, if there is one."""
        entry = self._entries.get(key)
        return None if entry is None else entry()

    def add(self, key: Hashable, new: T) -> None:
        """Enter an object that `get` does not know; the lock is held."""
        self._entries[key] = entry = _Entry(new, self._forget)
        entry.key = key

    def _forgotten(self, dead: ref[Any]) -> None:
        assert isinstance(dead, _Entry)
        with self.lock:
            if self._entries.get(dead.key) is dead:
                del self._entries[dead.key]

    def __len__(self) -> int:
        return len(self._entries)
