"""Reductions over windows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from tilewright.frontends.stablehlo.adapters.elementwise import BINARY
from tilewright.frontends.stablehlo.adapters.reduce import combiner, is_neutral
from tilewright.frontends.stablehlo.adapters.view import padded
from tilewright.frontends.stablehlo.node import ProgramOp, adapter, custom_call
from tilewright.frontends.stablehlo.types import text_of
from tilewright.frontends.stablehlo.values import Held, as_value
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import ZERO, Sym, sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops.pool import max_pool, sum_pool
from tilewright.ops.scan import cumprod, cumsum
from tilewright.ops.source import number_like
from tilewright.ops.view import expand, reshape, shape_of, slice_, transpose

MOST_TAPS = 512
"""The largest window whose body is computed element by element."""


@dataclass(frozen=True)
class AxisWindows:
    """One entry for each axis of the operand."""

    sizes: tuple[Sym, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    apart: tuple[int, ...]
    pads: tuple[tuple[Sym, Sym], ...]

    def is_trivial(self, k: int) -> bool:
        is_plain = self.strides[k] == self.apart[k] == 1 and self.pads[k] == (ZERO, ZERO)
        return is_plain and bool(self.sizes[k] == 1)


def windows_of(node: ProgramOp, rank: int) -> AxisWindows:
    ones = (1,) * rank
    sizes = tuple(map(sym, node.integers("window_dimensions")))
    pads = tuple((sym(a), sym(b)) for a, b in node.pads(rank))
    found = AxisWindows(
        sizes, node.integers("window_strides", ones), node.integers("window_dilations", ones),
        node.integers("base_dilations", ones), pads,
    )  # fmt: skip
    return _checked(found, rank)


def _checked(windows: AxisWindows, rank: int) -> AxisWindows:
    if any(
        len(part) != rank
        for part in (windows.sizes, windows.strides, windows.dilations, windows.apart, windows.pads)
    ):
        raise ModelError(f"windows have an entry for each of {rank} axes")
    return windows


@adapter("reduce_window")
def _reduce_window(node: ProgramOp) -> Sequence[Held]:
    count = len(node.operands) // 2
    if not count:
        raise ModelError("a reduction has no operands")
    xs, inits = node.values[:count], node.values[count:]
    return _reduced(node, node.region(0), xs, inits, windows_of(node, len(shape_of(xs[0]))))


@custom_call("stablehlo.dynamic_reduce_window")
def _dynamic_reduce_window(node: ProgramOp) -> Sequence[Held]:
    """Operands tell what else attributes do: sizes, strides, base dilations, window dilations and pads."""
    count = (len(node.operands) - 5) // 2
    called = list(node.attribute("called_computations")) if node.has("called_computations") else []
    if count < 1 or len(called) != 1 or len(node.operands) != 2 * count + 5:
        raise ModelError("the call of a reduction over windows does not fit its operands")
    xs, inits = node.values[:count], node.values[count : 2 * count]
    sizes, strides, apart, dilations, pads = (node.symbols(2 * count + k) for k in range(5))
    steps, taps, between = (tuple(n.value if n.is_const else 0 for n in p) for p in (strides, dilations, apart))
    if any(n < 1 for n in (*steps, *taps, *between)):
        raise UnsupportedError("the strides of windows must be known")
    windows = AxisWindows(sizes, steps, taps, between, tuple(zip(pads[0::2], pads[1::2], strict=True)))
    function = node.importer.function_named(text_of(called[0]))
    return _reduced(node, function, xs, inits, _checked(windows, len(shape_of(xs[0]))))


def _reduced(
    node: ProgramOp, block: ir.Block, xs: Sequence[Value], inits: Sequence[Value], windows: AxisWindows
) -> Sequence[Held]:
    count = len(xs)
    if len(block.arguments) != 2 * count:
        raise ModelError("the body of a reduction does not fit its operands")
    names = [combiner(block, k, count) for k in range(count)]
    found = [_pooled(node, x, init, name, windows) for x, init, name in zip(xs, inits, names, strict=True) if name]
    if len(found) == count and all(v is not None for v in found):
        return [v for v in found if v is not None]
    return _by_taps(node, block, xs, inits, windows)


def _pooled(node: ProgramOp, x: Value, init: Value, name: str, windows: AxisWindows) -> Value | None:
    """By pooling or running sums; None where the body is of neither kind."""
    op = name.removeprefix("stablehlo.")
    dtype = type_of(x).dtype
    if dtype is dt.bool_:
        if op not in ("and", "or", "minimum", "maximum", "add", "multiply"):
            return None
        wide, first = ew.cast(x, dtype=dt.u8), ew.cast(init, dtype=dt.u8)
        is_all = op in ("and", "minimum", "multiply")
        found = _pooled(node, wide, first, f"stablehlo.{'minimum' if is_all else 'maximum'}", windows)
        return None if found is None else ew.ne(found, number_like(0, found))
    if op in ("and", "or", "xor"):
        return None
    if not is_neutral(node, init, name):  # it takes part in each window once, and at each padded place
        if any(p != (ZERO, ZERO) for p in windows.pads) or any(n != 1 for n in windows.apart):
            return None
        found = _neutral(node, x, op, windows)
        return None if found is None else BINARY[op](found, init)
    return _neutral(node, x, op, windows)


def _neutral(node: ProgramOp, x: Value, op: str, windows: AxisWindows) -> Value | None:
    if (found := _running(x, op, windows)) is not None:
        return found
    if op == "minimum":
        turn = ew.neg if type_of(x).dtype.is_float else ew.not_
        return turn(_neutral(node, turn(x), "maximum", windows))
    if op == "maximum":
        return _over_space(node, x, windows, max_pool, "maximum")
    if op == "add":
        return _over_space(node, x, windows, sum_pool, "add")
    return None


def _running(x: Value, op: str, windows: AxisWindows) -> Value | None:
    """Sums (or products) of all elements before, or behind: windows as long as the axis."""
    axes = [k for k in range(len(windows.sizes)) if not windows.is_trivial(k)]
    if len(axes) != 1 or op not in ("add", "multiply"):
        return None
    (axis,) = axes
    size = shape_of(x)[axis]
    if size != windows.sizes[axis] or windows.strides[axis] != 1 or windows.dilations[axis] != 1:
        return None
    if windows.apart[axis] != 1 or windows.pads[axis] not in ((size - 1, ZERO), (ZERO, size - 1)):
        return None
    run = cumsum if op == "add" else cumprod
    return run(x, axis=axis, reverse=windows.pads[axis] == (ZERO, size - 1))


def _over_space(node: ProgramOp, x: Value, windows: AxisWindows, pool: object, op: str) -> Value:
    """Windows along the axes behind the first two: the others are moved before these, and become two."""
    rank = len(windows.sizes)
    if any(n != 1 for n in windows.apart):
        fill = number_like(0 if op == "add" else _least(x), x)
        zeros = (sym(0),) * rank
        x = padded(node.translation, x, fill, zeros, zeros, tuple(n - 1 for n in windows.apart))
    space = [k for k in range(rank) if not windows.is_trivial(k)]
    if not space:
        return x
    others = [k for k in range(rank) if k not in space]
    order = [*others, *space]
    moved = x if order == list(range(rank)) else transpose(x, perm=tuple(order))
    outer = [shape_of(x)[k] for k in others]
    lead = (outer[0], product(outer[1:])) if outer else (sym(1), sym(1))
    moved = reshape(moved, shape=(*lead, *(shape_of(x)[k] for k in space)))
    # max_pool knows no pads below 0
    low, high = ([windows.pads[k][n] for k in space] for n in (0, 1))
    if any(p.is_const and p.value < 0 for p in (*low, *high)):
        cut = [[ZERO, ZERO, *(s.minimum(p, 0) for p in side)] for side in (low, high)]
        moved = padded(node.translation, moved, number_like(0, moved), cut[0], cut[1], (0,) * len(cut[0]))
        low, high = ([s.maximum(p, 0) for p in side] for side in (low, high))
    found = pool(  # type: ignore[operator]
        moved, kernel=tuple(windows.sizes[k] for k in space), strides=tuple(windows.strides[k] for k in space),
        pads_begin=tuple(low), pads_end=tuple(high), dilations=tuple(windows.dilations[k] for k in space),
    )  # fmt: skip
    found = reshape(found, shape=(*outer, *shape_of(found)[2:]))
    back = [order.index(k) for k in range(rank)]
    return found if back == list(range(rank)) else transpose(found, perm=tuple(back))


def _least(x: Value) -> float:
    dtype = type_of(x).dtype
    if dtype.is_float:
        return float("-inf")
    return 0 if dtype.kind == "uint" else -(1 << (dtype.bits - 1))


def _by_taps(
    node: ProgramOp, block: ir.Block, xs: Sequence[Value], inits: Sequence[Value], windows: AxisWindows
) -> Sequence[Held]:
    """The body, for each place in the window once: for all windows at the same time."""
    taps = product(windows.sizes)
    if not taps.is_const or taps.value > MOST_TAPS:
        raise UnsupportedError(
            f"windows of {taps} elements with a body other than add, multiply, minimum or maximum are not supported "
            f"(at most {MOST_TAPS})"
        )
    low, high = (tuple(p[n] for p in windows.pads) for n in (0, 1))
    between = tuple(n - 1 for n in windows.apart)
    wide = [padded(node.translation, x, i, low, high, between) for x, i in zip(xs, inits, strict=True)]
    counts = tuple(
        (d - (n - 1) * k - 1) // step + 1
        for d, n, k, step in zip(
            shape_of(wide[0]), windows.sizes, windows.dilations, windows.strides, strict=True
        )
    )
    rows = [expand(i, shape=counts) if counts else i for i in inits]
    for place in itertools.product(*(range(n.value) for n in windows.sizes)):
        starts = tuple(p * k for p, k in zip(place, windows.dilations, strict=True))
        parts = [slice_(x, starts=starts, sizes=counts, steps=windows.strides) for x in wide]
        rows = [as_value(v) for v in node.written(block, [*rows, *parts])]
    return rows


@adapter("select_and_scatter")
def _select_and_scatter(node: ProgramOp) -> Held:
    raise UnsupportedError("gradients of pooling are not supported", hint="export the model without its training step")


