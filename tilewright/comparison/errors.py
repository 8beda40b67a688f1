"""Errors of layers: measured over samples, and what they say together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

EQUAL = 1e-5
"""Relative errors up to this are those of sums of float32 in another order."""


class Measured:
    """The error of a tensor over all samples so far: sums of squares, and the largest difference."""

    def __init__(self) -> None:
        self.noise = self.signal = self.largest = 0.0

    def add(self, wanted: np.ndarray, found: np.ndarray) -> None:
        """One more sample. Elements that are not finite in either are left out: masks are of these. One that is no
        number where it should be one makes the error infinite."""
        a, b = (np.asarray(x, np.float64).reshape(-1) for x in (wanted, found))
        finite = np.isfinite(a) & np.isfinite(b)
        if not finite.all():
            if (np.isnan(b) & ~np.isnan(a)).any():
                self.noise = self.largest = math.inf
            a, b = a[finite], b[finite]
        if a.size:
            difference = b - a
            self.noise += float(difference @ difference)
            self.signal += float(a @ a)
            self.largest = max(self.largest, float(np.abs(difference).max()))

    @property
    def relative(self) -> float:
        """The root of the mean square of the error, over that of the tensor."""
        if not self.noise:
            return 0.0
        return math.sqrt(self.noise / self.signal) if self.signal else math.inf


@dataclass(frozen=True)
class LayerDifference:
    """What a layer does to its result: relative root mean square errors.

    `error` is that of its result, `before` the largest of what it reads, and `growth` what came in between (the root of
    the difference of the squares). `own` is the error of the result where the layer reads what the other model's layers
    give, so that it is the layer's alone; None where that cannot be measured. `largest` is the largest difference of an
    element, and `tensors` the names in the two models.
    """

    layer: str
    operator: str
    tensors: tuple[str, str]
    error: float
    before: float
    own: float | None
    largest: float

    def __repr__(self) -> str:
        own = "" if self.own is None else f", its own {self.own:.3g}"
        return f"<'{self.layer}' ({self.operator}): error {self.error:.3g}, before {self.before:.3g}{own}>"

    @property
    def growth(self) -> float:
        if not math.isfinite(self.error):
            return self.error
        return math.sqrt(max(self.error**2 - self.before**2, 0.0)) if math.isfinite(self.before) else 0.0

    @property
    def blame(self) -> float:
        """The part of the growth that is the layer's own: errors also grow in layers that compute exactly, such as
        differences of numbers that are nearly equal."""
        return self.growth if self.own is None else min(self.growth, self.own)

    @property
    def sqnr(self) -> float:
        """The ratio of signal to noise of the result, in decibels."""
        if not self.error:
            return math.inf
        return -20 * math.log10(self.error) if math.isfinite(self.error) else -math.inf

    def record(self) -> dict[str, Any]:
        """JSON data; numbers that are not finite are null."""
        numbers = {
            "error": self.error, "before": self.before, "growth": self.growth, "own": self.own, "blame": self.blame,
            "sqnr": self.sqnr, "largest": self.largest,
        }  # fmt: skip
        finite = {k: v if v is None or math.isfinite(v) else None for k, v in numbers.items()}
        return {"layer": self.layer, "operator": self.operator, "tensors": list(self.tensors), **finite}


@dataclass(frozen=True)
class Difference:
    """Two models, compared: the layers in the order of the second, how many samples there were, which tensors of it
    have no partner in the first, or one of another shape, and why outputs among these are not compared."""

    layers: Sequence[LayerDifference]
    outputs: Mapping[str, LayerDifference]
    samples: int
    data: str
    unpaired: Sequence[str] = field(default_factory=tuple)
    uncompared: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        worst = f"worst {self.worst!r}" if self.worst is not None else "no layer adds an error"
        return f"<difference in {len(self.layers)} layers over {self.samples} samples: {worst}>"

    @property
    def worst(self) -> LayerDifference | None:
        """The layer in which the error grows most by what the layer itself does; None where the models agree."""
        found = max(self.layers, key=lambda layer: layer.blame, default=None)
        return found if found is not None and found.blame > EQUAL else None

    def ranked(self) -> list[LayerDifference]:
        """The layers, those that add most to the error first."""
        return sorted(self.layers, key=lambda layer: -layer.blame)

    def telling(self) -> list[LayerDifference]:
        """Those of `ranked` that add more than sums in another order do."""
        return [layer for layer in self.ranked() if layer.blame > EQUAL]

    def record(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "samples": self.samples,
            "data": self.data,
            "worst": None if self.worst is None else self.worst.layer,
            "layers": [layer.record() for layer in self.layers],
            "outputs": {name: layer.record() for name, layer in self.outputs.items()},
            "unpaired": list(self.unpaired),
            "uncompared": dict(self.uncompared),
        }
