"""What the weights of a layer meet, as rows: second moments of all, and a sample of them, with which forms of the layer
are compared. Of a convolution a row is a window."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import onnx

from tilewright.quantization.methods.histogram import channel_rows
from tilewright.quantization.network import Layer, LayerGroup, Network, attribute

MOST_ROWS = 2048
"""Rows that are kept of each part of the data."""

MOST_ROW_BYTES = 16 << 20
"""Bytes of them; fewer are kept of long rows."""

MOST_INPUTS = 4096
"""Inputs of a layer of which moments are kept: a square of doubles of 128 MiB."""

MOST_WINDOWS = 4096
"""Windows of a sample that are counted in moments, evenly spread: they are many, and much alike."""


@dataclass(frozen=True)
class Windows:
    """How a convolution goes over images. `auto` is "" where `pads` hold."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto: str
    groups: int

    @classmethod
    def of(cls, node: onnx.NodeProto, sizes: tuple[int, ...]) -> Windows:
        space = len(sizes)
        auto = attribute(node, "auto_pad", b"NOTSET").decode()
        return cls(
            sizes,
            tuple(attribute(node, "strides", [1] * space)),
            tuple(attribute(node, "dilations", [1] * space)),
            tuple(attribute(node, "pads", [0] * 2 * space)) if auto == "NOTSET" else (0,) * 2 * space,
            auto if auto.startswith("SAME") else "",
            int(attribute(node, "group", 1)),
        )

    def rows(self, x: np.ndarray, most: int) -> np.ndarray:
        """What the filters meet: `[positions, channels * window]`, in the order of the weights; at most so many
        positions, evenly spread."""
        space = len(self.sizes)
        reach = tuple((size - 1) * step + 1 for size, step in zip(self.sizes, self.dilations, strict=True))
        padded = np.pad(x, [(0, 0), (0, 0), *self._pads(x.shape[2:], reach)])
        views = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + space)))
        steps = (*self.strides, *self.dilations)
        views = views[(slice(None), slice(None), *(slice(None, None, step) for step in steps))]
        moved = np.moveaxis(views, 1, 1 + space)  # batch, positions, channels, window
        lattice = moved.shape[: 1 + space]
        picked = spread(math.prod(lattice), most)
        return np.ascontiguousarray(moved[np.unravel_index(picked, lattice)]).reshape(len(picked), -1)

    def _pads(self, sizes: tuple[int, ...], reach: tuple[int, ...]) -> list[tuple[int, int]]:
        if not self.auto:
            space = len(sizes)
            return list(zip(self.pads[:space], self.pads[space:], strict=True))
        found = []
        for size, step, length in zip(sizes, self.strides, reach, strict=True):
            total = max((-(-size // step) - 1) * step + length - size, 0)
            first = total // 2 if self.auto == "SAME_UPPER" else total - total // 2
            found.append((first, total - first))
        return found


def spread(count: int, most: int) -> np.ndarray:
    """At most so many of the numbers below `count`, in the middles of equal pieces."""
    if count <= most:
        return np.arange(count)
    return ((np.arange(most) + 0.5) * (count / most)).astype(np.int64)


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

    def add_fit(self, x: np.ndarray, samples: int) -> None:
        """Count one of so many samples that forms are made with."""
        if self.square is None:
            self.fit.add(self._rows(x, -(-self.fit.limit // samples)))
            return
        rows = self._rows(x, MOST_WINDOWS if self.windows else x.size)
        self.square += rows.T @ rows
        self.count += len(rows)
        self.fit.add(rows[spread(len(rows), -(-self.fit.limit // samples))])

    def add_check(self, x: np.ndarray, samples: int) -> None:
        """Count one of so many samples that forms are compared with."""
        self.check.add(self._rows(x, -(-self.check.limit // samples)))

    def _rows(self, x: np.ndarray, most: int) -> np.ndarray:
        if self.windows is not None:
            return self.windows.rows(x, most)
        rows = channel_rows(x, self.axis)
        return np.asarray(rows[spread(len(rows), most)])


class UnitInputs:
    """What each layer of a unit meets; layers that meet the same share it."""

    def __init__(self, network: Network, unit: LayerGroup) -> None:
        nodes = {node.name: node for node in network.graph.node}
        shared: dict[Windows | None, Inputs] = {}
        self._of: dict[str, Inputs] = {}
        for layer in unit.layers:
            windows, width = _met(network, layer, nodes[layer.node])
            if windows not in shared:
                shared[windows] = Inputs(layer.data_axis, width, windows)
            self._of[layer.node] = shared[windows]
        self.each = tuple(shared.values())

    def of(self, layer: Layer) -> Inputs:
        return self._of[layer.node]


def bytes_of(network: Network, unit: LayerGroup) -> int:
    """Of the inputs of a unit."""
    nodes = {node.name: node for node in network.graph.node}
    found = 0
    for windows, width in {_met(network, layer, nodes[layer.node]) for layer in unit.layers}:
        found += 2 * 4 * width * min(MOST_ROWS, MOST_ROW_BYTES // (4 * width))
        found += 8 * width * width if has_moments(windows, width) else 0
    return found


def _met(network: Network, layer: Layer, node: onnx.NodeProto) -> tuple[Windows | None, int]:
    """The windows of a layer, and the length of a row."""
    shape = tuple(network.initializers[layer.weight].dims)
    if layer.operator != "Conv":
        return None, shape[1 - layer.channel_axis]
    return Windows.of(node, shape[2:]), shape[1] * layer.groups * math.prod(shape[2:])


def has_moments(windows: Windows | None, width: int) -> bool:
    return width <= MOST_INPUTS and (windows is None or windows.groups == 1)


def products(rows: np.ndarray, matrix: np.ndarray, groups: int) -> np.ndarray:
    """What a layer computes of rows: `[rows, outputs]`, with weights `[inputs of a group, outputs]`."""
    if groups == 1:
        return np.asarray(rows @ matrix)
    parts = rows.reshape(len(rows), groups, -1).transpose(1, 0, 2)
    weights = matrix.reshape(len(matrix), groups, -1).transpose(1, 0, 2)
    return np.asarray((parts @ weights).transpose(1, 0, 2).reshape(len(rows), -1))
