"""Programs of 16-bit floats compute in float32: what is in 16 bits is in tensors that come in, go out or are known.

    y: f16 = f(x: f16)      becomes      w = f(cast(x, f32));  y = cast(w, f16)

No instruction of the machines at hand computes in 16 bits faster than in float32, and operators mean that they compute
so: with the casts written out, everything that is done for float32 (blocks of channels, Winograd's algorithm, folded
factors, register tiles) serves 16 bits, too. A reader that computes takes w. By default it takes it as it is, so that a
chain of operators rounds once where it leaves in 16 bits; with strict numerics, rounded to 16 bits in each operator.

What steps (comparisons, casts to integers, the places of greatest elements, remainders) takes the rounded value in both
cases: the one that the model would have seen. So does what moves elements, unless these are at hand in float32 only.
Casts that the model has itself round in both cases. Which operators these are, their traits tell.

Operands of products of bfloat16 are taken rounded, as the model says, where the machine adds up groups of their exact
products as fast as it rounds each of them: sums are in float32 in any case (`narrow_choice`). So are those of float16,
too, where a machine has units for such products (`units`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.match import dtype_of, hands_on_elements, is_constant, shape_of
from tilewright.graph.precision.narrow_choice import NarrowChoice, float_dot, is_considered
from tilewright.graph.precision.narrow_products import decided, narrow_product
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.graph.rewrites.expand import Expand
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op, Value, replace_in_block
from tilewright.ir.diag import TypeRuleError
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import defining
from tilewright.ir.types import TensorType
from tilewright.ir.types import product as sized
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul_widening
from tilewright.ops.define import OPERATORS
from tilewright.ops.source import full
from tilewright.ops.traits.derive import known_product, traits_of
from tilewright.passes import PassContext
from tilewright.target.gpu.tensor_cores import FLOAT_DEPTH, is_deep

NARROW = (dt.f16, dt.bf16)


@dataclass(frozen=True)
class WidenFloats:
    """Compute in float32 what is in 16-bit floats."""

    name: ClassVar[str] = "widen-floats"
    units: frozenset[DType] = frozenset()
    """Of 16-bit floats that units of the machine multiply, and add up in float32."""

    def run(self, module: Module, ctx: PassContext) -> None:
        body = module.main.body
        if not any(is_narrow(v) for op in body.ops for v in (*op.operands, *op.results)):
            return
        if ctx.strict or self.units:  # each step of a composite rounds, or is a product of a unit
            Expand().run(module, ctx)
        widening = _Widening(module, ctx.strict, _products(module, ctx), self.units)
        for op in body.ops:
            widening.take(op)
        replace_in_block(body, widening.builder.block.ops)
        drop_dead(module)
        if widening.narrow:
            subject = f"{len(widening.narrow)} products of bf16"
            ctx.remark(self.name, subject, "operands in bf16, sums in f32", applied=True)
        for dtype in NARROW:
            count = widening.counts.get(dtype, 0)
            if count:
                rounding = "each result rounded" if ctx.strict else "results rounded where they leave in 16 bits"
                ctx.remark(self.name, f"{count} operators on {dtype}", f"computed in f32, {rounding}", applied=True)


def is_narrow(value: Value) -> bool:
    """Whether it is a tensor of 16-bit floats."""
    return isinstance(value.type, TensorType) and value.type.dtype in NARROW


def is_wide_enough(dtype: DType) -> bool:
    """Whether casts to it take what was computed in float32: those to fewer bits step."""
    return dtype.is_float and dtype.bits >= 16


class _Widening:
    """The program so far, and which of its values are at hand in float32."""

    def __init__(
        self, module: Module, rounds: bool, narrow: Mapping[Op, NarrowChoice], units: frozenset[DType] = frozenset()
    ) -> None:
        self.builder = Builder(Block(), module)
        self.rounds = rounds
        self.narrow = narrow
        self.units = units
        self.wide: dict[Value, Value] = {}
        self.counts: dict[DType, int] = {}

    def take(self, op: Op) -> None:
        """Append `op`, or what takes its place."""
        with self.builder.at(op.loc), self.builder:
            if op in self.narrow:
                self._replace(op, (narrow_product(op, lambda v: v, self.narrow[op]),))
                op.drop()
            elif (made := self._by_unit(op)) is not None:
                self._replace(op, (made,))
                op.drop()
            elif self._is_computed(op) and self._computed(op):
                op.drop()
            elif op.name == "cast" and op.operands[0] in self.wide and is_wide_enough(op.attrs["dtype"]):
                op.result.replace_by(ew.cast(self.wide[op.operands[0]], dtype=op.attrs["dtype"]))
                op.drop()
            else:
                self.builder.block.append(op)

    def _by_unit(self, op: Op) -> Value | None:
        """A product whose operands stay in 16 bits, as the model says, with sums in float32; None for others."""
        if not is_of_unit(op, self.units):
            return None
        self.counts[dtype_of(op.result)] = self.counts.get(dtype_of(op.result), 0) + 1
        product = known_product(op)
        operands = (op.operands[product.data], op.operands[product.weights])
        if product.of_matrices:
            return matmul_widening(*operands, sums=dt.f32, transpose_b=product.turns_weights)
        made: Value = OPERATORS[op.name](*op.operands, **{**op.attrs, "sums": dt.f32})
        return made

    def _is_computed(self, op: Op) -> bool:
        narrow = [v for v in op.operands if is_narrow(v)]
        if not narrow or not any(map(is_narrow, op.results)):
            return False
        own = traits_of(op)
        if own.moves:
            return any(v in self.wide and not is_constant(v) for v in narrow)
        return op.name in OPERATORS and not (own.is_exact and not own.continuous)

    def _computed(self, op: Op) -> bool:
        """Emit the operator on float32 operands; False, with nothing emitted, where it cannot be."""
        operator = OPERATORS[op.name]
        types = [_widened_type(v.tensor) for v in op.operands]
        try:
            found = operator.result_types(types, op.attrs)
        except TypeRuleError:
            return False
        if found != tuple(_widened_type(v.tensor) for v in op.results):
            return False
        own = traits_of(op)
        operands = [self._operand(v, k in own.continuous) for k, v in enumerate(op.operands)]
        made = operator(*operands, **op.attrs)
        self._replace(op, made if isinstance(made, tuple) else (made,))
        dtype = next(dtype_of(v) for v in (*op.results, *op.operands) if is_narrow(v))
        if not own.moves:
            self.counts[dtype] = self.counts.get(dtype, 0) + 1
        return True

    def _replace(self, op: Op, made: Sequence[Value]) -> None:
        """Let `made` take the place of the results of `op`, in 16 bits where these are."""
        for old, new in zip(op.results, made, strict=True):
            new.name = old.name
            if new.type == old.type:
                old.replace_by(new)
                continue
            rounded = ew.cast(new, dtype=dtype_of(old))
            feeds = self._feeds_unit(old)
            old.replace_by(rounded)
            if not feeds and (not self.rounds or traits_of(op).is_exact):
                self.wide[rounded] = new

    def _feeds_unit(self, value: Value) -> bool:
        """Whether a product of a unit reads a value, perhaps moved: it then is in memory in 16 bits, for all."""
        return bool(self.units) and any(
            is_of_unit(user, self.units) or (hands_on_elements(user) and self._feeds_unit(user.result))
            for user in value.users
        )

    def _operand(self, value: Value, is_continuous: bool) -> Value:
        """An operand in float32: rounded to 16 bits where the operator steps."""
        if not is_narrow(value):
            return value
        return self._widened(value) if is_continuous else _widened_number(value) or ew.cast(value, dtype=dt.f32)

    def _widened(self, value: Value) -> Value:
        """A 16-bit tensor in float32."""
        if value not in self.wide:
            self.wide[value] = _widened_number(value) or ew.cast(value, dtype=dt.f32)
        return self.wide[value]


def is_of_unit(op: Op, units: frozenset[DType]) -> bool:
    """Whether it is a product of matrices, or a convolution without groups, that a unit for such operands does."""
    if _is_of_bytes(op, units):
        return _slides_deep(op, 2 * FLOAT_DEPTH)
    if not any(is_considered(op, dtype) for dtype in units):
        return False
    product = known_product(op)
    return not product.turns_data if product.of_matrices else _slides_deep(op, FLOAT_DEPTH)


def _is_of_bytes(op: Op, units: frozenset[DType]) -> bool:
    """Whether it multiplies bytes that a unit does, with sums in 32 bits."""
    return (
        dt.i8 in units
        and op.attrs.get("sums") is dt.i32
        and known_product(op).slides
        and all(dtype_of(v) is dt.i8 for v in op.operands[:2])
    )


def _slides_deep(op: Op, multiple: int) -> bool:
    """Whether it is a convolution without groups that adds up not much less than a multiple of so many products."""
    product = known_product(op)
    depth = sized(shape_of(op.operands[1])[k] for k in product.summed)
    slides = product.slides and "sums" in op.attrs and op.attrs["groups"] == 1
    return slides and depth.is_const and is_deep(depth.value, multiple)


def _products(module: Module, ctx: PassContext) -> Mapping[Op, NarrowChoice]:
    """The products whose operands stay in 16 bits, with what says how. Weights are known only when constants have been
    folded."""
    target = ctx.target
    dot = None if target is None or ctx.strict else float_dot(target, exact=not ctx.fast)
    if target is None or dot is None or not any(is_considered(op, dot.left) for op in module.main.body.ops):
        return {}
    for step in (Canonicalize(), Fold()):
        step.run(module, ctx)
    choice = NarrowChoice.of(module, dot, target)
    found = [op for op in module.main.body.ops if is_considered(op, dot.left) and not traits_of(op).has_state]
    return {op: choice for op in found if decided(op, choice, ctx)}


def _widened_type(type: TensorType) -> TensorType:
    return TensorType(dt.f32, type.shape) if type.dtype in NARROW else type


def _widened_number(value: Value) -> Value | None:
    """A `full` in float32, of the number as 16 bits hold it."""
    number = defining(value, "full")
    if number is None:
        return None
    return full(value=rounded(number.attrs["value"], dtype_of(value)), dtype=dt.f32, shape=number.attrs["shape"])


def rounded(number: Any, dtype: DType) -> float:
    """A number as an element of a float dtype holds it."""
    with np.errstate(over="ignore"):
        return float(np.asarray(number).astype(dtype.storage))
