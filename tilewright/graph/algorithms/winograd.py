"""Which convolutions are computed by Winograd's algorithm: where it saves time and its error is small enough.

The estimate counts cycles of one core: multiply-adds at a share of the peak, filters that come from memory, and the
traffic of transformed data through the caches. It needs no measurement, and its outcome is a remark for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.match import dtype_of, shape_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op, Value, replace_in_block
from tilewright.ir.passes import PassContext
from tilewright.ir.sym import Sym, sym
from tilewright.ops.cook_toom import tile_lengths
from tilewright.ops.define import constant
from tilewright.ops.winograd import transformed_filters, winograd_input, winograd_output, winograd_product

MOST_GROWTH = 5.0
"""Of rounding errors, in those of the direct sum: what tiles of 4x4 results of 3x3 filters have, with which whole
networks stay within a few times the error that they have without the algorithm (docs/decisions/0012-winograd.md)."""

GAIN = 0.9
"""Of the direct convolution's time: a smaller gain is not worth other roundings and a longer compilation."""

BLOCK_BYTES = 64  # of one block of channels at one position
PEAK_SHARE = 0.85  # of the multiply-adds that the core could do, in either algorithm
FMA_PORTS = 2
CACHE_BYTES_PER_CYCLE = 5  # transformed data: written to one cache and read from it
FILTER_BYTES_PER_CYCLE = {"memory": 4, "l3": 8, "l2": 32}
TYPICAL_SIZE = 64  # stands for an extent of an image that is not known


@dataclass(frozen=True)
class ConvShape:
    """What decides the time of a convolution: images (batch), extents of the results and taps of the filters along each
    spatial axis, channels (filled up to whole blocks of `block`)."""

    images: int
    space: tuple[int, ...]
    taps: tuple[int, ...]
    inputs: int
    outputs: int
    block: int


def direct_cycles(shape: ConvShape, filters_from: str, lanes: int) -> float:
    """Cycles of the direct convolution and of its copy of the data with padding."""
    positions = shape.images * prod(shape.space)
    pairs = shape.inputs * shape.outputs
    blocks = shape.inputs // shape.block
    return (
        prod(shape.taps) * positions * pairs / (FMA_PORTS * lanes * PEAK_SHARE)
        + prod(shape.taps) * pairs * 4 / FILTER_BYTES_PER_CYCLE[filters_from]
        + positions * blocks * BLOCK_BYTES / CACHE_BYTES_PER_CYCLE
    )


