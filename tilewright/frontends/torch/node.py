"""What an adapter is given: the node's place, the types that PyTorch says it gives, and what is known of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.frontends.node import TranslatedNode
from tilewright.frontends.translation import Translation, type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.source import dim_value
from tilewright.ops.view import shape_of

Number = int | float | bool | Sym
"""What ATen calls a Scalar; a Sym where it is computed from sizes."""

_ORDER = [
    dt.bool_,
    dt.u8,
    dt.i8,
    dt.i16,
    dt.u16,
    dt.i32,
    dt.u32,
    dt.i64,
    dt.u64,
    dt.f16,
    dt.bf16,
    dt.f32,
    dt.f64,
]


class AtenNode(TranslatedNode):
    """One call of an operator. `result` is what PyTorch says of its result: a fake tensor, a number, or a list;
    `operands` what it says of the positional arguments."""

    scalars_have_an_axis = True

    def __init__(
        self,
        name: str,
        op: str,
        result: Any,
        translation: Translation,
        size: Callable[[Any], Sym],
        bodies: Callable[[Any], Callable[..., tuple[Value, ...]]],
    ) -> None:
        self.name, self.op, self.result, self.translation = name, op, result, translation
        self.operands: tuple[Any, ...] = ()
        self._size, self._bodies = size, bodies

    # What PyTorch says

    @property
    def dtype(self) -> DType:
        """The element type of the result, or of the first of them; of complex numbers that of their parts."""
        result = self.result[0] if isinstance(self.result, tuple | list) else self.result
        if hasattr(result, "dtype"):
            from tilewright.frontends.torch.tensors import (
                part_of,  # imports torch, without which adapters are listed
            )

            return part_of(result.dtype)
        raise UnsupportedError(f"{self.op} gives no tensor")

    def dtype_named(self, dtype: Any) -> DType:
        """Our name of an element type of PyTorch's."""
        from tilewright.frontends.torch.tensors import dtype_of

        return dtype_of(dtype)

    @property
    def is_complex(self) -> bool:
        """Whether the result, or the first of them, is complex."""
        result = self.result[0] if isinstance(self.result, tuple | list) else self.result
        return bool(result.dtype.is_complex)

    @property
    def shape(self) -> tuple[Sym, ...]:
        """The shape of the result, or of the first of them."""
        result = self.result[0] if isinstance(self.result, tuple | list) else self.result
        return tuple(map(self._size, result.shape))

    def size(self, size: Any) -> Sym:
        """A size in what PyTorch says as ours."""
        return self._size(size)

    def body(self, graph: Any) -> Callable[..., tuple[Value, ...]]:
        """A subgraph as a function that translates it in place."""
        return self._bodies(graph)

    # Operands

    def value(self, x: Value | Number, dtype: DType) -> Value:
        """An operand as a tensor of a dtype: numbers become scalars."""
        if isinstance(x, Value):
            return x if type_of(x).dtype is dtype else ew.cast(x, dtype=dtype)
        if isinstance(x, Sym):
            if not x.is_const:
                return self.value(dim_value(x), dtype)
            x = x.value
        with np.errstate(over="ignore", invalid="ignore"):
            return constant(np.array(x).astype(dtype.storage), "")

    def promoted(self, *operands: Value | Number | None) -> list[Value]:
        """The operands in the dtype that the operator computes in: that of its result, or where that is bool, the one
        which the operands have in common."""
        given = [x for x in operands if x is not None]
        dtype = self.dtype
        if dtype is dt.bool_:
            dtype = self.common(given)
        return [self.value(x, dtype) for x in given]

    def common(self, operands: Sequence[Value | Number]) -> DType:
        """The dtype that operands are promoted to: tensors with axes decide among those of one kind (bool, integer,
        float), then scalar tensors, then numbers (torch.result_type)."""
        stages = ([], [], [])  # type: tuple[list[DType], list[DType], list[DType]]
        for x in operands:
            if isinstance(x, Value):
                stages[0 if shape_of(x) else 1].append(type_of(x).dtype)
            else:
                kind = dt.bool_ if isinstance(x, bool) else dt.i64 if isinstance(x, int | Sym) else dt.f32
                stages[2].append(kind)
        found: DType | None = None
        for dtypes in stages:
            best = _joined(dtypes)
            if best is not None and (found is None or _kind(best) > _kind(found)):
                found = best
        assert found is not None
        return found

    # What is known now

    def constant_or_none(self, x: Value) -> np.ndarray | None:
        return self.translation.constant_of(x)

    def symbols(self, x: Value) -> tuple[Sym, ...]:
        """The elements of a small integer tensor as Syms, measured when it has been computed where they depend on
        data."""
        return tuple(self.measured(x, f"the values of '{x.name}'").reshape(-1))

    def axes(
        self, axes: Sequence[int] | int | None, rank: int, *, empty_is_all: bool = True
    ) -> tuple[int, ...]:
        """The axes counted from 0, in order; all where none are given."""
        if axes is None or (empty_is_all and not isinstance(axes, int) and not axes):
            return tuple(range(rank))
        listed = (axes,) if isinstance(axes, int) else axes
        return tuple(sorted({self.axis(int(a), rank) for a in listed})) if rank else ()

    def refuse(self, what: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(f"{self.op}: {what}", hint=hint or None)


def whole(x: Number) -> Sym:
    """A number of ATen's that must be an integer."""
    return x if isinstance(x, Sym) else sym(int(x))


def _kind(d: DType) -> int:
    return 2 if d.is_float else 1 if d.is_int else 0


def _joined(dtypes: Sequence[DType]) -> DType | None:
    """The smallest dtype that PyTorch promotes all of these to; None of none."""
    found: DType | None = None
    for d in dtypes:
        if found is None or found is d:
            found = d
        else:
            pair = {found, d}
            if pair == {dt.f16, dt.bf16}:
                found = dt.f32
            elif pair == {dt.u8, dt.i8}:
                found = dt.i16
            else:
                found = max(found, d, key=_rank)
    return found


def _rank(d: DType) -> int:
    return _ORDER.index(d) if d in _ORDER else -1
