"""Amounts as people read and write them."""

from __future__ import annotations

import math
from typing import Any

import click


class Amount(click.FloatRange):
    """A number from 0 on that is finite: neither infinity nor what is no number ends a wait."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


_UNITS = {"": 1} | {f"{unit}{i}": 1 << 10 * n for n, unit in enumerate("kmg", 1) for i in ("", "i")}
"""What prefixes of bytes stand for: sizes of memory are multiples of 1024, however they are spelled."""


class Bytes(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, from 1 on: `49152`, `48KiB`, `48KB` (the same: a kilobyte of memory has 1024), `1.5MiB`."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip().lower().removesuffix("b")
        number = text.rstrip("kmgi")
        scale = _UNITS.get(text[len(number) :].strip())
        try:
            size = int(float(number) * (scale or 0))
        except (ValueError, OverflowError):
            size = 0
        if size < 1:
            self.fail(f"{value!r} is no number of bytes: write one such as 49152, 48KiB or 1.5MiB.", param, ctx)
        return size


class Share(click.ParamType):  # type: ignore[type-arg]
    """A share of 1, as a percentage (`0.5%`) or a number (`0.005`)."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            number = math.nan
        share = number / 100 if text.endswith("%") else number
        if not 0 <= share < 1:
            self.fail(f"{value!r} is no share: write a percentage such as 0.5%, or 0.005.", param, ctx)
        return share


def bytes_text(size: int) -> str:
    """Bytes in the unit that fits: `3.2 MiB`."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size} B"


def count_text(number: float) -> str:
    """A number in the unit that fits: `8.21 G`."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.3g} "


def ago(seconds: float) -> str:
    """A time that has passed: `3 days ago`."""
    for unit, scale in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * scale:
            return f"{seconds // scale:.0f} {unit} ago"
    return "just now" if seconds < 60 else "1 minute ago"
