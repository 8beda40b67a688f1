"""Weights as they are stored: bytes of a file and what they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tilewright.frontends.weights.kinds import Kind
from tilewright.frontends.weights.layout import PlainLayout

_CHUNK = 1 << 16
"""Elements that are decoded at once: their codes and floats are in L2 meanwhile."""


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor of a file of weights, or one that was encoded.

    `shape` is as PyTorch has it: a matrix is [rows, columns], and elements of a row follow one another. `data` holds
    u8[kind.tensor_bytes(shape)], mostly a view of the mapped file. `order` is there where columns are stored in another
    order than they have: column `order[j]` of the tensor is stored as column j.
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

    def blocks(self) -> np.ndarray:
        """u8[blocks, bytes of a block], a view of the data."""
        return self.data.reshape(-1, self.kind.bytes)

    def elements(self) -> np.ndarray | None:
        """The elements in their own dtype where each is stored by itself (F32, BF16, I8, ...), as a view of the data
        where the file has them aligned; None for other kinds."""
        if not isinstance(self.kind.layout, PlainLayout):
            return None
        found = self.data.view(self.kind.layout.dtype.storage).reshape(self.shape)
        return found if found.flags.aligned else found.copy()

    def decoded(self) -> np.ndarray:
        """f32[shape]: what is stored, each operation on it rounded to float32."""
        out = np.empty(self.shape, np.float32)
        if not self.size:
            return out
        kind, columns = self.kind, self.columns
        rows = self.data.reshape(-1, kind.row_bytes(columns))
        in_row = rows.shape[1] // kind.bytes
        is_whole = columns == in_row * kind.elements
        flat = out.reshape(-1, columns)
        with np.errstate(all="ignore"):  # infinite scales, and NaN
            if is_whole:
                self._decode(self.blocks(), flat.reshape(-1, kind.elements))
            else:
                step = max(1, _CHUNK // columns)
                for first in range(0, len(rows), step):
                    part = rows[first : first + step]
                    wide = np.empty((len(part), in_row * kind.elements), np.float32)
                    self._decode(part.reshape(-1, kind.bytes), wide.reshape(-1, kind.elements))
                    flat[first : first + step] = wide[:, :columns]
        if self.order is not None:
            unordered = np.empty_like(flat)
            unordered[:, self.order] = flat
            out = unordered.reshape(self.shape)
        return out

    def _decode(self, blocks: np.ndarray, out: np.ndarray) -> None:
        step = max(1, _CHUNK // self.kind.elements)
        for first in range(0, len(blocks), step):
            self.kind.layout.decode(blocks[first : first + step], out[first : first + step])

    def __repr__(self) -> str:
        return f"<{self.name}: {self.kind}{list(self.shape)}>"
