"""Stored tensors of one shape as one tensor with an axis more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.weights.kinds import KINDS
from tilewright.frontends.weights.stored import StoredTensor


def stacked(tensors: Sequence[StoredTensor]) -> StoredTensor:
    """[number, ...] of at least one tensor, in the kind that all have, or else in float32: a view where they follow one
    another in memory."""
    first = tensors[0]
    kind, parts = first.kind, [tensor.data for tensor in tensors]
    if any(tensor.kind is not kind or tensor.order is not None for tensor in tensors):
        kind, parts = KINDS["F32"], [tensor.decoded().view(np.uint8).reshape(-1) for tensor in tensors]
    return StoredTensor(first.name, (len(tensors), *first.shape), kind, _joined(parts))


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    first, size = parts[0], parts[0].nbytes
    follow = all(part.ctypes.data == first.ctypes.data + k * size for k, part in enumerate(parts))
    is_plain = all(part.flags.c_contiguous and part.base is first.base for part in parts)
    if not (follow and is_plain and first.base is not None and size):
        return np.concatenate([part.reshape(-1) for part in parts])
    return np.lib.stride_tricks.as_strided(first.reshape(-1), (size * len(parts),), (1,), writeable=False)
