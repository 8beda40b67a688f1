"""Products and convolutions of float32 with operands rounded to 16 bits, where the machine adds up groups of these.

    conv(x, w)      becomes      conv(cast(x, bf16), w as bf16) with sums in f32

Only with `numerics="fast"`: each operand is then off by up to 2^-8 of its size. Sums, what is added to them and
functions of them stay in float32. Weights are rounded when compiling, data by the kernel that gives them: what only
products read lies in memory in 16 bits. Elements are rounded before they are moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tilewright.graph.match import dtype_of, hands_on_elements
from tilewright.graph.precision.narrow_choice import NarrowChoice, float_dot, is_considered
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op, Value, replace_in_block
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import constant_array, defining
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul_widening
from tilewright.ops.define import OPERATORS, constant
from tilewright.ops.traits.derive import known_product, traits_of
from tilewright.passes import PassContext


@dataclass(frozen=True)
class NarrowProducts:
    """Round the operands of float32 products to the floats that the machine multiplies in groups."""

    name: ClassVar[str] = "narrow-products"

    def run(self, module: Module, ctx: PassContext) -> None:
        found = [op for op in module.main.body.ops if is_considered(op, dt.f32)] if ctx.fast else []
        if not found:
            return
        target = ctx.target
        dot = None if target is None else float_dot(target, exact=False)
        if target is None or dot is None:
            ctx.remark(self.name, "products of f32", "the machine multiplies no groups of shorter floats")
            return
        choice = NarrowChoice.of(module, dot, target)
        chosen = [op for op in found if decided(op, choice, ctx)]
        if chosen:
            _Narrowing(module, choice, frozenset(chosen)).run()
            drop_dead(module)
            subject = f"{len(chosen)} of {len(found)} products of f32"
            ctx.remark(self.name, subject, f"operands rounded to {dot.left}, sums in f32", applied=True)


def decided(op: Op, choice: NarrowChoice, ctx: PassContext) -> bool:
    """Whether operands of a product are to be rounded; why (not) is a remark."""
    takes, message = choice.decide(op)
    ctx.remark(NarrowProducts.name, f"{op.name} {op.loc}", message, applied=takes)
    return takes


def narrow_product(op: Op, narrow: Callable[[Value], Value], choice: NarrowChoice) -> Value:
    """A chosen product or convolution with sums in float32, of data that `narrow` gives in fewer bits and of rounded
    weights."""
    product = known_product(op)
    data, right = narrow(op.operands[product.data]), op.operands[product.weights]
    if op in choice.attention:
        return matmul_widening(data, narrow(right), sums=dt.f32, transpose_b=product.turns_weights)
    array = choice.weights(right)
    assert array is not None, "weights of chosen products are known"
    weights, name = choice.rounded(array), right.name or "w"
    if not product.of_matrices:
        made: Value = OPERATORS[op.name](data, constant(weights, name), **{**op.attrs, "sums": dt.f32})
        return made
    if product.turns_weights:
        weights = np.ascontiguousarray(weights.swapaxes(-1, -2))
    return matmul_widening(data, constant(weights, name), sums=dt.f32)


@dataclass
class _Narrowing:
    """The new program, and which of its values are at hand rounded."""

    module: Module
    choice: NarrowChoice
    chosen: frozenset[Op]
    rounded: dict[Value, Value] = field(default_factory=dict)

    def run(self) -> None:
        body = self.module.main.body
        builder = Builder(Block(), self.module)
        for op in body.ops:
            if op not in self.chosen:
                builder.block.append(op)
                continue
            with builder.at(op.loc), builder:
                if traits_of(op).has_state:
                    self._narrow_weights(op)
                    builder.block.append(op)
                    continue
                made = narrow_product(op, self._rounded, self.choice)
            made.name = op.result.name
            op.result.replace_by(made)
        replace_in_block(body, builder.block.ops)
        for op in self.chosen:
            if not traits_of(op).has_state:
                op.drop()

    def _narrow_weights(self, op: Op) -> None:
        """Give a recurrent operator rounded weights, with which it multiplies rounded states."""
        gates, weights, *others = op.operands
        array = constant_array(weights, self.module)
        assert array is not None, "weights of chosen operators are known"
        op.set_operands([gates, constant(self.choice.rounded(array), weights.name or "r"), *others])

    def _rounded(self, value: Value) -> Value:
        """A value in the dtype of the left operand."""
        dtype = self.choice.dot.left
        if value not in self.rounded:
            self.rounded[value] = self._made(value, dtype)
        return self.rounded[value]

    def _made(self, value: Value, dtype: DType) -> Value:
        op, cast = value.op, defining(value, "cast")
        if cast is not None and dtype_of(cast.operands[0]) is dtype:
            return cast.operands[0]
        if op is None or not hands_on_elements(op) or not self._only_rounded(value):
            return ew.cast(value, dtype=dtype)
        moved = traits_of(op).chooses
        operands = [self._rounded(v) if k in moved else v for k, v in enumerate(op.operands)]
        made = OPERATORS[op.name](*operands, **op.attrs)
        assert isinstance(made, Value)
        return made

    def _only_rounded(self, value: Value) -> bool:
        """Whether only products whose operands are rounded read a value, perhaps moved."""
        return all(
            (user in self.chosen and not traits_of(user).has_state)
            or (hands_on_elements(user) and self._only_rounded(user.result))
            for user in value.users
        )
