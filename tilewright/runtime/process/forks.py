"""Locks and forks: a child has the one thread that forked, and finds locks as all threads of its parent had them."""

from __future__ import annotations

import os
import weakref
from typing import Any, TypeVar

Lock = TypeVar("Lock")

_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()


def free_in_children(lock: Lock) -> Lock:
    """The same lock of `threading`, which nobody holds in a forked child, whoever held it in the parent."""
    _LOCKS.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_LOCKS):
        lock._at_fork_reinit()  # as `threading` and `logging` do with their own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
