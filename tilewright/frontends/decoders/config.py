"""What a checkpoint says about its model: fields in the names of Hugging Face's config.json, asked for by type."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.frontends.problems import shown
from tilewright.ir.diag import ModelError

MAX_COUNT = (1 << 31) - 1
MAX_PARTS = 1 << 14
"""Heads, and elements of a head."""


def is_finite(value: object) -> bool:
    """Is it a number that a float holds? Whole numbers of JSON may be larger than any."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max


class Config:
    """Fields by name; errors say the file (`where`) and the field. A field that is null counts as missing.

    `names` are the file's own names of fields, where it has others: errors tell both."""

    def __init__(self, fields: Mapping[str, Any], where: str, names: Mapping[str, str] | None = None) -> None:
        self.fields, self.where, self._names = fields, where, names or {}

    def over(self, defaults: Mapping[str, Any]) -> Config:
        """The config with `defaults` for fields that it does not have."""
        given = {name: value for name, value in self.fields.items() if value is not None}
        return Config({**self.fields, **defaults, **given}, self.where, self._names)

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def count(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_COUNT
    ) -> int:
        """A whole number from `least` on, at most `most`."""
        value = self._value(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._value(name, default)
        if not is_finite(value):
            raise self.wrong(name, "a finite number")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.number(name, default)
        if value <= 0:
            raise self.wrong(name, "a number above 0")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None, *, among: Sequence[str] = ()) -> str:
        value = self._value(name, default)
        if not isinstance(value, str) or (among and value not in among):
            raise self.wrong(name, f"one of {', '.join(among)}" if among else "a text")
        return value

    def listed(self, name: str, length: int) -> list[Any]:
        """A list of so many entries."""
        value = self._value(name, None)
        if not isinstance(value, list | tuple) or len(value) != length:
            raise self.wrong(name, f"a list of {length} entries")
        return list(value)

    def numbers(self, name: str, length: int) -> list[float]:
        values = self.listed(name, length)
        if not all(map(is_finite, values)):
            raise self.wrong(name, f"a list of {length} finite numbers")
        return [float(v) for v in values]

    def places(self, name: str, count: int) -> set[int]:
        """A list of some of the numbers below `count`; none where it is missing."""
        values = self.fields.get(name) or []
        known = range(count)
        if not isinstance(values, list) or not all(type(v) is int and v in known for v in values):
            raise self.wrong(name, f"a list of whole numbers below {count}")
        return set(values)

    def part(self, name: str) -> Config | None:
        """The fields within a field; None where it is missing."""
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "an object of fields")
        return Config(value, f"'{name}' of {self.where}")

    def wrong(self, name: str, wanted: str) -> ModelError:
        """The error for a field that is not what is wanted."""
        return self.error(f"{self.named(name)} is {self.fields.get(name)!r:.80}, and must be {wanted}")

    def error(self, what: str, hint: str | None = None) -> ModelError:
        return ModelError(what, where=self.where, hint=hint)

    def named(self, name: str) -> str:
        """How errors call a field."""
        own = self._names.get(name)
        return f"'{own}'" if own else f"'{shown(name)}'"

    def _value(self, name: str, default: Any) -> Any:
        value = self.fields.get(name)
        if value is not None:
            return value
        if default is None:
            raise self.error(f"{self.named(name)} is missing, which the architecture needs")
        return default
