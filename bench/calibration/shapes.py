"""The shapes that the cost model is calibrated on, layers of well-known networks and odd ones; and those that it is
judged on, drawn by chance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True)
class Matmul:
    """rows x depth by constant depth x columns, with a bias."""

    rows: int
    depth: int
    columns: int

    def __str__(self) -> str:
        return f"matmul {self.rows}x{self.depth}x{self.columns}"


@dataclass(frozen=True)
class Conv:
    """`images` of `inputs` channels and height = width `size` after padding, by square kernels; blocked channels, with
    a bias and a rectifier."""

    images: int
    inputs: int
    outputs: int
    size: int
    kernel: int = 1
    stride: int = 1

    def __str__(self) -> str:
        name = f"conv{self.kernel}x{self.kernel} {self.images}x{self.inputs}->{self.outputs} at {self.size}"
        return name + (f" stride {self.stride}" if self.stride > 1 else "")


@dataclass(frozen=True)
class TransposedMatmul:
    """constant rows x depth by depth x columns with a bias for each row, and vectors along the rows."""

    rows: int
    depth: int
    columns: int

    def __str__(self) -> str:
        return f"transposed {self.rows}x{self.depth}x{self.columns}"


Layer = Matmul | Conv | TransposedMatmul

_BERT = ((768, 768), (768, 2304), (768, 3072), (3072, 768))
_MATMULS = (
    *(Matmul(m, k, n) for m in (1, 7, 16, 64, 128, 512) for k, n in _BERT),
    *(Matmul(197, k, n) for k, n in (*_BERT, (192, 576), (384, 1536), (1536, 384))),
    *(Matmul(m, 512, 1376) for m in (1, 16, 100)),
    *(Matmul(m, 1376, 512) for m in (7, 64)),
    *(Matmul(m, 2048, 2048) for m in (1, 33)),
    Matmul(3136, 96, 384), Matmul(3136, 384, 96), Matmul(784, 192, 768), Matmul(784, 768, 192),
    Matmul(196, 384, 1536), Matmul(196, 1536, 384), Matmul(49, 768, 3072), Matmul(49, 3072, 768),
    Matmul(37, 511, 129), Matmul(33, 65, 250), Matmul(100, 100, 100), Matmul(64, 1000, 10), Matmul(8, 1280, 1000),
    Matmul(4, 2048, 1000), Matmul(1, 1280, 1000), Matmul(1024, 1024, 1024), Matmul(300, 700, 500),
    Matmul(20, 300, 4000),
)  # fmt: skip

_POINTWISE = (
    (64, 64, 56), (64, 256, 56), (256, 64, 56), (256, 128, 56), (512, 128, 28), (128, 512, 28), (1024, 256, 14),
    (256, 1024, 14), (2048, 512, 7), (512, 2048, 7), (16, 96, 112), (96, 32, 56), (144, 32, 28), (192, 64, 14),
    (384, 96, 14), (576, 160, 7), (960, 320, 7), (320, 1280, 7), (48, 240, 28), (80, 480, 14), (112, 672, 14),
    (672, 192, 7), (1152, 192, 7), (32, 192, 40), (240, 80, 20),
)  # fmt: skip
_WINDOWS = (
    (64, 64, 58, 3, 1), (128, 128, 30, 3, 1), (256, 256, 16, 3, 1), (512, 512, 9, 3, 1), (128, 128, 58, 3, 2),
    (256, 256, 30, 3, 2), (512, 512, 16, 3, 2), (64, 128, 114, 3, 1), (128, 256, 58, 3, 1), (256, 512, 30, 3, 1),
    (96, 96, 37, 3, 1), (32, 64, 82, 3, 2), (48, 48, 29, 5, 1), (256, 512, 56, 1, 2), (512, 1024, 28, 1, 2),
    (1024, 2048, 14, 1, 2), (256, 512, 28, 3, 1), (80, 96, 20, 3, 1),
)  # fmt: skip
_CONVS = (
    *(Conv(1, *shape) for shape in (*_POINTWISE, *_WINDOWS)),
    *(Conv(4, i, o, n) for i, o, n in ((64, 256, 28), (512, 128, 14), (960, 320, 7), (96, 32, 28))),
    *(Conv(8, i, o, n) for i, o, n in ((256, 1024, 14), (2048, 512, 7), (144, 32, 14))),
    *(Conv(2, *shape) for shape in ((128, 128, 30, 3, 1), (512, 512, 9, 3, 1))),
    *(Conv(8, *shape) for shape in ((256, 256, 16, 3, 1), (512, 512, 9, 3, 1))),
)  # fmt: skip

SHAPES: tuple[Layer, ...] = (*_MATMULS, *_CONVS)


@dataclass(frozen=True)
class Draw:
    """Layers that are drawn by a seed: so many matrix products, convolutions, products of more than LONG rows, and
    products of constant rows."""

    seed: int
    matmuls: int = 14
    convs: int = 20
    long: int = 0
    transposed: int = 0


DRAWS = {"second": Draw(20261124), "third": Draw(20261203, long=5, transposed=7)}
"""The second draw judged the model after its last change; the third was drawn when kernels had changed since."""

FEWEST_PRODUCTS, MOST_PRODUCTS = 2e6, 3e8
"""Multiplications of a drawn layer: fewer take less time than a call can be measured with, more would take long."""

LONG, MOST_LONG_PRODUCTS = 2048, 2e9
MOST_ELEMENTS = 12 << 20
"""Of an operand of a product of many rows."""


@cache
def drawn(draw: Draw) -> tuple[Layer, ...]:
    """The layers of a draw, extents evenly in their logarithm: half of the matrix products have any extents, the
    others multiples of 64; convolutions have any size of images and whole blocks of channels."""
    rng = np.random.default_rng(draw.seed)
    found: list[Layer] = []
    while len(found) < draw.matmuls:
        unit = 1 if len(found) % 2 else 64
        rows, depth, columns = (
            _extent(rng, 1, 512),
            _extent(rng, 64, 3000, unit),
            _extent(rng, 24, 3000, unit),
        )
        if FEWEST_PRODUCTS <= rows * depth * columns <= MOST_PRODUCTS:
            found.append(Matmul(rows, depth, columns))
    while len(found) < draw.matmuls + draw.convs:
        kernel, stride = ((1, 1), (3, 1), (1, 2), (3, 2), (1, 1), (5, 1))[len(found) % 6]
        inputs, outputs, size = _extent(rng, 16, 1024, 16), _extent(rng, 16, 1024, 16), _extent(rng, 6, 90)
        steps = ((size - kernel) // stride + 1) ** 2 * inputs * kernel**2
        if FEWEST_PRODUCTS <= steps * outputs <= MOST_PRODUCTS:
            found.append(Conv(1, inputs, outputs, size, kernel, stride))
    while len(found) < draw.matmuls + draw.convs + draw.long:
        unit = 1 if len(found) % 2 else 64
        rows, depth, columns = (
            _extent(rng, LONG, 4 * LONG, unit),
            _extent(rng, 64, 3000, unit),
            _extent(rng, 64, 3000, unit),
        )
        if rows * depth * columns <= MOST_LONG_PRODUCTS and rows * max(depth, columns) <= MOST_ELEMENTS:
            found.append(Matmul(rows, depth, columns))
    while len(found) < draw.matmuls + draw.convs + draw.long + draw.transposed:
        rows, depth, columns = _extent(rng, 32, 2048, 16), _extent(rng, 32, 2048), _extent(rng, 16, 3200)
        if FEWEST_PRODUCTS <= rows * depth * columns <= MOST_PRODUCTS:
            found.append(TransposedMatmul(rows, depth, columns))
    return tuple(found)


def _extent(rng: np.random.Generator, least: int, most: int, unit: int = 1) -> int:
    """Drawn evenly in its logarithm, and rounded to a multiple of `unit`."""
    drawn = np.exp(rng.uniform(np.log(least), np.log(most)))
    return max(unit, round(float(drawn) / unit) * unit)


def layers_of(name: str) -> tuple[Layer, ...]:
    """The layers of a set: those of `DRAWS`, or those that the model is `fitted` to."""
    return SHAPES if name == "fitted" else drawn(DRAWS[name])
