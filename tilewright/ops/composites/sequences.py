"""Sequences and optionals, which only the host has, but where it is known when compiling what is in them.

A sequence is known by its elements where it is the result of the host function `sequence`: then its elements are the
operands of that, and nothing that is done with them needs the sequence itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from tilewright.ir.core import Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import ANY_DIM, HostType, TensorType, Type
from tilewright.ops.define.staged import HOST, host


def elements_of(value: Value) -> tuple[Value, ...] | None:
    """The elements of a sequence, or those of an optional (at most one), where they are known."""
    op = value.op
    if op is None or op.name != HOST or op.attrs["function"] not in ("sequence", "optional"):
        return None
    return op.operands


def element_of(value: Value) -> Type:
    """The type of the elements of a sequence or an optional."""
    assert isinstance(value.type, HostType) and value.type.element is not None
    return value.type.element


def sequence(elements: Sequence[Value], empty: Type | None = None) -> Value:
    """The sequence of these values; `empty` is the type of elements of one that has none."""
    types = [general(v.type) for v in elements]
    element = reduce(joined, types) if types else empty
    return host("sequence", elements, [HostType("sequence", None, element)])[0]


def optional(value: Value | None, empty: Type | None = None) -> Value:
    """An optional that holds a value, or none of the type `empty`."""
    element = empty if value is None else general(value.type)
    return host("optional", [] if value is None else [value], [HostType("optional", None, element)])[0]


def general(type: Type) -> Type:
    """The type of an element whose type is `type`, of which other elements may differ in the dims that are no
    numbers."""
    if not isinstance(type, TensorType):
        return type
    return TensorType(type.dtype, tuple(d if d.is_const else ANY_DIM for d in type.shape))


def joined(a: Type, b: Type) -> Type:
    """The type of elements of which some are of type `a` and others of type `b`, both general; ValueError where one
    sequence cannot have both."""
    if a == b:
        return a
    for x, y in ((a, b), (b, a)):
        if isinstance(x, HostType) and x.kind == "nothing" and x.dtype == getattr(y, "dtype", None):
            return y
        if _is_optional(x) and not _is_optional(y):  # the host has an optional as the value, or None
            assert isinstance(x, HostType) and x.element is not None
            return HostType("optional", None, joined(x.element, y))
    if isinstance(a, HostType) and isinstance(b, HostType) and a.kind == b.kind and a.element and b.element:
        if a.dtype == b.dtype:
            return HostType(a.kind, a.dtype, joined(a.element, b.element))
    elif isinstance(a, TensorType | HostType) and isinstance(b, TensorType | HostType) and a.dtype == b.dtype:
        if isinstance(a, TensorType) and isinstance(b, TensorType) and a.rank == b.rank:
            dims = (d if d == e else ANY_DIM for d, e in zip(a.shape, b.shape, strict=True))
            return TensorType(a.dtype, tuple(dims))
        if a.dtype is not None:
            return HostType("tensor", a.dtype)
    raise ValueError(f"the elements of a sequence are {a} and {b}")


def _is_optional(type: Type) -> bool:
    return isinstance(type, HostType) and type.kind == "optional"


def single(new_size: Callable[[], Sym], element: Type) -> Type:
    """The type of one element, with a new dim where elements differ."""
    if not isinstance(element, TensorType):
        return element
    shape = (new_size() if d is ANY_DIM else d for d in element.shape)
    return TensorType(element.dtype, tuple(shape))
