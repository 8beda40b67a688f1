"""A table of one object per content, which does not keep its objects alive."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class InternTable(Generic[T]):
    """Objects by their content, held weakly; safe to use from several threads.

    Not a `WeakValueDictionary`, whose methods are Python code: a look-up in this one takes a fifth of the time.
    """

    __slots__ = ("_entries", "lock")

    def __init__(self) -> None:
        self._entries: dict[Hashable, ref[T]] = {}
        # Held by who looks a key up again and adds it. Re-entrant, as an object may die while the lock is held.
        self.lock = threading.RLock()

    def get(self, key: Hashable) -> T | None:
        """The living object with this content, if there is one."""
        entry = self._entries.get(key)
        return None if entry is None else entry()

    def add(self, key: Hashable, new: T) -> None:
        """Enter an object that `get` does not know; the lock is held."""

        def forget(dead: ref[T]) -> None:
            with self.lock:
                if self._entries.get(key) is dead:
                    del self._entries[key]

        self._entries[key] = ref(new, forget)

    def __len__(self) -> int:
        return len(self._entries)
