"""Gathers whose indices are known when compiling: slices, or runs of elements that lie beside one another.

PyTorch's `as_strided`, which ONNX has not, is exported as a gather of single elements from a tensor of one axis, with
an index for each of them that is a sum of constants.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from tilewright.cost.data_movement import LEAST_RUN
from tilewright.graph.match import shape_of, type_of
from tilewright.ir.core import Builder, Module, Op, Value
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, constant_array, rule
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.ops.view import reshape, slice_

MOST_INDICES = 1 << 20
"""Indices of which each is looked at when compiling: some milliseconds."""
MOST_TERMS = 8
"""Constants that are looked for in a sum of indices: an axis of a view has one."""


@rule("gather")
def gather_of_a_range(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """Indices that count up in equal steps are a slice."""
    x, _ = op.operands
    axis = op.attrs["axis"] % type_of(x).rank
    found = _known_indices(op, ctx.module)
    if found is None or found.ndim != 1 or found.size < 2:
        return None
    step = int(found[1]) - int(found[0])
    if step < 1 or not np.array_equal(found, found[0] + step * np.arange(found.size)):
        return None
    shape = shape_of(x)
    return slice_(
        x,
        starts=tuple(int(found[0]) if k == axis else 0 for k in range(len(shape))),
        sizes=tuple(found.size if k == axis else d for k, d in enumerate(shape)),
        steps=tuple(step if k == axis else 1 for k in range(len(shape))),
    )


@rule("gather")
def gather_of_runs(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """Single elements of which several lie beside one another wherever the last axis of the indices begins anew: one
    index for each run of them, so that rows are moved, and lanes need no index."""
    x, indices = op.operands
    shape, counts = shape_of(x), shape_of(indices)
    axis = op.attrs["axis"] % len(shape)
    if axis != len(shape) - 1 or not counts or not counts[-1].is_const or counts[-1].value < LEAST_RUN:
        return None
    if not shape[axis].is_const:
        return None
    starts = _starts(indices, ctx.module)
    if starts is None:
        return None
    size, count = shape[axis].value, counts[-1].value
    starts = np.where(starts < 0, starts + size, starts)
    if starts.size == 0 or starts.min() < 0 or starts.max() + count > size:
        return NoMatch("an index is out of range")
    run = int(np.gcd.reduce(starts, axis=None, initial=np.gcd(size, count)))
    if run < LEAST_RUN:
        return NoMatch(f"runs of {count} elements begin at places that have no common factor of {LEAST_RUN} or more")
    rows = starts // run + np.arange(count // run)
    if rows.size > MOST_INDICES:
        return NoMatch(f"there are more than {MOST_INDICES} runs")
    known = constant(rows.astype(type_of(indices).dtype.storage), "runs")
    found = gather(reshape(x, shape=(*shape[:axis], size // run, run)), known, axis=axis, in_range=True)
    return reshape(found, shape=shape_of(op.result))


def _known_indices(op: Op, module: Module) -> np.ndarray | None:
    """The indices of a gather as positions from the beginning, where all are known and in range."""
    x, indices = op.operands
    array = constant_array(indices, module)
    size = shape_of(x)[op.attrs["axis"] % type_of(x).rank]
    if array is None or not size.is_const or not 0 < array.size <= MOST_INDICES:
        return None
    wide = array.astype(np.int64)
    wide = np.where(wide < 0, wide + size.value, wide)
    return wide if wide.min() >= 0 and wide.max() < size.value else None


def _starts(indices: Value, module: Module) -> np.ndarray | None:
    """The first index of each line of the last axis, [..., 1], where all indices are known and those of a line count up
    by one."""
    terms = _terms(indices, module)
    if terms is None:
        return None
    count = shape_of(indices)[-1].value
    along = [t for t in terms if t.shape[-1:] not in ((), (1,))]
    across = [t for t in terms if t.shape[-1:] in ((), (1,))]
    for group in (along, [*across, *(t[..., :1] for t in along)]):
        if np.prod(np.broadcast_shapes((), *(t.shape for t in group))) > MOST_INDICES:
            return None
    lines = reduce(np.add, along, np.zeros(1, np.int64))
    if lines.shape[-1] != count or not np.array_equal(
        lines - lines[..., :1], np.broadcast_to(np.arange(count), lines.shape)
    ):
        return None
    starts = reduce(np.add, across, lines[..., :1])
    lead = [d.value for d in shape_of(indices)[:-1] if d.is_const]
    return np.broadcast_to(starts, (*lead, 1)) if len(lead) == type_of(indices).rank - 1 else None


def _terms(value: Value, module: Module) -> list[np.ndarray] | None:
    """The few constants whose sum a value is."""
    found: list[np.ndarray] = []
    pending = [value]
    while pending and len(found) + len(pending) <= MOST_TERMS:
        term = pending.pop()
        array = constant_array(term, module)
        if array is not None:
            found.append(array.astype(np.int64))
        elif term.op is not None and term.op.name == "add":
            pending += term.op.operands
        else:
            return None
    return None if pending else found


GATHER_RULES = (gather_of_a_range, gather_of_runs)
