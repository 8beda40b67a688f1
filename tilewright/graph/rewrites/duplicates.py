"""Common subexpressions: of ops that compute the same from the same, one is kept."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.ir.core import Func, Module, Op
from tilewright.ops.traits.derive import traits_of
from tilewright.passes import PassContext

COMPARED_BYTES = 1 << 16
"""Constants of up to this many bytes are equal when their bytes are; larger ones when they are one array."""

SAMPLED = 4
"""Elements of a constant that are compared before all are."""

IMPURE = frozenset({"return", "yield", "fused"})
"""Ops that are never merged."""


@dataclass(frozen=True)
class MergeDuplicates:
    """Keep one of equal ops."""

    name: ClassVar[str] = "duplicates"

    def run(self, module: Module, ctx: PassContext) -> None:
        merge_duplicates(module.main, module)


def merge_duplicates(func: Func, module: Module) -> int:
    """Make readers of equal ops of the function's body read the first; return how many ops became dead."""
    alone: dict[Hashable, Op | None] = {}  # by what is quickly read; None where the exact keys are in `seen`
    seen: dict[Hashable, Op] = {}
    merged = 0
    for op in func.body.ops:
        if op.name in IMPURE or op.blocks or not op.results:
            continue
        rough = _rough_key(op, module)
        other = alone.setdefault(rough, op)
        if other is op:
            continue
        if other is not None:
            seen[_key(other, module)], alone[rough] = other, None
        first = seen.setdefault(_key(op, module), op)
        if first is op or not any(v.users for v in op.results):
            continue
        for old, new in zip(op.results, first.results, strict=True):
            old.replace_by(new)
        if traits_of(op).sums_products:  # reports tell of each of their nodes
            first.loc = first.loc.joined(op.loc)
        merged += 1
    return merged


def _rough_key(op: Op, module: Module) -> Hashable:
    """A key that equal ops share; few others do."""
    if op.name == "constant":
        array = module.constants[op.attrs["name"]]
        return "constant", array.dtype, array.shape, _sample(array)
    return op.name, tuple(map(id, op.operands))


def _sample(array: np.ndarray) -> bytes:
    """Some of the elements, where they are quickly read."""
    return array.reshape(-1)[:SAMPLED].tobytes() if array.flags.c_contiguous and array.dtype.kind != "O" else b""


def _key(op: Op, module: Module) -> Hashable:
    if op.name == "constant":
        array = module.constants[op.attrs["name"]]
        if array.nbytes > COMPARED_BYTES or array.dtype.kind == "O":
            return "constant", id(array)
        return "constant", array.dtype.str, str(array.dtype), array.shape, array.tobytes()
    attrs = tuple(sorted((name, _comparable(value)) for name, value in op.attrs.items()))
    return op.name, tuple(map(id, op.operands)), repr([str(v.type) for v in op.results]), attrs


def _comparable(attr: Any) -> str:
    """Text that is equal for equal attributes only: 0.0, -0.0, 0 and False all differ."""
    if isinstance(attr, tuple | list):
        return f"({', '.join(map(_comparable, attr))})"
    if isinstance(attr, np.ndarray):
        return f"{attr.dtype}{attr.shape}{attr.tobytes().hex()}"
    return f"{type(attr).__name__}:{attr!r}"
