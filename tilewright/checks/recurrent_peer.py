"""A recurrent network beside a model of sequences: stacked LSTM layers with as many operations for a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import isqrt

from tilewright.checks.serial import SerialWork, serial_work
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Value
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import tensor
from tilewright.ops.composites.recurrent import Direction, layer
from tilewright.ops.contract import matmul
from tilewright.ops.define import OPERATORS
from tilewright.schedule.work.operators import OperatorCounts

_PROBE = 64
"""Units of a layer whose operations, with those of twice as many, tell those of all others."""


@dataclass(frozen=True)
class RecurrentPeer:
    """`layers` LSTM layers of `width` units, which take as many inputs: the floating-point operations for a token, the
    bytes that they keep (two vectors of float32 a layer, whatever the length is), and what waits in a whole sequence of
    so many positions."""

    layers: int
    width: int
    flops: int
    state: int
    serial: SerialWork


def recurrent_peer(flops: int, layers: int, positions: int) -> RecurrentPeer:
    """The network whose operations for a token come closest to these from below, by its width."""
    square, linear = _operations()
    wanted = max(flops // layers, 1)
    width = max(1, (isqrt(linear * linear + 4 * square * wanted) - linear) // (2 * square))
    serial = _layers(layers, width)(positions)
    return RecurrentPeer(layers, width, serial.flops // positions, 8 * layers * width, serial)


@lru_cache(maxsize=1)
def _operations() -> tuple[int, int]:
    """What the operations of a layer for a token are, by the square of its width and by its width."""
    one, two = (_layers(1, width)(1).flops for width in (_PROBE, 2 * _PROBE))
    square = (two - 2 * one) // (2 * _PROBE * _PROBE)
    return square, (one - square * _PROBE * _PROBE) // _PROBE


def _layers(count: int, width: int) -> Callable[[int], SerialWork]:
    """The network for one sequence [n, 1, width], its weights arguments: there is no need for their numbers."""
    steps = var("n", 0)
    shapes: list[tuple[Sym | int, ...]] = [(steps, 1, width), *[(4 * width, width)] * (2 * count)]
    block = Block([tensor(dt.f32, shape) for shape in shapes])
    x, *weights = block.args
    with Builder(block, Module()):
        for k in range(count):
            x, *_ = layer(x, Direction("LSTM", width, partial(_by, weights[2 * k]), weights[2 * k + 1]))
    return serial_work([op for op in block.ops if op.name in OPERATORS], OperatorCounts(), {}, steps, None)


def _by(weights: Value, x: Value) -> Value:
    return matmul(x, weights, transpose_b=True)
