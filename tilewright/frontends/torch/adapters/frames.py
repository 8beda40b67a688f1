"""Frames of a signal: windows of some elements, a step apart, and what they add up to where they overlap."""

from __future__ import annotations

from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.index import gather, scatter_elements
from tilewright.ops.reduce import dtype_of
from tilewright.ops.source import dim_value, full, iota
from tilewright.ops.view import concat, expand, pad, reshape, shape_of, slice_

MOST_PIECES = 32
"""The most steps of a frame that are copied, or added, piece by piece."""


def frames_of(x: Value, size: Sym, step: Sym) -> Value:
    """[batch, time] -> [batch, frames, size], as many as there are without padding."""
    batch, time = shape_of(x)
    count = s.floordiv(time - size, step) + 1
    pieces = _pieces(size, step)
    if pieces is None:
        return gather(x, _places(count, size, step), axis=1)
    # As rows of one step each: a frame is some rows, and the beginning of one more.
    rows = count + pieces - 1
    x = _fitted(x, rows * step)
    lines = reshape(x, shape=(batch, rows, step))
    parts = [_part(lines, (0, k, 0), (batch, count, s.minimum(step, size - k * step))) for k in range(pieces)]
    return concat(*parts, axis=2) if len(parts) > 1 else parts[0]


def overlapped(x: Value, step: Sym) -> Value:
    """[batch, frames, size] -> [batch, time]: the sums of what frames have at each time."""
    batch, count, size = shape_of(x)
    time = (count - 1) * step + size
    pieces = _pieces(size, step)
    if pieces is None:
        places = reshape(_places(count, size, step), shape=(1, count * size))
        nothing = full(value=0, dtype=dtype_of(x), shape=(batch, time))
        elements = reshape(x, shape=(batch, count * size))
        return scatter_elements(nothing, expand(places, shape=(batch, count * size)), elements, axis=1, reduction="add")
    found: Value | None = None
    for k in range(pieces):
        width = s.minimum(step, size - k * step)
        rows = _part(x, (0, 0, k * step), (batch, count, width))
        after = (sym(0), sym(pieces - 1 - k), step - width)
        wide = pad(rows, before=(sym(0), sym(k), sym(0)), after=after) if pieces > 1 or after[2] != 0 else rows
        found = wide if found is None else ew.add(found, wide)
    assert found is not None
    return _fitted(reshape(found, shape=(batch, (count + pieces - 1) * step)), time)


def _pieces(size: Sym, step: Sym) -> int | None:
    """How many steps a frame takes, where that is known and not too many."""
    if not (size.is_const and step.is_const):
        return None
    pieces = -(-size.value // step.value)
    return pieces if pieces <= MOST_PIECES else None


def _places(count: Sym, size: Sym, step: Sym) -> Value:
    first = ew.mul(iota(shape=(count, 1), axis=0), dim_value(step))
    return ew.add(first, iota(shape=(1, size), axis=1))


def _part(x: Value, starts: tuple[Sym | int, ...], sizes: tuple[Sym, ...]) -> Value:
    if shape_of(x) == sizes:
        return x
    return slice_(x, starts=tuple(map(sym, starts)), sizes=sizes, steps=(1,) * len(sizes))


def _fitted(x: Value, time: Sym) -> Value:
    """The first elements, or zeros behind them."""
    batch, own = shape_of(x)
    extra = s.maximum(time - own, 0)
    if extra != 0:
        x = pad(x, before=(sym(0), sym(0)), after=(sym(0), extra))
    return _part(x, (0, 0), (batch, time))


