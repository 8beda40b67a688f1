"""Tensors of which only some elements, or blocks of them, are stored."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.ir.diag import ModelError


@dataclass(frozen=True)
class SparseLevel:
    """One axis of a traversal: all `size` places, or for each element of the level before it those of
    `indices[segments[k] : segments[k + 1]]`."""

    size: int
    segments: np.ndarray | None
    indices: np.ndarray | None


@dataclass(frozen=True)
class Sparsity:
    """Axes in the order in which elements are stored; those from the tensor's rank on are axes of blocks, of which
    `blocked` says which axes of the tensor they divide."""

    order: tuple[int, ...]
    blocked: tuple[int, ...]
    levels: tuple[SparseLevel, ...]


def dense(values: np.ndarray, shape: tuple[int, ...], how: Sparsity) -> np.ndarray:
    """The tensor, with zeros for what is not stored; ModelError where the record is not one of such a tensor."""
    rank = len(shape)
    if sorted(how.order) != list(range(rank + len(how.blocked))) or len(how.levels) != len(how.order):
        raise ModelError("a sparse tensor is stored in an order that its axes do not have")
    if any(not 0 <= axis < rank for axis in how.blocked) or len(set(how.blocked)) != len(how.blocked):
        raise ModelError("a sparse tensor has blocks of axes that it does not have")
    places = _coordinates(how, prod(shape))
    if places.shape[1] != values.size:
        raise ModelError(f"a sparse tensor has {values.size} elements for {places.shape[1]} places")
    at = [places[how.order.index(axis)] for axis in range(rank)]
    for k, axis in enumerate(how.blocked):
        inner = how.order.index(rank + k)
        at[axis] = at[axis] * how.levels[inner].size + places[inner]
    for axis, d in enumerate(shape):
        if at[axis].size and not 0 <= at[axis].min() <= at[axis].max() < d:
            raise ModelError("an element of a sparse tensor lies outside of it")
    result = np.zeros(shape, values.dtype)
    result[tuple(at)] = values
    return result


def _coordinates(how: Sparsity, most: int) -> np.ndarray:
    """For each axis of the traversal the place of each stored element."""
    places = np.zeros((0, 1), np.int64)
    for level in how.levels:
        count = places.shape[1]
        if level.segments is None or level.indices is None:
            if level.size < 0 or count * level.size > most:
                raise ModelError("a sparse tensor has more elements than its shape")
            new = np.tile(np.arange(level.size), count)
            places = np.vstack([np.repeat(places, level.size, axis=1), new])
            continue
        starts, lengths = level.segments[:-1], np.diff(level.segments)
        fits = len(starts) == count and lengths.sum() == len(level.indices) and level.segments[0] == 0
        if not fits or lengths.min(initial=0) < 0:
            raise ModelError("a sparse tensor has segments that do not fit its elements")
        places = np.vstack([np.repeat(places, lengths, axis=1), level.indices])
    return places
