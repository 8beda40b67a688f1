"""Which function translates which operator of TFLite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.frontends.adapters import AdapterTable
from tilewright.ir.outside import Definitions

if TYPE_CHECKING:
    from tilewright.frontends.tflite.node import OperatorNode

TfliteAdapter = Callable[["OperatorNode"], Any]
"""Translates an operator: gives the result Value, or a tuple of them. Where it gives floats for a result that the file
has quantised, the importer quantises them."""

TFLITE_DEFINITIONS = Definitions()

ADAPTERS: AdapterTable[str, TfliteAdapter] = AdapterTable(TFLITE_DEFINITIONS)

MOVES: set[str] = set()
"""Operators that move elements, and compare them at most: they see integers as they are where all their quantised
tensors are quantised alike."""


def tflite(*names: str, moves: bool = False) -> Callable[[TfliteAdapter], TfliteAdapter]:
    """The function translates operators of these names; whether they are among `MOVES`."""
    MOVES.update(names if moves else ())
    return ADAPTERS.adds(names, moves)
