"""The plain, blocked and flat forms of values while the layout of a program is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tilewright.graph.match import shape_of, type_of
from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.ops.blocked import block_channels, unblock_channels
from tilewright.ops.define import constant
from tilewright.ops.view import reshape


class Forms:
    """Emits the new program; values of the old one are the keys.

    The flat form of a blocked value has its spatial axes merged, [n, c / b, s, b]: 1x1 convolutions and
    elementwise operators compute on it, so that their rows are long.
    """

    def __init__(self, module: Module, block: int) -> None:
        self.module = module
        self.block = block
        self._builder = Builder(Block(), module)
        self._blocked: dict[Value, Value] = {}
        self._plain: dict[Value, Value] = {}
        self._flat: dict[Value, Value] = {}  # by the blocked form
        self._positions: dict[Value, tuple[int, ...]] = {}

    @property
    def ops(self) -> list[Op]:
        """The program so far."""
        return self._builder.block.ops

    @contextmanager
    def emitting(self, op: Op) -> Iterator[None]:
        """Operator functions append to the new program, at the location of `op`."""
        with self._builder.at(op.loc), self._builder:
            yield

    def keep(self, op: Op) -> None:
        """Take an op over as it is; it reads plain values."""
        with self.emitting(op):
            for inner in op.walk():
                inner.set_operands([self.plain(v) for v in inner.operands])
        self._builder.block.append(op)

    # Forms

    def has_blocked(self, value: Value) -> bool:
        """Whether the blocked form exists already."""
        return value in self._blocked

    def plain(self, value: Value) -> Value:
        """The plain form; emits the change of layout at the first request."""
        if value not in self._blocked:
            return self._plain.get(value, value)
        assert value not in self._positions, "readers of channels with gaps ask for blocks"
        if value not in self._plain:
            self._plain[value] = self.unblocked(self._blocked[value], shape_of(value))
        return self._plain[value]

    def blocked(self, value: Value) -> Value:
        """The blocked form; emits the change of layout at the first request."""
        if value not in self._blocked:
            made = self._block(self.plain(value), shape_of(value))
            self._plain.setdefault(value, value)
            self._blocked[value] = made
        return self._blocked[value]

    def flat(self, value: Value) -> Value:
        """The blocked form with one spatial axis."""
        wide = self.blocked(value)
        if wide not in self._flat:
            n, cb, *space, b = shape_of(wide)
            self._flat[wide] = reshape(wide, shape=(n, cb, product(space), b))
        return self._flat[wide]

    def is_flat(self, value: Value) -> bool:
        """Whether the value was computed flat."""
        return self._blocked.get(value) in self._flat

    def positions(self, value: Value) -> tuple[int, ...] | None:
        """Where the channels lie in a blocked form with gaps between them; None where there are no gaps."""
        return self._positions.get(value)

    def set_blocked(self, value: Value, made: Value, positions: tuple[int, ...] | None = None) -> None:
        """`made` is the blocked form of `value`. With `positions` of its channels it has gaps between them, which
        hold finite numbers; it is then for readers that ask for these, and never becomes plain."""
        made.name = made.name or value.name
        self._blocked[value] = made
        if positions is not None:
            self._positions[value] = positions

    def set_flat(self, value: Value, made: Value) -> None:
        """`made` is the flat form of `value`."""
        made.name = made.name or value.name
        n, cb, *_, b = shape_of(made)
        wide = reshape(made, shape=(n, cb, *shape_of(value)[2:], b))
        self._blocked[value] = wide
        self._flat[wide] = made

    def set_plain(self, value: Value, made: Value) -> None:
        """`made` replaces `value`, which has no blocked form."""
        made.name = made.name or value.name
        self._plain[value] = made

    def _block(self, x: Value, shape: tuple[Sym, ...]) -> Value:
        n, c, *space = shape
        if all(d == 1 for d in space) and c % self.block == 0:
            return reshape(x, shape=(n, c // self.block, *space, self.block))
        return block_channels(x, block=self.block)

    def unblocked(self, x: Value, shape: tuple[Sym, ...]) -> Value:
        _, c, *space = shape
        if all(d == 1 for d in space) and c % self.block == 0:
            return reshape(x, shape=shape)
        return unblock_channels(x, channels=c)

    # Constants

    def array(self, value: Value) -> np.ndarray | None:
        """The elements of a `constant`."""
        op = value.op
        if op is None or op.name != "constant":
            return None
        return self.module.constants[op.attrs["name"]]

    def weights(self, array: np.ndarray, value: Value) -> Value:
        """A constant of other elements in place of constant `value`."""
        return constant(array, f"{value.name or 'w'}.filled")

    def channels(self, value: Value) -> Sym:
        return type_of(value).shape[1]

    def filled(self, count: int) -> int:
        """`count` rounded up to whole blocks."""
        return -(-count // self.block) * self.block
