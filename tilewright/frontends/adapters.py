"""Which function translates which operator: the one form of table that all front ends have."""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from tilewright.ir.outside import Definitions

Key = TypeVar("Key", bound=Hashable)
Adapter = TypeVar("Adapter", bound=Callable[..., Any])

EVERY = range(1, 10**6 + 1)
"""All versions of an operator."""


_Entries = list[tuple[range, Adapter]]


class AdapterTable(Generic[Key, Adapter]):
    """Adapters by what a format calls its operators, and by the versions of the operator that they translate; and
    bindings, which operators of ours declare, for what has no adapter.

    `definitions` take note of adapters, so that those from outside of the package are part of the key of the cache.
    What is not found is looked for once more when `load_rest`, if it is given, has imported the modules with adapters
    of such operators that most models do not need.
    """

    def __init__(
        self, definitions: Definitions, what: str = "adapters", load_rest: Callable[[Key], None] | None = None
    ) -> None:
        self._definitions, self._what, self._load_rest = definitions, what, load_rest
        self._adapters: dict[Key, _Entries[Adapter]] = {}
        self._bindings: dict[Key, _Entries[Adapter]] = {}

    def __iter__(self) -> Iterator[Key]:
        return iter({**self._adapters, **self._bindings})

    def __contains__(self, key: Key) -> bool:
        return key in self._adapters or key in self._bindings

    def adds(
        self, keys: Sequence[Key], *facts: object, versions: range = EVERY
    ) -> Callable[[Adapter], Adapter]:
        """A decorator: the function translates these operators. `facts` are what else tells what it means."""

        def register(adapter: Adapter) -> Adapter:
            if self._load_rest is not None and not adapter.__module__.startswith("tilewright."):
                for key in keys:  # so that a second adapter is an error of whoever adds it
                    self._load_rest(key)
            for key in keys:
                self._put(self._adapters, key, versions, adapter)
            self._definitions.note(tuple(keys), versions, *facts, adapter)
            return adapter

        return register

    def bind(self, key: Key, binding: Adapter, versions: range = EVERY) -> None:
        """Add a binding, of which the operator's own definition tells."""
        self._put(self._bindings, key, versions, binding)

    def _put(self, entries: dict[Key, _Entries[Adapter]], key: Key, versions: range, adapter: Adapter) -> None:
        found = entries.setdefault(key, [])
        if any(own[0] == versions[0] for own, _ in found):
            raise AssertionError(f"{key} has two {self._what}")
        found.append((versions, adapter))
        found.sort(key=lambda entry: -entry[0][0])

    def find(self, *keys: Key, version: int = 1) -> Adapter | None:
        """The newest adapter for a version, or binding, of the first of the names that has one."""
        found = self._found(keys, version)
        if found is None and self._load_rest is not None:
            self._load_rest(keys[0])
            found = self._found(keys, version)
        return found

    def _found(self, keys: Sequence[Key], version: int) -> Adapter | None:
        tables = [entries.get(key, ()) for key in keys for entries in (self._adapters, self._bindings)]
        return next((adapter for table in tables for versions, adapter in table if version in versions), None)

    def binding(self, key: Key, version: int) -> Adapter:
        """The binding for a version; for one before all of them the first."""
        declared = self._bindings[key]
        return next((binding for versions, binding in declared if version in versions), declared[-1][1])

    def bound(self) -> set[Key]:
        """What has a binding."""
        return set(self._bindings)


class LatePackages:
    """Packages of adapters that most models do not need, by the part of the format that they are of."""

    def __init__(self, definitions: Definitions, packages: Mapping[str, str]) -> None:
        self._definitions, self._packages = definitions, packages
        self._loading = threading.RLock()

    def load(self, part: str) -> None:
        """Import the package of a part, where it has one."""
        if part in self._packages:
            with self._loading, self._definitions.of_the_package():
                importlib.import_module(self._packages[part])

    def load_all(self) -> None:
        """Import all of them."""
        for part in self._packages:
            self.load(part)


REQUIRED = inspect.Parameter.empty
"""The default of an attribute that has none."""


@dataclass(frozen=True)
class Signature:
    """How a function over operators is called: its positional parameters are operands, in order (`least` of them must
    be given, `most` is None where there may be any number), its keyword-only ones attributes, with the kind of each
    ("float", "bool", ...; "" where it is not said) and its default."""

    least: int
    most: int | None
    attributes: Mapping[str, tuple[str, Any]]


@cache
def signature_of(function: Callable[..., Any]) -> Signature:
    """That of a function, or of the function that defines an operator."""
    parameters = inspect.signature(getattr(function, "fn", function)).parameters.values()
    operands = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    attributes = {p.name: (_kind(p), p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}
    is_open = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    least = sum(p.default is REQUIRED for p in operands)
    return Signature(least, None if is_open else len(operands), attributes)


def _kind(parameter: inspect.Parameter) -> str:
    if parameter.annotation is not REQUIRED:
        return str(parameter.annotation)
    return "" if parameter.default in (REQUIRED, None) else type(parameter.default).__name__
