"""Which function translates which operator of TFLite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.ir.outside import Definitions

if TYPE_CHECKING:
    from tilewright.frontends.tflite.node import OperatorNode

TfliteAdapter = Callable[["OperatorNode"], Any]
"""Translates an operator: gives the result Value, or a tuple of them. Where it gives floats for a result that the file
has quantised, the importer quantises them."""

_ADAPTERS: dict[str, tuple[TfliteAdapter, bool]] = {}

TFLITE_DEFINITIONS = Definitions()


def tflite(*names: str, moves: bool = False) -> Callable[[TfliteAdapter], TfliteAdapter]:
    """The function translates operators of these names. An operator that `moves` elements, and compares them at most,
    sees integers as they are where all its quantised tensors are quantised alike."""

    def register(fn: TfliteAdapter) -> TfliteAdapter:
        for name in names:
            assert name not in _ADAPTERS, f"{name} has two adapters"
            _ADAPTERS[name] = (fn, moves)
        TFLITE_DEFINITIONS.note(names, moves, fn)
        return fn

    return register


def adapter_of(name: str) -> tuple[TfliteAdapter, bool] | None:
    """The function, and whether it moves elements."""
    return _ADAPTERS.get(name)


def tflite_operators() -> tuple[str, ...]:
    """Names of all operators that are translated, sorted."""
    return tuple(sorted(_ADAPTERS))
