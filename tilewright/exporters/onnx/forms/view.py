"""What only moves elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilewright.exporters.onnx.forms.registry import form
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op
from tilewright.ir.sym import Sym, lt, sym
from tilewright.ir.types import product
from tilewright.ops.define import OPERATORS

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter

_TO_THE_END = np.iinfo(np.int64).max
_TO_THE_BEGINNING = np.iinfo(np.int64).min


@form("copy")
def copy(w: OnnxWriter, op: Op) -> str:
    return w.node("Identity", w.name(op.operands[0]))


@form("transpose")
def transpose(w: OnnxWriter, op: Op) -> str:
    rank = len(op.attrs["perm"])
    perm = [axis % rank for axis in op.attrs["perm"]]
    if perm == list(range(rank)):
        return w.name(op.operands[0])
    return w.node("Transpose", w.name(op.operands[0]), perm=perm)


@form("reshape")
def reshape(w: OnnxWriter, op: Op) -> str:
    """One dim is left to ONNX, where the others are known and not 0; others that stay where they are are said by 0."""
    (x,) = op.operands
    old, new = x.tensor.shape, tuple(map(sym, op.attrs["shape"]))
    if old == new:
        return w.name(x)
    return reshaped(w, w.name(x), old, new)


def reshaped(w: OnnxWriter, x: str, old: Sequence[Sym], new: Sequence[Sym]) -> str:
    """A tensor of one shape under another one."""
    if (put := _ones_among(old, new)) is not None:
        return w.node("Unsqueeze", x, w.ints(put))
    if (taken := _ones_among(new, old)) is not None:
        return w.node("Squeeze", x, w.ints(taken))
    if any(d == 0 for d in new):
        return w.node("Reshape", x, w.dims(new), allowzero=1)
    kept = [k < len(old) and old[k] == d and not d.is_const for k, d in enumerate(new)]
    unknown = [k for k, d in enumerate(new) if not d.is_const and not kept[k]]
    may_be_left = len(unknown) == 1 and not any(kept)
    if not unknown and sum(kept) == 1:
        unknown, kept, may_be_left = [kept.index(True)], [False] * len(new), True
    if not unknown or may_be_left or (len(unknown) == 1 and _is_never_empty(new, unknown)):
        dims = [-1 if k in unknown else 0 if kept[k] else d.value for k, d in enumerate(new)]
        return w.node("Reshape", x, w.ints(dims))
    return w.node("Reshape", x, w.dims(new), allowzero=1)


def _ones_among(few: Sequence[Sym], many: Sequence[Sym]) -> list[int] | None:
    """The axes of one element that `many` has beside those of `few`; None where that is not the difference."""
    found: list[int] = []
    place = 0
    for axis, d in enumerate(many):
        if place < len(few) and few[place] == d:
            place += 1
        elif d == 1:
            found.append(axis)
        else:
            return None
    return found if place == len(few) and found else None


def _is_never_empty(shape: Sequence[Sym], left_out: Sequence[int]) -> bool:
    others = product(d for k, d in enumerate(shape) if k not in left_out)
    return (others.bounds[0] or 0) > 0


@form("stretch")
def stretch(w: OnnxWriter, op: Op) -> str | None:
    """Operators that broadcast do so by themselves."""
    operators = [OPERATORS.get(user.name) for user in op.result.users if user.name != "expand"]
    broadcast = [o for o in operators if o is not None and o.targets is not None]
    is_needless = 0 < len(broadcast) == len(op.result.users)
    return w.name(op.operands[0]) if is_needless else None


@form("expand", "stretch")
def expand(w: OnnxWriter, op: Op) -> str:
    (x,) = op.operands
    old, new = x.tensor.shape, tuple(map(sym, op.attrs["shape"]))
    if old == new:
        return w.name(x)
    own = (*[None] * (len(new) - len(old)), *old)
    return w.node("Expand", w.name(x), w.dims([sym(1) if a == d else d for a, d in zip(own, new, strict=True)]))


@form("slice")
def slice_(w: OnnxWriter, op: Op) -> str:
    (x,) = op.operands
    shape, rank = x.tensor.shape, x.tensor.rank
    steps = tuple(op.attrs["steps"]) or (1,) * rank
    axes, starts, ends = [], [], []
    for axis, (d, start, size, step) in enumerate(
        zip(shape, map(sym, op.attrs["starts"]), map(sym, op.attrs["sizes"]), steps, strict=True)
    ):
        if start == 0 and size == d and step == 1:
            continue
        axes.append(axis)
        end = start + size * step
        starts.append(sym(-1) if start == d - 1 and not d.is_const else start)
        if step > 0:
            ends.append(sym(_TO_THE_END) if end == d and not d.is_const else end)
        elif end.is_const:
            ends.append(sym(_TO_THE_BEGINNING) if end.value < 0 else end)
        else:  # what is below 0 counts from the end, unless it is far below
            ends.append(end - (1 << 40) * lt(end, 0))
    if not axes:
        return w.name(x)
    chosen = [steps[axis] for axis in axes]
    given = w.ints(chosen) if chosen != [1] * len(chosen) else ""
    return w.node("Slice", w.name(x), w.dims(starts), w.dims(ends), w.ints(axes), given)


@form("reverse")
def reverse(w: OnnxWriter, op: Op) -> str:
    (x,) = op.operands
    axes = sorted({axis % x.tensor.rank for axis in op.attrs["axes"]})
    if not axes:
        return w.name(x)
    last, ends = w.ints([-1] * len(axes)), w.ints([_TO_THE_BEGINNING] * len(axes))
    return w.node("Slice", w.name(x), last, ends, w.ints(axes), last)


@form("concat")
def concat(w: OnnxWriter, op: Op) -> str:
    if len(op.operands) == 1:
        return w.name(op.operands[0])
    return w.node("Concat", *map(w.name, op.operands), axis=op.attrs["axis"] % op.result.tensor.rank)


_SINCE = {"constant": 1, "edge": 1, "reflect": 1, "wrap": 19}


@form("pad")
def pad(w: OnnxWriter, op: Op) -> str | None:
    (x,), mode = op.operands, op.attrs["mode"]
    before, after = (tuple(map(sym, op.attrs[name])) for name in ("before", "after"))
    if all(p == 0 for p in (*before, *after)):
        return w.name(x)
    if w.opset < _SINCE[mode] or (mode != "constant" and not _is_plain(mode, x.tensor.shape, before, after)):
        return None
    return padded(w, w.name(x), before, after, mode, op.attrs["value"], x.tensor.dtype)


def padded(
    w: OnnxWriter, x: str, before: Sequence[Sym], after: Sequence[Sym], mode: str, value: float, dtype: dt.DType
) -> str:
    """A tensor with more elements at its ends."""
    number = w.number(value, dtype) if mode == "constant" and value != 0 else ""
    return w.node("Pad", x, w.dims([*before, *after]), number, mode=mode if mode != "constant" else None)


def _is_plain(mode: str, shape: Sequence[Sym], before: Sequence[Sym], after: Sequence[Sym]) -> bool:
    """Whether elements are repeated no more than once, and none are left out."""
    for d, b, a in zip(shape, before, after, strict=True):
        for p in (b, a):
            if p.bounds[0] is None or p.bounds[0] < 0:
                return False
            room = d - p - (1 if mode == "reflect" else 0)
            if p != 0 and mode != "edge" and (room.bounds[0] is None or room.bounds[0] < 0):
                return False
    return True
