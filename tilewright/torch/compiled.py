"""A compiled graph as PyTorch calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.runtime import Model
from tilewright.torch.records import Piece


@dataclass(frozen=True)
class Kept:
    """Where the cache has an artefact, and a digest of the parameters that it was made with."""

    key: str
    weights: bytes


class Compiled:
    """A compiled graph that takes and gives tensors. `results` are the places of its results among the outputs of the
    model, and whether they are numbers; None for a result that is None. `taken` are the places of the model's inputs
    among those of the graph that are no parameters, `operators` is the number of the graph's."""

    def __init__(
        self,
        model: Model,
        results: Sequence[tuple[int, bool] | None],
        taken: Sequence[int],
        operators: int,
        kept: Kept | None = None,
    ) -> None:
        self.model, self.operators, self.kept = model, operators, kept
        self.taken, self.results = tuple(taken), tuple(results)
        self._call = model.with_outputs(torch)
        self._is_plain = all(r is not None and r == (k, False) for k, r in enumerate(results))

    def __call__(self, *args: Any) -> Sequence[Any]:
        found = self._call(*[args[k] for k in self.taken])
        if self._is_plain:
            return found
        return [None if r is None else found[r[0]].item() if r[1] else found[r[0]] for r in self.results]

    @property
    def piece(self) -> Piece:
        return Piece(self.model, self.operators)
