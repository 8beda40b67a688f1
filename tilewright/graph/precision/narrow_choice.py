"""Which products and convolutions may have operands of 16-bit floats: where the machine adds up groups of these, and
gains by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.cost.conv.winograd import ConvShape, share_of_fastest
from tilewright.cost.narrow_products import SumsShape, narrow_share, rounding_gains
from tilewright.cost.typical import TypicalSizes, typical_sizes
from tilewright.graph.algorithms.winograd import MOST_GROWTH
from tilewright.graph.layout.block_channels import BlockChannels
from tilewright.graph.layout.blocked_convs import filters_suit_blocks
from tilewright.graph.layout.conv_window import ConvWindow
from tilewright.graph.match import dtype_of, shape_of, type_of
from tilewright.graph.precision.attention_products import attention_products, sums_of, why_not_packed
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import constant_array, defining
from tilewright.ops.cook_toom import tile_lengths
from tilewright.ops.traits.derive import known_product, traits_of
from tilewright.ops.traits.facts import Product
from tilewright.target.dots import Dot
from tilewright.target.target import Target


def is_considered(op: Op, dtype: DType) -> bool:
    """Whether it multiplies numbers of a dtype, and gives some; each such product gets a remark."""
    own = traits_of(op)
    if own.product is None or not (own.product.is_plain or own.has_state) or op.attrs.get("sums") is not None:
        return False
    read = (op.operands[k] for k in (own.product.data, own.product.weights))
    return all(dtype_of(v) is dtype for v in (*read, op.results[0]))


def float_dot(target: Target, *, exact: bool) -> Dot | None:
    """The machine's instruction for groups of 16-bit floats; with `exact` one that rounds as multiply-adds do."""
    return next((dot for dot in target.dots_in(dt.f32) if dot.rounds_as_fma or not exact), None)


