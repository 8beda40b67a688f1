"""The shapes that the cost model is calibrated on, layers of well-known networks and odd ones; and those that it is
judged on, drawn by chance once it was made."""

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


Layer = Matmul | Conv

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

SEEDS = {"judged": 20261121, "judged-again": 20261124}
"""Of the two draws of layers. The first judged the model as it was; the second judges what was changed then."""

DRAWN_MATMULS, DRAWN_CONVS = 14, 20
FEWEST_PRODUCTS, MOST_PRODUCTS = 2e6, 3e8
"""Multiplications of a drawn layer: fewer take less time than a call can be measured with, more would take long."""


@cache
def drawn(seed: int) -> tuple[Layer, ...]:
    """Layers drawn by a seed, extents evenly in their logarithm: half of the matrix products have any extents,
    the others multiples of 64; convolutions have any size of images and whole blocks of channels."""
    rng = np.random.default_rng(seed)
    found: list[Layer] = []
    while len(found) < DRAWN_MATMULS:
        unit = 1 if len(found) % 2 else 64
        rows, depth, columns = (
            _extent(rng, 1, 512),
            _extent(rng, 64, 3000, unit),
            _extent(rng, 24, 3000, unit),
        )
        if FEWEST_PRODUCTS <= rows * depth * columns <= MOST_PRODUCTS:
            found.append(Matmul(rows, depth, columns))
    while len(found) < DRAWN_MATMULS + DRAWN_CONVS:
        kernel, stride = ((1, 1), (3, 1), (1, 2), (3, 2), (1, 1), (5, 1))[len(found) % 6]
        inputs, outputs, size = _extent(rng, 16, 1024, 16), _extent(rng, 16, 1024, 16), _extent(rng, 6, 90)
        steps = ((size - kernel) // stride + 1) ** 2 * inputs * kernel**2
        if FEWEST_PRODUCTS <= steps * outputs <= MOST_PRODUCTS:
            found.append(Conv(1, inputs, outputs, size, kernel, stride))
    return tuple(found)


def _extent(rng: np.random.Generator, least: int, most: int, unit: int = 1) -> int:
    """Drawn evenly in its logarithm, and rounded to a multiple of `unit`."""
    drawn = np.exp(rng.uniform(np.log(least), np.log(most)))
    return max(unit, round(float(drawn) / unit) * unit)


def layers_of(name: str) -> tuple[Layer, ...]:
    """The layers of a set: those of `SEEDS`, or those that the model is `fitted` to."""
    return SHAPES if name == "fitted" else drawn(SEEDS[name])
