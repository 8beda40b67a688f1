"""Sizes that dims of unknown size are expected to have. Decisions that depend on such a size are made for these: all
programs are right for every size, and one that is decided for usual ones is fast for these.

Dims of images are known best. Networks double the channels when they halve an image, so that an image with many
channels is small. What is expected of the dims of a model's inputs says what sizes within the model are, which are
expressions of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType

IMAGE_WORK = (3584, 7168, 14336)
"""Products of the extent of an image and its channels. ResNet on 224 pixels has 64 of 56 and 512 of 7, VGG 64 of 224
and 512 of 14; detectors of 416 pixels lie between."""

FEW_CHANNELS = 16
"""Channels that an image with fewer counts as, such as one of three colours: those that the first layer gives."""

SMALLEST_IMAGE = 7
"""Extent of the smallest images that networks are trained with: 224 pixels, halved five times."""

LENGTHS = (32, 128, 512)
"""Any other dim: of texts, of sequences."""

IMAGES = (4, 5)
"""Ranks of inputs that are images: a batch and channels before two or three axes."""


def typical_extents(channels: int) -> list[int]:
    """Of an image of unknown size with so many channels."""
    return [max(SMALLEST_IMAGE, work // max(FEW_CHANNELS, channels)) for work in IMAGE_WORK]


@dataclass(frozen=True)
class TypicalSizes:
    """What dims are expected to be: small, medium and large values for each, by name; others are `LENGTHS`."""

    dims: Mapping[str, Sequence[int]]

    def of(self, sizes: Iterable[Sym]) -> list[tuple[int, ...]]:
        """The sizes, computed from small, medium and large values of the dims; once if none depends on any."""
        sizes = tuple(sizes)
        dims = {dim for size in sizes for dim in size.vars}
        values = []
        for k in range(len(LENGTHS) if dims else 1):
            expected = {dim.name: _within(self.dims.get(dim.name, LENGTHS)[k], dim) for dim in dims}
            values.append(tuple(_evaluated(size, expected) for size in sizes))
        return list(dict.fromkeys(values))

    def medium(self, sizes: Iterable[Sym]) -> tuple[int, ...]:
        """The sizes, computed from medium values of the dims."""
        values = self.of(sizes)
        return values[len(values) // 2]


def _within(size: int, dim: Sym) -> int:
    """The size, or the bound of the dim that it is beyond."""
    low, high = dim.bounds
    size = size if low is None else max(size, low)
    return size if high is None else min(size, high)


def _evaluated(size: Sym, dims: Mapping[str, int]) -> int:
    """At least 1, which also stands for a size that these dims do not define."""
    try:
        return max(1, size.evaluate(dims))
    except ZeroDivisionError:
        return 1


def typical_sizes(inputs: Iterable[TensorType]) -> TypicalSizes:
    """What is expected of the dims of a model's inputs: one in a batch, and extents of images by their channels."""
    dims: dict[str, Sequence[int]] = {}
    for batch, *shape in (type.shape for type in inputs if type.shape):
        if batch.kind == "var":
            dims.setdefault(batch.name, (1, 1, 1))
        if len(shape) + 1 in IMAGES and shape[0].is_const:
            for dim in shape[1:]:
                if dim.kind == "var":
                    dims.setdefault(dim.name, typical_extents(shape[0].value))
    return TypicalSizes(dims)
