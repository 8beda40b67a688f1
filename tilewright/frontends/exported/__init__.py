"""Decoders as exporters of other frameworks write them. This module imports no translation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class ExportedDecoder:
    """A decoder as a source, in any form that a front end has: of one sequence, whose mask and positions follow from
    how long its caches are. Compiled with `states=True`, and with a `capacity` where its caches are inputs and outputs,
    these are states, and tokens are its only input."""

    source: Any
