"""Layouts of packed operands: axes split into pieces, the pieces put in a new order, and pairs of short integers in the
halves of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.ir.constants import Deferred
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym, ceildiv, sym


@dataclass(frozen=True, slots=True)
class Packing:
    """How an array is laid out anew.

    `factors[a]` splits axis `a` into 1 + len(factors[a]) pieces: (4, 16) gives pieces of extent ceil(n /
    64), 4 and 16. All pieces are numbered in axis order; `order` lists them from the outermost to the
    innermost axis of the new array, which is dense and filled with zeros where it is larger. `pack` of a
    [k, n] matrix in panels of 32 columns, each with its 32 columns of one row together, is `Packing(((),
    (32,)), (1, 0, 2))`.

    With `halves` the last piece, which has two elements of 4 bits, becomes a byte: the first element is its low half.
    """

    factors: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    halves: bool = False

    def __post_init__(self) -> None:
        pieces = sum(1 + len(f) for f in self.factors)
        if sorted(self.order) != list(range(pieces)):
            raise ScheduleError(f"packing order {self.order} does not list each of the {pieces} pieces once")
        if any(f < 1 for listed in self.factors for f in listed):
            raise ScheduleError(f"packing factors {self.factors} must be at least 1")
        last = [f for listed in self.factors for f in (0, *listed)][self.order[-1]] if self.order else 0
        if self.halves and last != 2:
            raise ScheduleError("packing in halves of bytes needs a last piece of 2 elements")

    def in_halves(self, axis: int) -> Packing:
        """The packing in which the two elements of the last piece of `axis` are a byte."""
        piece = sum(1 + len(f) for f in self.factors[: axis + 1]) - 1
        return Packing(self.factors, (*(p for p in self.order if p != piece), piece), halves=True)

    def merged(self, shape: Sequence[Sym]) -> Packing:
        """The same order of elements in as few pieces as possible: kernels that read an array alike, by other loops,
        want one packing. Padding stays what it is."""
        axis_of = [axis for axis, listed in enumerate(self.factors) for _ in (0, *listed)]
        size_of = [size for listed in self.factors for size in (0, *listed)]
        runs: list[list[int]] = []
        for k, piece in enumerate(self.order):
            before = runs[-1] if runs else [-1]
            is_half = self.halves and k == len(self.order) - 1
            axis = axis_of[piece]
            follows = before[-1] == piece - 1 and before[-1] >= 0 and axis_of[before[-1]] == axis
            is_whole = size_of[before[0]] > 0 or shape[axis] % prod(self.factors[axis]) == 0
            if follows and is_whole and not is_half:
                before.append(piece)
            else:
                runs.append([piece])
        numbered = sorted(range(len(runs)), key=lambda n: runs[n][0])
        factors: list[list[int]] = [[] for _ in self.factors]
        for n in numbered:
            if size_of[runs[n][0]] > 0:
                factors[axis_of[runs[n][0]]].append(prod(size_of[piece] for piece in runs[n]))
        return Packing(tuple(map(tuple, factors)), tuple(map(numbered.index, range(len(runs)))), self.halves)

    @property
    def rank(self) -> int:
        """Rank of the array before packing."""
        return len(self.factors)

    def pieces(self, shape: Sequence[Sym]) -> list[Sym]:
        """Extents of the pieces in axis order."""
        extents: list[Sym] = []
        for n, factors in zip(shape, self.factors, strict=True):
            extents += [ceildiv(n, prod(factors)), *map(sym, factors)]
        return extents

    def shape(self, shape: Sequence[Sym]) -> tuple[Sym, ...]:
        """Shape of the packed array."""
        extents = self.pieces(shape)
        return tuple(extents[piece] for piece in self._axes)

    @property
    def _axes(self) -> tuple[int, ...]:
        """The pieces that are axes of the packed array."""
        return self.order[:-1] if self.halves else self.order

    def padded(self, shape: Sequence[Sym]) -> tuple[Sym, ...]:
        """Shape before packing with the zeros that packing adds."""
        return tuple(ceildiv(n, prod(f)) * prod(f) for n, f in zip(shape, self.factors, strict=True))

    def index(self, idx: Sequence[Sym]) -> tuple[Sym, ...]:
        """Where the element at `idx` is in the packed array."""
        parts = self._parts(idx)
        return tuple(parts[piece] for piece in self._axes)

    def half(self, idx: Sequence[Sym]) -> Sym:
        """Which half of its byte the element at `idx` is."""
        return self._parts(idx)[self.order[-1]]

    def _parts(self, idx: Sequence[Sym]) -> list[Sym]:
        """Its indices in the pieces, in axis order."""
        parts: list[Sym] = []
        for i, factors in zip(idx, self.factors, strict=True):
            parts.append(i // prod(factors))
            for k, factor in enumerate(factors):
                parts.append(i // prod(factors[k + 1 :]) % factor)
        return parts

    def position(self, packed: Sequence[Sym]) -> tuple[Sym, ...]:
        """The element (before packing) that is at `packed`, which names no halves; may lie in the added zeros."""
        assert not self.halves, "a byte holds two elements"
        parts = [sym(0)] * len(self.order)
        for piece, i in zip(self.order, packed, strict=True):
            parts[piece] = i
        idx: list[Sym] = []
        first = 0
        for factors in self.factors:
            i = parts[first]
            for factor, part in zip(factors, parts[first + 1 : first + 1 + len(factors)], strict=True):
                i = i * factor + part
            idx.append(i)
            first += 1 + len(factors)
        return tuple(idx)


def identity_packing(rank: int) -> Packing:
    """The packing that changes nothing."""
    return Packing(((),) * rank, tuple(range(rank)))


@dataclass(frozen=True, slots=True, eq=False)
class PackedArray(Deferred):
    """An array in a packed layout, which is laid out where it is wanted. C-contiguous, with zeros where it is larger
    than the array."""

    array: np.ndarray
    packing: Packing

    def __post_init__(self) -> None:
        assert self.array.ndim == self.packing.rank, f"rank {self.array.ndim}, packing for rank {self.packing.rank}"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(d.value for d in self.packing.shape([sym(n) for n in self.array.shape]))

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.uint8) if self.packing.halves else self.array.dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def form(self) -> tuple[Packing, tuple[int, ...], np.dtype]:
        """What arrays have in common that are packed in one way."""
        return self.packing, self.array.shape, self.array.dtype

    def make(self) -> np.ndarray:
        out = np.empty(self.shape, self.dtype)
        self.write(out)
        return out

    def write(self, out: np.ndarray) -> None:
        """Fill `out`, of this shape and dtype."""
        array = self._elements(self.array)
        padded = [d.value for d in self.packing.padded([sym(n) for n in array.shape])]
        padding = [(0, whole - n) for whole, n in zip(padded, array.shape, strict=True)]
        if any(after for _, after in padding):
            array = np.pad(array, padding)
        np.copyto(out, self._bytes(array.reshape(self._pieces).transpose(self.packing.order)))

    def first(self, count: int) -> np.ndarray:
        """The first elements of the packed array, at most this many, in a line."""
        extents = [self._pieces[piece] for piece in self.packing.order]
        count = min(count * (2 if self.packing.halves else 1), prod(extents))
        found = np.zeros(count, self.array.dtype)
        if count and self.array.size:
            parts = dict(zip(self.packing.order, _indices(count, extents), strict=True))
            idx = self._positions([parts[piece] for piece in range(len(extents))])
            inside = np.ones(count, np.bool_)
            for i, n in zip(idx, self.array.shape, strict=True):
                inside &= i < n
            found[inside] = self.array[tuple(i[inside] for i in idx)]
        return self._bytes(self._elements(found).reshape(-1, 2)) if self.packing.halves else found

    def _positions(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Indices in the array, of those in the pieces, in axis order."""
        idx, first = [], 0
        for factors in self.packing.factors:
            i = parts[first]
            for factor, part in zip(factors, parts[first + 1 : first + 1 + len(factors)], strict=True):
                i = i * factor + part
            idx.append(i)
            first += 1 + len(factors)
        return idx

    @property
    def _pieces(self) -> list[int]:
        return [d.value for d in self.packing.pieces([sym(n) for n in self.array.shape])]

    def _elements(self, array: np.ndarray) -> np.ndarray:
        return array.astype(np.uint8) & 15 if self.packing.halves else array

    def _bytes(self, pairs: np.ndarray) -> np.ndarray:
        """What is stored: of halves, each two along the last axis are a byte."""
        return pairs[..., 0] | pairs[..., 1] << 4 if self.packing.halves else pairs


def _indices(count: int, extents: Sequence[int]) -> list[np.ndarray]:
    """Where the first elements of a dense array of these extents are, by axes; nothing of an array without any."""
    found, position = [], np.arange(count)
    for n in reversed(extents):
        position, at = np.divmod(position, n)
        found.append(at)
    return found[::-1]


def apply_packing(array: np.ndarray, packing: Packing) -> np.ndarray:
    """`array` in the packed layout."""
    return PackedArray(array, packing).make()
