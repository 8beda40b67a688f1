"""Where each value of a program is found in which layout, while the layouts of the program change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tilewright.cost.typical import typical_sizes
from tilewright.graph.match import shape_of, type_of
from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.rewrite import constant_array
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.ops.blocked import block_channels, unblock_channels
from tilewright.ops.define import constant
from tilewright.ops.view import reshape


class LayoutMap:
    """Emits the new program; values of the old one are the keys.

    A value may be plain, [n, c, *space], blocked, [n, c / b, *space, b], or both. The flat form of a blocked value has
    its spatial axes merged, [n, c / b, s, b]: 1x1 convolutions and elementwise operators compute on it, so that their
    rows are long. A change of layout is emitted when a reader asks for it first.
    """

    def __init__(self, module: Module, block: int) -> None:
        self.module = module
        self.block = block
        self.typical = typical_sizes(type_of(v) for v in module.main.args)
        self._builder = Builder(Block(), module)
        self._plain: dict[Value, Value] = {}
        self._blocked: dict[Value, Value] = {}
        self._flat: dict[Value, Value] = {}  # by the blocked form
        self._slots: dict[Value, tuple[int, ...]] = {}

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

    # Layouts of a value

    def has_blocked(self, value: Value) -> bool:
        """Whether the blocked form exists already."""
        return value in self._blocked

    def is_flat(self, value: Value) -> bool:
        """Whether the value was computed flat."""
        return self._blocked.get(value) in self._flat

    def plain(self, value: Value) -> Value:
        if value not in self._blocked:
            return self._plain.get(value, value)
        assert value not in self._slots, "readers of channels with gaps ask for blocks"
        if value not in self._plain:
            self._plain[value] = self.unblocked(self._blocked[value], shape_of(value))
        return self._plain[value]

    def blocked(self, value: Value) -> Value:
        if value not in self._blocked:
            plain, (n, c, *space) = self.plain(value), shape_of(value)
            whole = (n, c // self.block, *space, self.block)
            is_view = self._is_view(shape_of(value))
            made = reshape(plain, shape=whole) if is_view else block_channels(plain, block=self.block)
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

    def unblocked(self, x: Value, shape: Sequence[Sym]) -> Value:
        """Blocked x as a plain tensor of `shape`."""
        return reshape(x, shape=shape) if self._is_view(shape) else unblock_channels(x, channels=shape[1])

    def _is_view(self, shape: Sequence[Sym]) -> bool:
        """Whether the blocked form has its elements in the order of the plain one."""
        return all(d == 1 for d in shape[2:]) and shape[1] % self.block == 0

    def slots(self, value: Value) -> tuple[int, ...] | None:
        """Where the channels lie in a blocked form with gaps between them; None where there are no gaps."""
        return self._slots.get(value)

    # New values

    def set_plain(self, value: Value, made: Value) -> None:
        """`made` replaces `value`, which has no blocked form."""
        made.name = made.name or value.name
        self._plain[value] = made

    def set_blocked(self, value: Value, made: Value, slots: tuple[int, ...] | None = None) -> None:
        """`made` is the blocked form of `value`. With `slots` for its channels it has gaps between them, which hold
        finite numbers; it is then for readers that ask for these, and never becomes plain."""
        made.name = made.name or value.name
        self._blocked[value] = made
        if slots is not None:
            self._slots[value] = slots

    def set_flat(self, value: Value, made: Value) -> None:
        """`made` is the flat form of `value`."""
        made.name = made.name or value.name
        n, cb, *_, b = shape_of(made)
        wide = reshape(made, shape=(n, cb, *shape_of(value)[2:], b))
        self._blocked[value] = wide
        self._flat[wide] = made

    # Constants

    def array(self, value: Value) -> np.ndarray:
        """The elements of a constant."""
        found = constant_array(value, self.module)
        assert found is not None, "only constants are asked for"
        return found

    def filters(self, array: np.ndarray, value: Value) -> Value:
        """A constant of other elements in place of constant `value`."""
        return constant(np.ascontiguousarray(array), f"{value.name or 'w'}.filled")

    def filled(self, count: int) -> int:
        """`count` rounded up to whole blocks."""
        return -(-count // self.block) * self.block
