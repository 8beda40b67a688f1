"""Second moments of what layers read, and means before and after rounding: what rounding and biases are made with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from tilewright.quantization.methods.histogram import channel_rows
from tilewright.quantization.methods.integers import QParameters, rounded
from tilewright.quantization.network import Layer, Network, attribute

MOST_INPUTS = 4096
"""Inputs of a layer of which moments are kept: a square of doubles of 128 MiB."""

MOST_ROWS = 4096
"""Rows of a sample that are looked at, evenly spread: windows of a convolution are many, and much alike."""


@dataclass
class Moments:
    """Of a unit: `square` is the sum of x x' over `count` rows (None for layers that are not reconstructed), `mean`
    and `rounded_mean` sums over `elements` of each channel."""

    layer: Layer
    window: tuple[int, ...]
    node: onnx.NodeProto
    axis: int
    activation: QParameters | None
    divisor: np.ndarray | None
    square: np.ndarray | None
    mean: np.ndarray
    rounded_mean: np.ndarray
    count: int = 0
    elements: int = 0

    @classmethod
    def of(
        cls,
        network: Network,
        layer: Layer,
        channels: int,
        activation: QParameters | None,
        divisor: np.ndarray | None,
    ) -> Moments:
        shape = tuple(network.initializers[layer.weight].dims)
        node = next(n for n in network.graph.node if n.name == layer.node)
        window = shape[2:] if layer.operator == "Conv" else ()
        inputs = channels * int(np.prod(window, dtype=np.int64))
        is_kept = layer.groups == 1 and inputs <= MOST_INPUTS and not (window and _pads_by_itself(node))
        square = np.zeros((inputs, inputs)) if is_kept else None
        zeros = np.zeros(channels)
        return cls(layer, window, node, layer.data_axis, activation, divisor, square, zeros, zeros.copy())

    def add(self, x: np.ndarray) -> None:
        """Count a sample. `divisor` smooths channels before they are rounded; means are of smoothed channels."""
        rows = channel_rows(x, self.axis)
        plain = rows if self.divisor is None else rows / self.divisor
        self.mean = self.mean + plain.sum(axis=0, dtype=np.float64)
        short = plain if self.activation is None else rounded(plain, self.activation)
        self.rounded_mean = self.rounded_mean + short.sum(axis=0, dtype=np.float64)
        self.elements += len(rows)
        if self.square is not None:
            inputs = _spread(windows(x, self.node, self.window) if self.window else rows)
            self.square += inputs.T @ inputs
            self.count += len(inputs)

    def smoothed_square(self) -> np.ndarray | None:
        """Mean moments of what the layer's own weights meet."""
        if self.square is None or not self.count:
            return None
        found = self.square / self.count
        if self.divisor is None:
            return found
        divisor = np.repeat(self.divisor, len(found) // len(self.divisor)).astype(np.float64)
        return np.asarray(found / np.outer(divisor, divisor))


def _pads_by_itself(node: onnx.NodeProto) -> bool:
    return attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")


def _spread(rows: np.ndarray) -> np.ndarray:
    if len(rows) <= MOST_ROWS:
        return rows
    return np.asarray(rows[np.linspace(0, len(rows) - 1, MOST_ROWS).astype(np.int64)])


def windows(x: np.ndarray, node: onnx.NodeProto, window: tuple[int, ...]) -> np.ndarray:
    """What the filters of a convolution meet: `[positions, channels * window]`, in the order of the weights."""
    space = len(window)
    pads = list(attribute(node, "pads", [0] * 2 * space))
    strides = tuple(attribute(node, "strides", [1] * space))
    dilations = tuple(attribute(node, "dilations", [1] * space))
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:space], pads[space:], strict=True)])
    reach = tuple((size - 1) * step + 1 for size, step in zip(window, dilations, strict=True))
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + space)))
    pick = (
        slice(None),
        slice(None),
        *(slice(None, None, s) for s in strides),
        *(slice(None, None, d) for d in dilations),
    )
    views = views[pick]
    order = (0, *range(2, 2 + space), 1, *range(2 + space, 2 + 2 * space))
    moved = views.transpose(order)
    positions = int(np.prod(moved.shape[: 1 + space]))
    step = max(positions // MOST_ROWS, 1)
    if step == 1:
        return moved.reshape(positions, -1)
    index = np.unravel_index(np.arange(0, positions, step), moved.shape[: 1 + space])
    return np.asarray(moved[index].reshape(len(index[0]), -1))
