"""Dataclasses as JSON data, and from JSON data, which may hold anything: each entry is checked against the annotation
of its field."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

TAG = "step"
"""The entry that names the class, where a field may hold objects of several."""


def record(kind: type[T], data: Any, **given: Any) -> T:
    """An object of a dataclass, with fields that are `given` beside the data; ValueError for data that its annotations
    do not allow. Lists become tuples."""
    if not isinstance(data, dict):
        raise ValueError(f"{kind.__name__} is {data!r:.40}")
    asked: Any = kind  # mypy takes no type[T] for hashable
    wanted = _fields(asked)
    unknown = [name for name in data if (name not in wanted and name != TAG) or name in given]
    missing = [name for name, is_needed in wanted.items() if is_needed and name not in data and name not in given]
    if unknown or missing:
        raise ValueError(f"{kind.__name__} has {unknown[:1]!r:.40} too many, and lacks {missing[:1]}")
    data = {name: item for name, item in data.items() if name != TAG}
    found = {name: _value(_type_of(asked, name), item, f"{kind.__name__}.{name}") for name, item in data.items()}
    return kind(**found, **given)


@functools.cache
def _fields(kind: Any) -> dict[str, bool]:
    """The names of the fields, and whether each has to be given."""
    return {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(kind)}


@functools.cache
def _type_of(kind: Any, name: str) -> Any:
    """The type of one field: those of fields that are not there may be in modules that are not imported yet."""
    owner = next(cls for cls in kind.__mro__ if name in inspect.get_annotations(cls))
    only = SimpleNamespace(__annotations__={name: owner.__annotations__[name]})
    return get_type_hints(only, vars(sys.modules[owner.__module__]))[name]


def _value(kind: Any, data: Any, where: str) -> Any:
    if type(data) is kind:
        return data
    options: tuple[Any, ...] = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    tagged = isinstance(data, dict) and len(options) > 1 and TAG in data
    for option in options:
        origin, parts = get_origin(option), get_args(option)
        is_record = isinstance(option, type) and is_dataclass(option) and isinstance(data, dict)
        if is_record and (not tagged or data[TAG] == option.__name__):
            return record(option, data)
        if option is Any or (option in (int, str, bool, float, NoneType) and type(data) is option):
            return data
        if (option is float and type(data) is int) or (origin is Literal and type(data) is str and data in parts):
            return data
        if origin is tuple and isinstance(data, list):
            return _items(parts, data, where)
        if origin in (dict, Mapping) and isinstance(data, dict):
            return {name: _value(parts[1], item, f"{where}[{name!r:.40}]") for name, item in data.items()}
    raise ValueError(f"{where} is {data!r:.40}")


def _items(parts: tuple[Any, ...], data: list[Any], where: str) -> tuple[Any, ...]:
    kinds = parts[:1] * len(data) if parts[-1] is Ellipsis else parts
    if len(kinds) != len(data):
        raise ValueError(f"{where} has {len(data)} items")
    return tuple([_value(kind, item, where) for kind, item in zip(kinds, data, strict=True)])


def plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as JSON data, from which `record` makes them again; `value` is plain itself, or
    made of these."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _fields(type(value))}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return {name: plain(item) for name, item in value.items()} if isinstance(value, Mapping) else value
