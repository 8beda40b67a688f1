"""Types of values: tensors (no address), buffers (memory), scalars (one element or one vector lane), tokens, and what
only the host has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym, var


class Type:
    """Base of the value types."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ShapedType(Type):
    """What has elements of `dtype` in a shape of one Sym for each axis (constants for static dims)."""

    dtype: DType
    shape: tuple[Sym, ...]
    _size: Sym | None = field(default=None, init=False, repr=False, compare=False)  # once asked for

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Sym:
        """Number of elements."""
        if self._size is None:
            object.__setattr__(self, "_size", product(self.shape))
        assert self._size is not None
        return self._size


@dataclass(frozen=True, slots=True)
class TensorType(ShapedType):
    """A value of the graph level."""

    _hash: int | None = field(default=None, init=False, repr=False, compare=False)  # once asked for

    def __hash__(self) -> int:
        # types are in the key of all that is remembered of operators, which passes ask for again and again
        if self._hash is None:
            object.__setattr__(self, "_hash", hash((self.dtype, self.shape)))
        assert self._hash is not None
        return self._hash

    def __reduce__(self) -> tuple[type[TensorType], tuple[DType, tuple[Sym, ...]]]:
        return TensorType, (self.dtype, self.shape)  # another process has other hashes

    @property
    def is_static(self) -> bool:
        return all(d.is_const for d in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


MOST_BYTES = 1 << 47
"""Of a tensor: no process can address more."""


def require_possible_size(type: Type) -> None:
    """ValueError where the dims that are known make a tensor larger than any memory, or a dim too large for that even
    where the tensor is empty."""
    if not isinstance(type, TensorType):
        return
    known = [d.value for d in type.shape if d.is_const]
    if max(known, default=0) >= MOST_BYTES or prod(known) * type.dtype.storage.itemsize > MOST_BYTES:
        raise ValueError(f"{type} is larger than any memory (2^{MOST_BYTES.bit_length() - 1} bytes)")


@dataclass(frozen=True, slots=True)
class BufferType(ShapedType):
    """Memory of the loop level: elements of `dtype` at `offset + sum(index * stride)`, in elements.

    `space` is the name of a memory that the machine declares: "global" is that of the arguments of kernels, on every
    machine. A CPU also has "scratch" (per-thread memory, at most a few hundred KiB) and "reg" (an array that must
    become registers: every index is a constant once unrolled and vectorised).
    """

    strides: tuple[Sym, ...]
    space: str = "global"
    offset: Sym = sym(0)

    @property
    def is_dense(self) -> bool:
        """Row-major without gaps."""
        return self.strides == row_major(self.shape)

    def __str__(self) -> str:
        """`&f32[n, 4]` in global memory, `reg f32[4]` in another one."""
        space = "&" if self.space == "global" else f"{self.space} "
        layout = "" if self.is_dense else f" strides({', '.join(map(str, self.strides))})"
        start = "" if self.offset == 0 else f" offset({self.offset})"
        return f"{space}{self.dtype}[{', '.join(map(str, self.shape))}]{layout}{start}"


@dataclass(frozen=True, slots=True)
class ScalarType(Type):
    """One element; in a vector loop the code generator gives it as many lanes as it needs."""

    dtype: DType

    def __str__(self) -> str:
        return str(self.dtype)


@dataclass(frozen=True, slots=True)
class TokenType(Type):
    """What a `run` on a queue gives: whoever waits for it goes on when the run has ended."""

    def __str__(self) -> str:
        return "token"


HOST_KINDS = ("sequence", "optional", "map", "tensor", "nothing")

ANY_DIM = var("any", 0)
"""Stands in types of elements for dims that may differ from one element to the next."""


@dataclass(frozen=True, slots=True)
class HostType(Type):
    """A value that native code cannot read: a "sequence" or an "optional" of an `element`, a "map" from keys of a
    `dtype` to an `element`, or a "tensor" of a `dtype` whose rank is not known when compiling; "nothing" of a `dtype`
    is the element of a sequence that has none."""

    kind: str
    dtype: DType | None = None
    element: Type | None = None

    def __str__(self) -> str:
        parts = ", ".join(str(p) for p in (self.dtype, self.element) if p is not None)
        return f"{self.kind}({parts})"


def is_native(type: Type) -> bool:
    """May native code read a value of this type? Not strings, and nothing but tensors."""
    return isinstance(type, TensorType) and type.dtype.kind != "string"


def product(dims: Iterable[Sym]) -> Sym:
    """The product of dims; 1 for none."""
    known, total = 1, None
    for d in dims:
        if d.kind == "const":
            known *= d.value
        else:
            total = d if total is None else total * d
    return sym(known) if total is None else total * known


def row_major(shape: tuple[Sym, ...]) -> tuple[Sym, ...]:
    """Strides in elements of a dense row-major layout."""
    strides: list[Sym] = []
    step = sym(1)
    for d in reversed(shape):
        strides.append(step)
        step = step * d
    return tuple(reversed(strides))


def tensor(dtype: DType, shape: Iterable[int | Sym]) -> TensorType:
    return TensorType(dtype, tuple(sym(d) for d in shape))


def buffer(dtype: DType, shape: Iterable[int | Sym], space: str = "global") -> BufferType:
    """A dense row-major buffer."""
    dims = tuple(sym(d) for d in shape)
    return BufferType(dtype, dims, row_major(dims), space)
