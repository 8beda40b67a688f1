"""What an operator gives as a view of its operand, where it shows elements of it at equal distances: what moves
elements costs nothing then."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.ir.core import Op
from tilewright.ir.sym import ZERO, Sym
from tilewright.ir.symbolic.interval import Interval
from tilewright.ir.symbolic.node import interval_of
from tilewright.ops.define.bodies import Env, dims_of
from tilewright.ops.define.operator import OPERATORS


def view_of(op: Op, array: np.ndarray, env: Env) -> np.ndarray | None:
    """The result of an op of one operand as a view of it, or of a copy in order, which nobody may write to. None where
    elements are computed, padded or read beyond the operand, or lie at uneven distances."""
    operator = OPERATORS.get(op.name)
    if operator is None or operator.kind != "primitive" or not array.size:
        return None
    computation = operator.compute([v.tensor for v in op.operands], op.attrs)
    first, *others = computation.body.ops
    if first.name != "load" or first.attrs.get("guard") or computation.combine or computation.tiles:
        return None
    if len(others) != 1 or others[0].operands != (first.result,) or computation.dtype != op.operands[0].tensor.dtype:
        return None
    shape = dims_of((extent for _, extent in computation.axes), env)
    extents = {axis.name: n for (axis, _), n in zip(computation.axes, shape, strict=True)}
    index = [_known(e, env, extents) for e in first.attrs["idx"]]
    if 0 in shape or any(e is None for e in index):
        return None
    known = [e for e in index if e is not None]
    if (found := _view(known, array, extents)) is not None or array.flags.c_contiguous:
        return found
    return _view(known, np.ascontiguousarray(array), extents)


def _known(e: Sym, env: Env, extents: Mapping[str, int]) -> Sym | None:
    """An index with numbers for all but the axes; None where one is not known, or is one for each element."""
    numbers = {v: env.get(v.name) for v in e.vars if v.name not in extents}
    if not all(type(n) is int for n in numbers.values()):
        return None
    return e.subs({v: n for v, n in numbers.items() if type(n) is int})


def _view(index: list[Sym], array: np.ndarray, extents: Mapping[str, int]) -> np.ndarray | None:
    def reach(e: Sym) -> Interval:
        return (0, extents[e.name] - 1) if e.kind == "var" else interval_of(e, reach)

    place: Sym = ZERO
    for e, n, stride in zip(index, array.shape, array.strides, strict=True):
        low, high = reach(e)
        if low < 0 or high >= n:
            return None
        place = place + e * stride
    steps = dict.fromkeys(extents, 0)
    for part, times in place.terms:
        if part.kind == "var":
            steps[part.name] += times
        elif not part.is_const:
            return None
    begin = tuple(slice(int(e.evaluate(dict.fromkeys(extents, 0))), None) for e in index)
    strides = tuple(steps.values())
    return np.lib.stride_tricks.as_strided(array[begin], tuple(extents.values()), strides, writeable=False)
