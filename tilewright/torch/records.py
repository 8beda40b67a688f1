"""What the backend did with each graph, for `explain` and for the one warning that a user gets."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import torch

from tilewright.runtime.errors import printable

_LOG = logging.getLogger("tilewright.torch")
_TOLD: set[str] = set()


@dataclass(frozen=True, eq=False)
class Piece:
    """A compiled part of a graph: its model, and how many operators it has."""

    model: Any
    operators: int


@dataclass(frozen=True, eq=False)
class GraphRecord:
    """One graph: its compiled pieces, and why the others run eagerly, by operator and place. `reason` is given where
    nothing of it is compiled, `ended` says why Dynamo ended it before the function's end, and in which line."""

    graph: torch.fx.GraphModule
    pieces: tuple[Piece, ...] | None = None
    reason: str = ""
    eager: tuple[tuple[str, str, str], ...] = field(default=())
    ended: str = ""


def why_ended(graph: torch.fx.GraphModule) -> str:
    """Why Dynamo broke off behind a graph of its own; "" where it did not."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return ""
    text = " ".join(str(reason.reason).split())[:300]
    frame = reason.user_stack[-1] if reason.user_stack else None
    return f"{text} ({frame.filename}:{frame.lineno})" if frame is not None else text


def note(record: GraphRecord) -> None:
    """Log what is not compiled, each reason once in a process."""
    reasons = (
        [record.reason]
        if record.reason
        else [f"{op} runs eagerly at {place}: {why}" for op, place, why in record.eager]
    )
    for reason in reasons:
        if reason not in _TOLD:
            _TOLD.add(reason)
            _LOG.warning("torch.compile with tilewright: %s", printable(reason))
