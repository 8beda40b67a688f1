"""Which function translates which operator of TFLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def binds(table: Mapping[str, Callable[..., Any]], *, moves: bool = False, **renamed: str) -> None:
    """Operators of these names are these functions: operands are positional parameters, options keyword-only ones of
    the same names, or of those that are `renamed` (ours="theirs"). The activation that a file has fused with one comes
    last."""
    for name, function in table.items():
        tflite(name, moves=moves)(_translation(function, renamed))


def _translation(function: Callable[..., Any], renamed: Mapping[str, str]) -> TfliteAdapter:
    def translate(node: OperatorNode) -> Any:
        found = node.applied(function, **renamed)
        return node.activated(found) if "activation" in node.options else found

    return translate
