"""What the weights of a layer meet, as rows: second moments of all, and a sample of them, with which forms of the layer
are compared. Of a convolution a row is a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.quantization.methods.histogram import channel_rows
from tilewright.quantization.methods.windows import Windows, spread
from tilewright.quantization.network import Layer, LayerGroup

MOST_ROWS = 2048
"""Rows that are kept of each part of the data."""

MOST_ROW_BYTES = 16 << 20
"""Bytes of them; fewer are kept of long rows."""

MOST_INPUTS = 4096
"""Inputs of a layer of which moments are kept: a square of doubles of 128 MiB."""

MOST_WINDOWS = 4096
"""Windows of a sample that are counted in moments, evenly spread: they are many, and much alike."""


class Rows:
    """The rows of a part, the same number of each sample."""

    def __init__(self, width: int) -> None:
        self.limit = max(1, min(MOST_ROWS, MOST_ROW_BYTES // (4 * width)))
        self._kept = np.zeros((self.limit, width), np.float32)
        self._count = 0

    def add(self, rows: np.ndarray) -> None:
        """Keep these, as long as there is room."""
        rows = rows[: self.limit - self._count]
        self._kept[self._count : self._count + len(rows)] = rows
        self._count += len(rows)

    @property
    def array(self) -> np.ndarray:
        return self._kept[: self._count]


@dataclass
class Inputs:
    """Of layers that read a tensor alike: rows that forms are made with (`fit`) and compared with (`check`), and the
    sum of x x' over `count` rows (None for layers that are not reconstructed)."""

    axis: int
    width: int
    windows: Windows | None
    fit: Rows = field(init=False)
    check: Rows = field(init=False)
    square: np.ndarray | None = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.fit, self.check = Rows(self.width), Rows(self.width)
        self.square = np.zeros((self.width, self.width)) if has_moments(self.windows, self.width) else None

    @property
    def groups(self) -> int:
        return self.windows.groups if self.windows else 1

    def add_fit(self, x: np.ndarray, samples: int, dims: Mapping[str, int]) -> None:
        """Count one of so many samples that forms are made with; `dims` are the sizes of its call."""
        if self.square is None:
            self.fit.add(self._rows(x, -(-self.fit.limit // samples), dims))
            return
        rows = self._rows(x, MOST_WINDOWS if self.windows else x.size, dims)
        self.square += rows.T @ rows
        self.count += len(rows)
        self.fit.add(rows[spread(len(rows), -(-self.fit.limit // samples))])

    def add_check(self, x: np.ndarray, samples: int, dims: Mapping[str, int]) -> None:
        """Count one of so many samples that forms are compared with."""
        self.check.add(self._rows(x, -(-self.check.limit // samples), dims))

    def _rows(self, x: np.ndarray, most: int, dims: Mapping[str, int]) -> np.ndarray:
        if self.windows is not None:
            return self.windows.rows(x, most, dims)
        rows = channel_rows(x, self.axis)
        return np.asarray(rows[spread(len(rows), most)])


class UnitInputs:
    """What each layer of a unit meets; layers that meet the same share it."""

    def __init__(self, unit: LayerGroup) -> None:
        shared: dict[Windows | None, Inputs] = {}
        self._of: dict[str, Inputs] = {}
        for layer in unit.layers:
            if layer.windows not in shared:
                shared[layer.windows] = Inputs(layer.data_axis, layer.width, layer.windows)
            self._of[layer.node] = shared[layer.windows]
        self.each = tuple(shared.values())

    def of(self, layer: Layer) -> Inputs:
        return self._of[layer.node]


def bytes_of(unit: LayerGroup) -> int:
    """Of the inputs of a unit."""
    found = 0
    for windows, width in {(layer.windows, layer.width) for layer in unit.layers}:
        found += 2 * 4 * width * min(MOST_ROWS, MOST_ROW_BYTES // (4 * width))
        found += 8 * width * width if has_moments(windows, width) else 0
    return found


def has_moments(windows: Windows | None, width: int) -> bool:
    return width <= MOST_INPUTS and (windows is None or windows.groups == 1)


def products(rows: np.ndarray, matrix: np.ndarray, groups: int) -> np.ndarray:
    """What a layer computes of rows: `[rows, outputs]`, with weights `[inputs of a group, outputs]`."""
    if groups == 1:
        return np.asarray(rows @ matrix)
    parts = rows.reshape(len(rows), groups, -1).transpose(1, 0, 2)
    weights = matrix.reshape(len(matrix), groups, -1).transpose(1, 0, 2)
    return np.asarray((parts @ weights).transpose(1, 0, 2).reshape(len(rows), -1))