def winograd_cycles(shape: ConvShape, m: Sequence[int], filters_from: str, lanes: int) -> float:
    """Cycles of the convolution by tiles of `m` results along each axis."""
    points = _points(m, shape.taps)
    tiles = shape.images * prod(-(-extent // n) for extent, n in zip(shape.space, m, strict=True))
    pairs = shape.inputs * shape.outputs
    blocks = (shape.inputs + shape.outputs) // shape.block
    return (
        points * tiles * pairs / (FMA_PORTS * lanes * PEAK_SHARE)
        + points * pairs * 4 / FILTER_BYTES_PER_CYCLE[filters_from]
        + points * tiles * blocks * BLOCK_BYTES / CACHE_BYTES_PER_CYCLE
    )


def _points(m: Sequence[int], taps: Sequence[int]) -> int:
    return prod(a + b - 1 for a, b in zip(m, taps, strict=True))


@dataclass(frozen=True)
class Machine:
    """What the estimate knows: float32 lanes of a vector, and the sizes of the caches in bytes."""

    lanes: int
    l2: int
    l3: int

    def source(self, filters: int, all_weights: int) -> str:
        """Where filters of so many bytes come from when they are needed, in the course of the whole model."""
        wanted = max(filters, all_weights)
        return "memory" if wanted > self.l3 // 2 else "l3" if wanted > self.l2 // 2 else "l2"


@dataclass(frozen=True)
class Choice:
    """The algorithm for one convolution: the results of a tile along each axis (none for the direct sum), and why."""

    m: tuple[int, ...]
    reason: str


def choose(shape: ConvShape, machine: Machine, all_weights: int) -> Choice:
    """The algorithm with the least estimated time, in a model with weights of `all_weights` bytes, among those that
    keep rounding errors small."""
    pairs = shape.inputs * shape.outputs * 4
    direct = direct_cycles(shape, machine.source(prod(shape.taps) * pairs, all_weights), machine.lanes)
    estimates = []
    for m in tile_lengths(shape.taps, MOST_GROWTH):
        filters = _points(m, shape.taps) * pairs
        estimates.append((winograd_cycles(shape, m, machine.source(filters, all_weights), machine.lanes), m))
    if not estimates:
        return Choice((), f"no tiles of filters of {_extents(shape.taps)} keep rounding errors small")
    cycles, m = min(estimates)
    name = f"F({_extents(m)}, {_extents(shape.taps)})"
    reason = f"{name} is estimated at {cycles / direct:.2f} of the direct convolution's time"
    return Choice(m if cycles <= GAIN * direct else (), reason)


def _extents(lengths: Sequence[int]) -> str:
    return "x".join(map(str, lengths))


@dataclass(frozen=True)
class Winograd:
    """Compute convolutions of blocked channels, stride 1, by Winograd's algorithm where that is faster."""

    name: ClassVar[str] = "winograd"

    def run(self, module: Module, ctx: PassContext) -> None:
        if ctx.target is None:
            ctx.remark(self.name, "convolutions", "the machine is not known")
            return
        machine = Machine(ctx.target.vector_bits // 32, ctx.target.caches.l2, ctx.target.caches.l3)
        all_weights = sum(array.nbytes for array in module.constants.values())
        replaced = False
        for op in list(module.main.body.ops):
            conv = _candidate(op, module)
            if conv is None:
                continue
            choice = Choice((), "its roundings differ from those of the direct sum")
            if conv.has_lines_of_unknown_length:
                choice = Choice(
                    (), "its tiles are of one line, of unknown length, which is not cut into bands"
                )
            elif not ctx.strict:
                choice = choose(conv.shape, machine, all_weights)
            ctx.remark(self.name, f"conv {op.loc}", choice.reason, applied=bool(choice.m))
            if choice.m:
                _replace(conv, choice.m, module)
                replaced = True
        if replaced:
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

    @property
    def shape(self) -> ConvShape:
        outputs, inputs = self.filters.shape[:2]
        n, _, *space, block = shape_of(self.op.result)
        sizes = tuple(d.value if d.is_const else TYPICAL_SIZE for d in space)
        images = n.value if n.is_const else 1
        return ConvShape(images, sizes, self.taps, inputs, outputs, block.value)

    @property
    def has_lines_of_unknown_length(self) -> bool:
        """Whether bands of a known number of tiles cannot be made, and a row of tiles is too few: one line."""
        space = shape_of(self.op.result)[2:-1]
        return not all(d.is_const for d in space) and all(n == 1 for n in self.taps[:-1])

    @property
    def taps(self) -> tuple[int, ...]:
        return self.filters.shape[2:]


def _candidate(op: Op, module: Module) -> _Conv | None:
    """A float32 convolution of whole blocks of channels, with several taps, stride and dilation 1, in one group."""
    if op.name != "conv_blocked" or not op.attrs["x_blocked"] or op.attrs["groups"] != 1:
        return None
    w = op.operands[1]
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
    x, more_before, more_after = _without_padding(op.operands[0])
    return _Conv(
        op, x, filters,
        tuple(a + b for a, b in zip(before, more_before, strict=True)),
        tuple(a + b for a, b in zip(after, more_after, strict=True)),
    )  # fmt: skip


def _without_padding(x: Value) -> tuple[Value, tuple[Sym, ...], tuple[Sym, ...]]:
    """The data before a `pad` with zeros of its spatial axes, and what that adds before and after each."""
    nothing = (sym(0),) * (len(shape_of(x)) - 3)
    if x.op is None or x.op.name != "pad" or x.op.attrs["mode"] != "constant" or x.op.attrs["value"] != 0:
        return x, nothing, nothing
    before, after = (tuple(map(sym, x.op.attrs[side])) for side in ("before", "after"))
    others = (*before[:2], *after[:2], before[-1], after[-1])
    if any(p != 0 for p in others) or any((p.bounds[0] or -1) < 0 for p in (*before, *after) if p != 0):
        return x, nothing, nothing
    return x.op.operands[0], before[2:-1], after[2:-1]


def _replace(conv: _Conv, m: tuple[int, ...], module: Module) -> None:
    op = conv.op
    block = op.parent
    assert isinstance(block, Block)
    attrs: dict[str, Any] = {"m": m, "taps": conv.taps}
    emitted = Block()
    with Builder(emitted, module, op.loc):
        u = constant(transformed_filters(conv.filters, m), "w.winograd")
        points = winograd_input(conv.x, pads_begin=conv.before, pads_end=conv.after, **attrs)
        made = winograd_output(winograd_product(points, u), space=shape_of(op.result)[2:-1], **attrs)
    made.name = op.result.name
    op.result.replace_by(made)
    at = block.ops.index(op)
    replace_in_block(block, [*block.ops[:at], *emitted.ops, *block.ops[at:]])
