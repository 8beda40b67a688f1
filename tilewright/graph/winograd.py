"""Which convolutions are computed by Winograd's algorithm: where it saves time and its error is small enough.

The estimate counts cycles of one core: multiply-adds at a share of the peak, filters that come from memory, and the
traffic of transformed data through the caches. It needs no measurement, and its outcome is a remark for each layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.dead import drop_dead
from tilewright.graph.match import dtype_of, shape_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op, Value, replace_in_block
from tilewright.ir.passes import PassContext
from tilewright.ir.sym import Sym, sym
from tilewright.ops.cook_toom import TAPS
from tilewright.ops.define import constant
from tilewright.ops.winograd import transformed_filters, winograd_input, winograd_output, winograd_product

TILES = (2, 4)
"""Results of a tile along an axis. In float32 the rounding errors of 2 are nearly those of the direct sum, those of 4 a
few times as large (`ops/cook_toom.py`). Tiles of 6 are no faster: their filters and transforms take what their products
save (docs/decisions/0012-winograd.md)."""

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
    """What decides the time of a convolution 3x3: images (batch), results' height and width, channels (filled up to
    whole blocks of `block`)."""

    images: int
    height: int
    width: int
    inputs: int
    outputs: int
    block: int


def direct_cycles(shape: ConvShape, filters_from: str, lanes: int) -> float:
    """Cycles of the direct convolution and of its copy of the data with padding."""
    positions = shape.images * shape.height * shape.width
    pairs = shape.inputs * shape.outputs
    blocks = shape.inputs // shape.block
    return (
        TAPS**2 * positions * pairs / (FMA_PORTS * lanes * PEAK_SHARE)
        + TAPS**2 * pairs * 4 / FILTER_BYTES_PER_CYCLE[filters_from]
        + positions * blocks * BLOCK_BYTES / CACHE_BYTES_PER_CYCLE
    )


def winograd_cycles(shape: ConvShape, m: int, filters_from: str, lanes: int) -> float:
    """Cycles of the convolution by tiles of m x m results."""
    points = (m + TAPS - 1) ** 2
    tiles = shape.images * -(-shape.height // m) * -(-shape.width // m)
    pairs = shape.inputs * shape.outputs
    blocks = (shape.inputs + shape.outputs) // shape.block
    return (
        points * tiles * pairs / (FMA_PORTS * lanes * PEAK_SHARE)
        + points * pairs * 4 / FILTER_BYTES_PER_CYCLE[filters_from]
        + points * tiles * blocks * BLOCK_BYTES / CACHE_BYTES_PER_CYCLE
    )


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
    """The algorithm for one convolution: the tile length (0 for the direct sum), and why."""

    m: int
    reason: str


def choose(shape: ConvShape, machine: Machine, all_weights: int) -> Choice:
    """The algorithm with the least estimated time, in a model with weights of `all_weights` bytes."""
    taps = TAPS**2 * shape.inputs * shape.outputs * 4
    direct = direct_cycles(shape, machine.source(taps, all_weights), machine.lanes)
    estimates = []
    for m in TILES:
        filters = taps * (m + TAPS - 1) ** 2 // TAPS**2
        estimates.append((winograd_cycles(shape, m, machine.source(filters, all_weights), machine.lanes), m))
    cycles, m = min(estimates)
    reason = f"F({m}x{m}, 3x3) is estimated at {cycles / direct:.2f} of the direct convolution's time"
    return Choice(m if cycles <= GAIN * direct else 0, reason)


@dataclass(frozen=True)
class Winograd:
    """Compute 3x3 convolutions of blocked channels, stride 1, by Winograd's algorithm where that is faster."""

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
            choice = Choice(0, "its roundings differ from those of the direct sum")
            if ctx.options is None or ctx.options.numerics != "strict":
                choice = choose(conv.shape, machine, all_weights)
            ctx.remark(self.name, f"conv {op.loc}", choice.reason, applied=choice.m > 0)
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
        sizes = [d.value if d.is_const else TYPICAL_SIZE for d in space]
        return ConvShape(n.value if n.is_const else 1, sizes[0], sizes[1], inputs, outputs, block.value)


def _candidate(op: Op, module: Module) -> _Conv | None:
    """A float32 convolution 3x3 of whole blocks of channels, with stride and dilation 1, in one group."""
    if op.name != "conv_blocked" or not op.attrs["x_blocked"] or op.attrs["groups"] != 1:
        return None
    w = op.operands[1]
    if w.op is None or w.op.name != "constant" or dtype_of(w) != dt.f32:
        return None
    filters = module.constants[w.op.attrs["name"]]
    if filters.shape[2:] != (TAPS, TAPS) or any(n % op.attrs["block"] for n in filters.shape[:2]):
        return None
    if any(n != 1 for n in (*op.attrs["strides"], *op.attrs["dilations"])):
        return None
    before = tuple(map(sym, op.attrs["pads_begin"])) or (sym(0), sym(0))
    after = tuple(map(sym, op.attrs["pads_end"])) or (sym(0), sym(0))
    x, more_before, more_after = _without_padding(op.operands[0])
    return _Conv(
        op, x, filters,
        tuple(a + b for a, b in zip(before, more_before, strict=True)),
        tuple(a + b for a, b in zip(after, more_after, strict=True)),
    )  # fmt: skip


def _without_padding(x: Value) -> tuple[Value, tuple[Sym, ...], tuple[Sym, ...]]:
    """The data before a `pad` with zeros of its two spatial axes, and what that adds before and after each."""
    nothing = (sym(0), sym(0))
    if x.op is None or x.op.name != "pad" or x.op.attrs["mode"] != "constant" or x.op.attrs["value"] != 0:
        return x, nothing, nothing
    before, after = (tuple(map(sym, x.op.attrs[side])) for side in ("before", "after"))
    others = (*before[:2], *after[:2], before[4], after[4])
    if any(p != 0 for p in others) or any((p.bounds[0] or -1) < 0 for p in (*before, *after) if p != 0):
        return x, nothing, nothing
    return x.op.operands[0], before[2:4], after[2:4]


def _replace(conv: _Conv, m: int, module: Module) -> None:
    op = conv.op
    block = op.parent
    assert isinstance(block, Block)
    height, width = shape_of(op.result)[2:4]
    emitted = Block()
    with Builder(emitted, module, op.loc):
        u = constant(transformed_filters(conv.filters, m), "w.winograd")
        points = winograd_input(conv.x, m=m, pads_begin=conv.before, pads_end=conv.after)
        made = winograd_output(winograd_product(points, u), m=m, height=height, width=width)
    made.name = op.result.name
    op.result.replace_by(made)
    at = block.ops.index(op)
    replace_in_block(block, [*block.ops[:at], *emitted.ops, *block.ops[at:]])
