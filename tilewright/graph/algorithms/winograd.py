"""Which convolutions are computed by Winograd's algorithm: where it saves time (`cost/conv/winograd.py`) and its error
is small enough. The outcome is a remark for each layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.cost.conv.winograd import Algorithm, ConvShape, choose_for_images, cycles_saved
from tilewright.cost.typical import TypicalSizes, typical_sizes
from tilewright.graph.match import dtype_of, shape_of, type_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op, Value, replace_in_block
from tilewright.ir.rewrite import defining
from tilewright.ir.sym import Sym, sym
from tilewright.ops.cook_toom import tile_lengths
from tilewright.ops.define import constant
from tilewright.ops.winograd import (
    LARGEST,
    transformed_filters,
    winograd_input,
    winograd_output,
    winograd_product,
)
from tilewright.passes import PassContext

MOST_GROWTH = 5.0
"""Rounding errors at most, as a multiple of those of the direct sum: what tiles of 4x4 results of 3x3 filters have,
with which whole networks stay within a few times the error that they have without the algorithm
(docs/decisions/0012-winograd.md)."""


@dataclass(frozen=True)
class Winograd:
    """Compute convolutions of blocked channels, stride 1, by Winograd's algorithm where that is faster."""

    name: ClassVar[str] = "winograd"

    def run(self, module: Module, ctx: PassContext) -> None:
        if ctx.target is None:
            ctx.remark(self.name, "convolutions", "the machine is not known")
            return
        all_weights = sum(array.nbytes for array in module.constants.values())
        typical = typical_sizes(type_of(v) for v in module.main.args)
        ops: list[Op] = []
        for op in module.main.body.ops:
            ops.append(op)
            conv = _candidate(op, module)
            if conv is None:
                continue
            choice = Algorithm((), "its roundings differ from those of the direct sum")
            if conv.cannot_be_cut:
                choice = Algorithm((), conv.cannot_be_cut)
            elif not ctx.strict:
                tiles = tile_lengths(conv.taps, MOST_GROWTH)
                shapes = conv.shapes(typical)
                choice = choose_for_images(shapes, tiles, ctx.target, all_weights)
                if choice.m:
                    ctx.saved[op.loc] = cycles_saved(shapes, choice.m, ctx.target, all_weights)
                if choice.m and op.loc in ctx.direct:
                    choice = Algorithm((), "the direct sum is computed by rows, which takes less memory")
            direct = f"; tiles with numbers beyond {LARGEST:.0f} are summed directly" if choice.m else ""
            ctx.remark(self.name, f"conv {op.loc}", choice.reason + direct, applied=bool(choice.m))
            if choice.m:
                ops += _replace(conv, choice.m, module)
        if len(ops) > len(module.main.body.ops):
            replace_in_block(module.main.body, ops)
            drop_dead(module)


@dataclass(frozen=True, eq=False)
class _Conv:
    """A convolution that may be replaced: its data without padding, the filters, the padding before and after each
    axis."""

    op: Op
    x: Value
    filters: np.ndarray
    before: tuple[Sym, ...]
    after: tuple[Sym, ...]

    def shapes(self, typical: TypicalSizes) -> list[ConvShape]:
        """The shape; several typical ones where not all extents are known."""
        outputs, inputs = self.filters.shape[:2]
        images, _, *space, block = shape_of(self.op.result)
        return [
            ConvShape(n, tuple(extents), self.taps, inputs, outputs, block.value)
            for n, *extents in typical.of([images, *space])
        ]

    @property
    def cannot_be_cut(self) -> str:
        """Why bands cannot be made of tiles whose number is not known; "" where they can: a row of tiles is too few of
        one line, and nothing is proved of those of a volume."""
        space = shape_of(self.op.result)[2:-1]
        if all(d.is_const for d in space):
            return ""
        if len(space) > 2:
            return "its tiles are of a volume of unknown size, which is not cut into bands"
        is_line = all(n == 1 for n in self.taps[:-1])
        return "its tiles are of one line, of unknown length, which is not cut into bands" if is_line else ""

    @property
    def taps(self) -> tuple[int, ...]:
        return self.filters.shape[2:]


def _candidate(op: Op, module: Module) -> _Conv | None:
    """A float32 convolution of whole blocks of channels, with several taps, stride and dilation 1, in one group."""
    if op.name != "conv_blocked" or op.attrs["groups"] != 1:
        return None
    x, w = op.operands
    if type_of(x).rank == type_of(w).rank:  # of few channels, which are read plain
        return None
    if w.op is None or w.op.name != "constant" or dtype_of(w) != dt.f32:
        return None
    filters = module.constants[w.op.attrs["name"]]
    rank = filters.ndim - 2
    if all(n == 1 for n in filters.shape[2:]) or any(n % op.attrs["block"] for n in filters.shape[:2]):
        return None
    if any(n != 1 for n in (*op.attrs["strides"], *op.attrs["dilations"])):
        return None
    before = tuple(map(sym, op.attrs["pads_begin"])) or (sym(0),) * rank
    after = tuple(map(sym, op.attrs["pads_end"])) or (sym(0),) * rank
    x, more_before, more_after = _without_padding(x)
    return _Conv(
        op, x, filters,
        tuple(a + b for a, b in zip(before, more_before, strict=True)),
        tuple(a + b for a, b in zip(after, more_after, strict=True)),
    )  # fmt: skip


def _without_padding(x: Value) -> tuple[Value, tuple[Sym, ...], tuple[Sym, ...]]:
    """The data before a `pad` with zeros of its spatial axes, and what that adds before and after each."""
    nothing = (sym(0),) * (len(shape_of(x)) - 3)
    padded = defining(x, "pad")
    if padded is None or padded.attrs["mode"] != "constant" or padded.attrs["value"] != 0:
        return x, nothing, nothing
    before, after = (tuple(map(sym, padded.attrs[side])) for side in ("before", "after"))
    others = (*before[:2], *after[:2], before[-1], after[-1])
    if any(p != 0 for p in others) or any((p.bounds[0] or -1) < 0 for p in (*before, *after) if p != 0):
        return x, nothing, nothing
    return padded.operands[0], before[2:-1], after[2:-1]


def _replace(conv: _Conv, m: tuple[int, ...], module: Module) -> list[Op]:
    """The ops that compute the convolution for all who read it, to be put in its place."""
    op = conv.op
    attrs: dict[str, Any] = {"m": m, "taps": conv.taps}
    emitted = Block()
    with Builder(emitted, module, op.loc):
        u = constant(transformed_filters(conv.filters, m), "w.winograd")
        points = winograd_input(conv.x, pads_begin=conv.before, pads_end=conv.after, **attrs)
        space = shape_of(op.result)[2:-1]
        made = winograd_output(winograd_product(points, u), conv.x, u, space=space, pads_begin=conv.before, **attrs)
    made.name = op.result.name
    op.result.replace_by(made)
    return emitted.ops
