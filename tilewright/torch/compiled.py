"""A compiled graph as PyTorch calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tilewright.runtime import Model
from tilewright.torch.layouts import Layout
from tilewright.torch.records import Piece


@dataclass(frozen=True)
class Kept:
    """Where the cache has an artefact, and a digest of the parameters that it was made with."""

    key: str
    weights: bytes


class Result(NamedTuple):
    """A result of a graph: its place among the outputs of the model, whether it is a number, and how it lies in memory
    where that is not as the output does."""

    place: int
    is_number: bool = False
    layout: Layout | None = None

    def of(self, outputs: Sequence[Any]) -> Any:
        found = outputs[self.place]
        if self.is_number:
            return found.item()
        return found if self.layout is None else self.layout.of(found)


class Compiled:
    """A compiled graph that takes and gives tensors. Of its `results` those that are None are None. `taken` are the
    places of the model's inputs among those of the graph that are no parameters, `operators` is the number of the
    graph's."""

    def __init__(
        self,
        model: Model,
        results: Sequence[Result | None],
        taken: Sequence[int],
        operators: int,
        kept: Kept | None = None,
    ) -> None:
        self.model, self.operators, self.kept = model, operators, kept
        self.taken, self.results = tuple(taken), tuple(results)
        self._call = model.with_outputs(torch)
        self._is_plain = all(r is not None and r == Result(k) for k, r in enumerate(results))

    def __call__(self, *args: Any) -> Sequence[Any]:
        found = self._call(*[args[k] for k in self.taken])
        if self._is_plain:
            return found
        return [None if r is None else r.of(found) for r in self.results]

    @property
    def piece(self) -> Piece:
        return Piece(self.model, self.operators)
