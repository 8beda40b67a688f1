"""Layouts of packed operands: axes split into pieces, the pieces put in a new order, and short integers in fields of
bytes or of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.constants import Deferred
from tilewright.ir.diag import ScheduleError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, ceildiv, sym

FIELD_BITS = (1, 2, 4)
"""Of elements that share bytes or words."""
WORD_BYTES = 4
"""Of a word that elements share. Its bytes have neighbours, so that a few instructions on words bring the fields of all
four to where they are taken from."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How an array is laid out anew.

    `factors[a]` splits axis `a` into 1 + len(factors[a]) pieces: (4, 16) gives pieces of extent ceil(n /
    64), 4 and 16. All pieces are numbered in axis order; `order` lists them from the outermost to the
    innermost axis of the new array, which is dense and filled with zeros where it is larger. `pack` of a
    [k, n] matrix in panels of 32 columns, each with its 32 columns of one row together, is `Packing(((),
    (32,)), (1, 0, 2))`.

    With `fields` elements have so many bits (1, 2 or 4), and the last piece, of as many elements as a byte has, becomes
    one: the first element is its lowest field. With `words` the last two pieces become a word of 32 bits: the first of
    these says which byte of it, the lowest first, and the other which field of that.
    """

    factors: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    fields: int = 0
    words: bool = False

    def __post_init__(self) -> None:
        pieces = sum(1 + len(f) for f in self.factors)
        if sorted(self.order) != list(range(pieces)):
            raise ScheduleError(f"packing order {self.order} does not list each of the {pieces} pieces once")
        if any(f < 1 for listed in self.factors for f in listed):
            raise ScheduleError(f"packing factors {self.factors} must be at least 1")
        sizes = [f for listed in self.factors for f in (0, *listed)]
        if self.fields and self.fields not in FIELD_BITS:
            raise ScheduleError(f"fields have 1, 2 or 4 bits, not {self.fields}")
        wanted = ([WORD_BYTES] if self.words else []) + ([8 // self.fields] if self.fields else [])
        if [sizes[piece] for piece in self.order[len(self.order) - len(wanted) :]] != wanted:
            raise ScheduleError(
                "packing in fields needs a last piece of the elements of a byte, and of words one of 4 before it"
            )

    def in_bytes(self, axis: int, bits: int) -> Packing:
        """The packing in which elements of so many bits along `axis` are bytes: those of the innermost piece of all, if
        that is one of the axis, else of its last one, with as many of those around it as a byte has elements of."""
        first = sum(1 + len(f) for f in self.factors[:axis])
        sizes = dict(enumerate(self.factors[axis], first + 1))
        last = self.order[-1] if self.order[-1] in sizes else first + len(sizes)
        begin, count = last, sizes.get(last, 1)
        while count < 8 // bits and begin - 1 in sizes:
            begin -= 1
            count *= sizes[begin]
        if count != 8 // bits:
            raise ScheduleError(f"no piece of axis {axis} has the {8 // bits} elements of a byte")
        joined = range(begin, last + 1)
        factors = tuple(
            (*f[: begin - first - 1], count, *f[last - first :]) if k == axis else f for k, f in enumerate(self.factors)
        )
        order = [piece - (len(joined) - 1) * (piece > last) for piece in self.order if piece not in joined]
        return Packing(factors, (*order, begin), fields=bits)

    def in_words(self, axis: int, bits: int) -> Packing | None:
        """The packing in which fields of so many bits, which follow one another along `axis`, are words; None where
        other pieces lie between those of the axis already."""
        if self.factors[axis] or self.fields:
            return None
        first = sum(1 + len(f) for f in self.factors[:axis])
        factors = tuple((8 // bits, WORD_BYTES) if k == axis else f for k, f in enumerate(self.factors))
        order = [piece if piece <= first else piece + 2 for piece in self.order]
        return Packing(factors, (*order, first + 2, first + 1), fields=bits, words=True)

    def merged(self, shape: Sequence[Sym]) -> Packing:
        """The same order of elements in as few pieces as possible: kernels that read an array alike, by other loops,
        want one packing. Padding stays what it is."""
        axis_of = [axis for axis, listed in enumerate(self.factors) for _ in (0, *listed)]
        size_of = [size for listed in self.factors for size in (0, *listed)]
        runs: list[list[int]] = []
        for k, piece in enumerate(self.order):
            before = runs[-1] if runs else [-1]
            is_shared = k >= len(self.order) - self._within
            axis = axis_of[piece]
            follows = before[-1] == piece - 1 and before[-1] >= 0 and axis_of[before[-1]] == axis
            is_whole = size_of[before[0]] > 0 or shape[axis] % prod(self.factors[axis]) == 0
            if follows and is_whole and not is_shared:
                before.append(piece)
            else:
                runs.append([piece])
        numbered = sorted(range(len(runs)), key=lambda n: runs[n][0])
        factors: list[list[int]] = [[] for _ in self.factors]
        for n in numbered:
            if size_of[runs[n][0]] > 0:
                factors[axis_of[runs[n][0]]].append(prod(size_of[piece] for piece in runs[n]))
        order = tuple(map(numbered.index, range(len(runs))))
        return Packing(tuple(map(tuple, factors)), order, self.fields, self.words)

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
    def shared(self) -> DType | None:
        """What elements share: bytes or words; None where each is by itself."""
        return dt.u32 if self.words else dt.u8 if self.fields else None

    @property
    def _within(self) -> int:
        """How many of the last pieces are parts of what elements share."""
        return 2 if self.words else 1 if self.fields else 0

    @property
    def _axes(self) -> tuple[int, ...]:
        """The pieces that are axes of the packed array."""
        return self.order[: len(self.order) - self._within]

    def padded(self, shape: Sequence[Sym]) -> tuple[Sym, ...]:
        """Shape before packing with the zeros that packing adds."""
        return tuple(ceildiv(n, prod(f)) * prod(f) for n, f in zip(shape, self.factors, strict=True))

    def index(self, idx: Sequence[Sym]) -> tuple[Sym, ...]:
        """Where the element at `idx` is in the packed array."""
        parts = self._parts(idx)
        return tuple(parts[piece] for piece in self._axes)

    def shift(self, idx: Sequence[Sym]) -> Sym:
        """The lowest bit of the element at `idx` in the byte or word that it shares."""
        parts = self._parts(idx)
        last = self.order[-1]
        return self.fields * parts[last] + (8 * parts[self.order[-2]] if self.words else 0)

    def _parts(self, idx: Sequence[Sym]) -> list[Sym]:
        """Its indices in the pieces, in axis order."""
        parts: list[Sym] = []
        for i, factors in zip(idx, self.factors, strict=True):
            parts.append(i // prod(factors))
            for k, factor in enumerate(factors):
                parts.append(i // prod(factors[k + 1 :]) % factor)
        return parts

    def position(self, packed: Sequence[Sym]) -> tuple[Sym, ...]:
        """The element (before packing) that is at `packed`, which names no fields; may lie in the added zeros."""
        assert not self._within, "several elements share a place"
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
        shared = self.packing.shared
        return self.array.dtype if shared is None else shared.storage

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
        apart = array.reshape(self._pieces)
        if not self.packing.fields:
            np.copyto(out, apart.transpose(self.packing.order))
            return
        *around, field = self.packing.order
        joined = self._joined(np.moveaxis(apart, field, 0))
        order = [piece - (piece > field) for piece in around]
        if self.packing.words:
            out = out.view(np.uint8).reshape(*out.shape, WORD_BYTES)
        np.copyto(out, joined.transpose(order))

    def first(self, count: int) -> np.ndarray:
        """The first elements of the packed array, at most this many, in a line."""
        extents = [self._pieces[piece] for piece in self.packing.order]
        packing, shared = self.packing, self.packing.shared
        each = 1 if shared is None else shared.bits // packing.fields
        count = min(count * each, prod(extents))
        found = np.zeros(count, self.array.dtype)
        if count and self.array.size:
            parts = dict(zip(packing.order, _indices(count, extents), strict=True))
            idx = self._positions([parts[piece] for piece in range(len(extents))])
            inside = np.ones(count, np.bool_)
            for i, n in zip(idx, self.array.shape, strict=True):
                inside &= i < n
            found[inside] = self.array[tuple(i[inside] for i in idx)]
        if shared is None:
            return found
        apart = self._elements(found).reshape(-1, 8 // packing.fields)
        return self._joined(np.moveaxis(apart, -1, 0)).view(shared.storage)

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
        return array.view(np.uint8) if self.packing.fields else array

    def _joined(self, fields: np.ndarray) -> np.ndarray:
        """Bytes of fields, which are along the first axis."""
        bits = self.packing.fields
        out = fields[-1] << np.uint8(8 - bits)
        for field, each in enumerate(fields[:-1]):
            out |= (each & np.uint8((1 << bits) - 1)) << np.uint8(bits * field)
        return out


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