@dataclass(frozen=True)
class NarrowChoice:
    """Decides for the products of one program."""

    module: Module
    dot: Dot
    target: Target
    typical: TypicalSizes
    all_weights: int
    attention: Mapping[Op, tuple[Op, Op]]

    @classmethod
    def of(cls, module: Module, dot: Dot, target: Target) -> NarrowChoice:
        typical = typical_sizes(type_of(v) for v in module.main.args)
        weights = sum(4 * array.size for array in module.constants.values() if array.dtype.itemsize > 1)
        return cls(module, dot, target, typical, weights, attention_products(module))

    def decide(self, op: Op) -> tuple[bool, str]:
        """Whether operands of an operator are to be rounded, and why (not)."""
        reason = self._why_not(op)
        if reason:
            return False, reason
        shapes = self._shapes(op)
        share = narrow_share(shapes, self.dot, self.target, self.all_weights)
        fastest = self._fastest(op) if known_product(op).space else 1.0
        message = f"{self.dot.left} is estimated at {share:.2f} of the time of direct sums of f32"
        if fastest < 1:
            message += f", Winograd's algorithm at {fastest:.2f}"
        return rounding_gains(share, fastest), message

    def _why_not(self, op: Op) -> str:
        """Why the machine cannot multiply the operands of an operator in groups; "" where it can."""
        product, recurs = known_product(op), traits_of(op).has_state
        if not (product.of_matrices or (product.slides and "sums" in op.attrs) or recurs):
            return f"{op.name} multiplies in float32 only"
        if op in self.attention:
            return why_not_packed(self.attention[op])
        weights = self.weights(op.operands[product.weights])
        if weights is None or weights.ndim < 2:
            return "its right operand is not known when compiling, and is not packed by groups"
        if weights.size and np.isinf(self.rounded(np.array([weights.min(), weights.max()]))).any():
            return f"its weights are beyond the range of {self.dot.right}"
        if recurs:
            return self._why_no_groups(weights.shape[product.summed[0]])
        if product.of_matrices:
            return self._why_no_product(product, weights)
        filters, groups = weights.shape, op.attrs["groups"]
        if filters[1] == 1 and groups > 1:
            return "it sums few products for each element that it reads"
        if not filters_suit_blocks(filters, groups, BlockChannels.block):
            return "its filters or groups do not allow whole blocks of channels"
        if filters[1] < BlockChannels.block and (filters[-1] == 1 or ConvWindow(op).dilations[-1] != 1):
            return "its few channels lie apart, and so do its neighbours along a line"
        return ""

    def _why_no_product(self, product: Product, weights: np.ndarray) -> str:
        if weights.shape[product.kept] == 1:
            return "it has one column, and lanes are rows of data"
        if product.turns_data:
            return "the elements of a group lie apart in a row"
        return self._why_no_groups(weights.shape[product.summed[0]])

    def _why_no_groups(self, depth: int) -> str:
        if depth % self.dot.group:
            return f"{depth} products are no multiple of the groups of {self.dot.group} that are added at once"
        return ""

    def weights(self, value: Value) -> np.ndarray | None:
        """The elements of a constant operand, or of shorter floats that become one, which nothing else reads: that
        would need them as they are."""
        found, cast = constant_array(value, self.module), defining(value, "cast")
        if found is not None or cast is None:
            return found
        (source,) = cast.operands
        alone = len(value.users) == len(source.users) == 1
        return constant_array(source, self.module) if alone and dtype_of(source).is_float else None

    def rounded(self, array: np.ndarray) -> np.ndarray:
        """A constant operand as the instruction takes it."""
        with np.errstate(over="ignore"):
            return array.astype(self.dot.right.storage)

    def _shapes(self, op: Op) -> list[SumsShape]:
        """What the estimate asks for, of each typical size."""
        product = known_product(op)
        if traits_of(op).has_state:
            return self._steps(op)
        if op in self.attention:
            return sums_of(self.attention[op], self.dot.group, self.typical)
        data, right = (shape_of(op.operands[k]) for k in (product.data, product.weights))
        result = shape_of(op.result)
        found = []
        for extents in self.typical.of([*data, *result, *right]):
            read, made = extents[: len(data)], extents[len(data) : len(data) + len(result)]
            weights = extents[len(data) + len(result) :]
            depth, filled = self._depth(product, weights)
            found.append(SumsShape(prod(made) * depth, prod(made) * filled, prod(weights), prod(read)))
        return found

    def _steps(self, op: Op) -> list[SumsShape]:
        """Of all steps of a recurrent operator, of which each reads the weights."""
        *_, hidden = shape_of(op.operands[1])
        weights = prod(d.value for d in shape_of(op.operands[1]))
        return [
            SumsShape(steps * batch * weights, steps * batch * weights, weights, steps * batch * hidden.value, steps)
            for steps, batch in self.typical.of(shape_of(op.operands[0])[:2])
        ]

    def _depth(self, product: Product, weights: tuple[int, ...]) -> tuple[int, int]:
        """Products of one sum, and those with the zeros that fill up groups: filters of few channels have them along a
        line."""
        depth, group = prod(weights[k] for k in product.summed), self.dot.group
        if product.of_matrices or weights[1] >= BlockChannels.block:
            return depth, depth
        return depth, depth // weights[-1] * -(-weights[-1] // group) * group

    def _fastest(self, conv: Op) -> float:
        """The time of the fastest algorithm for float32, in that of the direct sums."""
        window, block = ConvWindow(conv), BlockChannels.block
        outputs, inputs, *taps = (d.value for d in shape_of(conv.operands[1]))
        if conv.attrs["groups"] > 1 or inputs < block or any(n != 1 for n in (*window.strides, *window.dilations)):
            return 1.0
        images, _, *space = shape_of(conv.result)
        inputs, outputs = (-(-n // block) * block for n in (inputs, outputs))
        shapes = [
            ConvShape(n, tuple(extents), tuple(taps), inputs, outputs, block)
            for n, *extents in self.typical.of([images, *space])
        ]
        return share_of_fastest(shapes, tile_lengths(tuple(taps), MOST_GROWTH), self.target, self.all_weights)
