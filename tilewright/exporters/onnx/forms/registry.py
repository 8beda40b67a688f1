"""Which function writes which operator of the graph, where ONNX has no operator that is bound to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilewright.ir.core import Op, Value

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter

Form = Callable[["OnnxWriter", Op], str | Sequence[str] | None]
"""Writes nodes, and gives the names of the results; None where ONNX does not say this in that way."""

Rewrite = Callable[[Op], Value | Sequence[Value] | None]
"""Says an operator by others, which it calls: gives the results, or None where it does not."""

_FORMS: dict[str, list[Form]] = {}
_REWRITES: dict[str, list[Rewrite]] = {}


class NoFormError(Exception):
    """Something cannot be said in ONNX, for the reason given, with the way out as a hint."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint


def form(*names: str) -> Callable[[Form], Form]:
    """The function writes graph operators `names`; several of one operator are asked in the order of their definition,
    before the operators of ONNX that are bound to it."""

    def register(fn: Form) -> Form:
        for name in names:
            _FORMS.setdefault(name, []).append(fn)
        return fn

    return register


def direct(name: str, onnx_name: str, since: int = 1, **attrs: str) -> None:
    """Graph operator `name` is ONNX operator `onnx_name` from version `since` of the operator set on, with the same
    operands; keywords are attributes of ONNX and ours. Those of ours that are not named must be the default."""

    def write(w: OnnxWriter, op: Op) -> str | Sequence[str] | None:
        return w.bound(op, onnx_name, attrs, since)

    form(name)(write)


def rewritten(*names: str) -> Callable[[Rewrite], Rewrite]:
    """The function says graph operators `names`, for which neither a form nor an operator of ONNX was found, by other
    operators of the graph; several of one operator are asked in the order of their definition."""

    def register(fn: Rewrite) -> Rewrite:
        for name in names:
            _REWRITES.setdefault(name, []).append(fn)
        return fn

    return register


def forms_of(name: str) -> Sequence[Form]:
    """What may write an operator."""
    return _FORMS.get(name, ())


def rewrites_of(name: str) -> Sequence[Rewrite]:
    """What may say an operator by others."""
    return _REWRITES.get(name, ())


def named() -> frozenset[str]:
    """The graph operators of which forms or rewrites are told here."""
    return frozenset({*_FORMS, *_REWRITES})
