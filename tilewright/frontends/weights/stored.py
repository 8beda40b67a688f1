"""Weights as they are stored: bytes of a file and what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.frontends.weights.kinds import Kind
from tilewright.frontends.weights.layout import PlainLayout

_CHUNK = 1 << 16
"""Elements that are decoded at once: their codes and floats are in L2 meanwhile."""

Reader = Callable[[np.ndarray, np.ndarray], None]
"""Writes numbers of blocks u8[n, bytes] to an array [n, count]."""


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor of a file of weights, or one that was encoded.

    `shape` is as PyTorch has it: a matrix is [rows, columns], and elements of a row follow one another. `data` holds
    u8[kind.tensor_bytes(shape)], mostly a view of the mapped file. `order` is there where columns are stored in another
    order: column j of the tensor is stored as column `order[j]`.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    data: np.ndarray
    order: np.ndarray | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def blocks_of_a_row(self) -> int:
        return self.kind.row_bytes(self.columns) // self.kind.bytes

    def elements(self) -> np.ndarray | None:
        """The elements in their own dtype where each is stored by itself (F32, BF16, I8, ...), as a view of the data
        where the file has them aligned; None for other kinds."""
        if not isinstance(self.kind.layout, PlainLayout):
            return None
        found = self.data.view(self.kind.layout.dtype.storage).reshape(self.shape)
        return found if found.flags.aligned else found.copy()

    def decoded(self) -> np.ndarray:
        """f32[shape]: what is stored, each operation on it rounded to float32."""
        found = self.numbers(self.kind.layout.decode, self.kind.elements, np.float32)[..., : self.columns]
        ordered = found if self.order is None else found[..., self.order]
        return ordered.reshape(self.shape)

    def numbers(self, read: Reader, count: int, dtype: Any) -> np.ndarray:
        """dtype[..., numbers of a row]: `count` of each block, those of a row one after the other. The last block of a
        row may have more than the row needs."""
        blocks = self.data.reshape(-1, self.kind.bytes)
        out = np.empty((len(blocks), count), dtype)
        step = max(1, _CHUNK // self.kind.elements)
        with np.errstate(all="ignore"):  # infinite scales, and NaN
            for first in range(0, len(blocks), step):
                read(blocks[first : first + step], out[first : first + step])
        return out.reshape(*self.shape[:-1], self.blocks_of_a_row * count)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.kind}{list(self.shape)}>"
