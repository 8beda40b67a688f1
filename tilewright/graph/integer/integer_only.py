"""A quantised network as a program of integers alone.

Each tensor of floats becomes one of integers that stand for the same numbers in fixed point (`fixed.py`): what
`DequantizeLinear` gives are the bytes themselves, sums of products are in i32, and a known factor changes what the
integers stand for, not the integers. `QuantizeLinear` multiplies by an integer and shifts. Functions of one byte are
tables. What goes in and out as floats becomes integers, too, whose scales and zero points the report says.

All that has no such form is one error. The paper that showed the arithmetic is Jacob et al. (2018), "Quantization and
training of neural networks for efficient integer-arithmetic-only inference".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.integer import rows as rows  # whose operators have their rules from it
from tilewright.graph.integer.border import give_integers, take_integers
from tilewright.graph.integer.curves import Curve, applied, bytes_of, every_byte
from tilewright.graph.integer.fixed import Fixed, as_scale, of_integers, requantized
from tilewright.graph.integer.obstacles import Obstacle, raise_if_any
from tilewright.graph.integer.rules import moved, rule_of
from tilewright.graph.integer.state import FIXED_POINT, Numbers
from tilewright.graph.match import dtype_of, is_constant, shape_of, type_of, uniform_number
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.graph.rewrites.expand import Expand
from tilewright.ir.core import Block, Builder, Module, Op, Value, replace_in_block
from tilewright.ir.diag import Problem
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS, constant
from tilewright.ops.define.interp import evaluate
from tilewright.ops.quant import OF_NUMBERS, dequantize_linear, quantize_linear
from tilewright.ops.traits.derive import is_view, traits_of
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.passes import PassContext


def _kept() -> tuple[str, ...]:
    """Composites that have a form in integers of their own, or are one."""
    has_form = (name for name, o in OPERATORS.items() if FIXED_POINT.has(o) or OF_NUMBERS.has(o))
    return (quantize_linear.name, dequantize_linear.name, *has_form)


@dataclass(frozen=True)
class IntegerOnly:
    """Compute with integers alone; UnsupportedError that lists every obstacle."""

    name: ClassVar[str] = "integer-only"

    def run(self, module: Module, ctx: PassContext) -> None:
        Expand(keep=_kept()).run(module, ctx)
        numbers = Numbers(module)
        rewriting = _Rewriting(module, numbers)
        body = module.main.body
        border = take_integers(module, numbers)
        *ops, final = body.ops
        for op in ops:
            rewriting.take(op)
        with rewriting.builder:
            border += give_integers(module, final, numbers)
        raise_if_any(numbers.problems)
        replace_in_block(body, [*rewriting.builder.block.ops, final])
        module.main.attrs["integers"] = tuple(border)
        drop_dead(module)
        message = f"{rewriting.count} operators on integers, {len(border)} inputs and outputs of integers"
        ctx.remark(self.name, "the model", message, applied=True)

    def run_plainly(self, module: Module, ctx: PassContext) -> None:
        """It is no optimisation."""
        self.run(module, ctx)


class _Rewriting:
    """The program so far."""

    def __init__(self, module: Module, numbers: Numbers) -> None:
        self.builder = Builder(Block(), module)
        self.numbers = numbers
        self.count = 0

    def take(self, op: Op) -> None:
        """Append `op`, or what takes its place."""
        with self.builder.at(op.loc), self.builder:
            if not any(is_float(v) for v in (*op.operands, *op.results)) or any(map(is_constant, op.results)):
                self.builder.block.append(op)
                return
            if any(v in self.numbers.missing for v in op.operands):
                self.numbers.missing.update(op.results)
                return
            try:
                self._rewrite(op)
            except Obstacle as obstacle:
                self._note(op, obstacle)
            op.drop()
            self.count += 1

    def _note(self, op: Op, obstacle: Obstacle) -> None:
        """Remember an obstacle; what is computed from it is none of its own."""
        self.numbers.missing.update(op.results)
        problem = Problem(op.loc.op or op.name, op.loc.node, obstacle.reason, obstacle.hint)
        if problem not in self.numbers.problems:
            self.numbers.problems.append(problem)

    def _rewrite(self, op: Op) -> None:
        numbers = self.numbers
        if op.name == "quantize_linear":
            op.result.replace_by(self._quantized(op))
        elif op.name == "dequantize_linear":
            self._dequantized(op)
        elif len(op.results) == 1 and op.operands and all(numbers.is_known(v) for v in op.operands):
            self._known(op)
        elif len(op.results) != 1:
            raise Obstacle("it has no form in integers")
        else:
            self._computed(op)

    def _known(self, op: Op) -> None:
        self.numbers.note_known(op)
        if not is_float(op.result):
            array = self.numbers.array(op.result)
            assert array is not None
            op.result.replace_by(constant(np.ascontiguousarray(array), "known"))
            return
        found = self.numbers.quantized.get(op.operands[0])
        if found is not None and is_view(op):
            attrs, name = dict(op.attrs), op.name

            def moved_weights() -> tuple[np.ndarray, np.ndarray]:
                array, scale = found()
                if scale.ndim and name != "transpose":
                    raise Obstacle("its weights are moved, and have several scales", "move the integers")
                made = evaluate(OPERATORS[name], array, **attrs)
                return made, np.transpose(scale, attrs["perm"]) if scale.ndim else scale

            self.numbers.quantized[op.result] = moved_weights

    def _computed(self, op: Op) -> None:
        """An operator on what is computed in the call: its integers, its curve, or both."""
        numbers, result = self.numbers, op.result
        if op.operands[0] in numbers.curves and traits_of(op).moves_one:
            self._move(op, numbers.curves[op.operands[0]])
            return
        curve = self._curve(op)
        made: Fixed | Value | None = None
        has_integers = not any(v in numbers.curves and v not in numbers.fixed for v in op.operands if is_float(v))
        if curve is None or has_integers:
            try:
                made = self._by_rule(op)
            except Obstacle:
                if curve is None:
                    raise
        if isinstance(made, Fixed):
            numbers.fixed[result] = made
        elif not is_float(result):
            result.replace_by(made := made or _of_curve(curve, result))
        if curve is not None:
            numbers.curves[made if isinstance(made, Value) else result] = curve

    def _move(self, op: Op, curve: Curve) -> None:
        """Elements that are a function of bytes are where the bytes go."""
        root, x = moved(op, curve.root), self.numbers.fixed.get(op.operands[0])
        self.numbers.curves[op.result] = Curve(root, curve.elements)
        if x is not None and x.value is curve.root:
            self.numbers.fixed[op.result] = x.on(root)

    def _by_rule(self, op: Op) -> Fixed | Value:
        rule = rule_of(op)
        if rule is None:
            raise Obstacle("it has no form in integers")
        return rule(op, self.numbers)

    def _curve(self, op: Op) -> Curve | None:
        """The result as a function of one byte."""
        numbers = self.numbers
        varying = [v for v in op.operands if not self._is_number(v)]
        curves = [numbers.curves.get(v) for v in varying]
        if not curves or any(c is None for c in curves):
            return None
        first = curves[0]
        assert first is not None
        if not is_elementwise(op) or any(c is None or c.root is not first.root for c in curves):
            return None
        if shape_of(op.result) != shape_of(first.root):
            return None
        elements = applied(op, [self._argument(v) for v in op.operands])
        return None if elements is None else Curve(first.root, elements)

    def _argument(self, value: Value) -> np.ndarray:
        number = self._number(value)
        return self.numbers.curves[value].elements if number is None else number

    def _is_number(self, value: Value) -> bool:
        return self._number(value) is not None

    def _number(self, value: Value) -> np.ndarray | None:
        """The only element that a known tensor has."""
        if value in self.numbers.curves or (not self.numbers.is_known(value) and not _is_full(value)):
            return None
        if value in self.numbers.known:
            if type_of(value).size != 1:
                return None
            array = self.numbers.array(value)
            return None if array is None else array.reshape(())
        number = uniform_number(value, self.numbers.module)
        return None if number is None else np.asarray(number).astype(dtype_of(value).storage)

    # To integers and back

    def _parameters(self, op: Op) -> tuple[np.ndarray, np.ndarray]:
        """The scales and zero points, which are known."""
        arrays = [self.numbers.array(v) if self.numbers.is_known(v) else None for v in op.operands[1:]]
        scale, zero = arrays
        if scale is None or zero is None:
            raise Obstacle("its scale is computed in the call", "quantise statically, with scales that are known")
        exact = as_scale(scale)
        if not np.all(np.isfinite(exact)) or np.any(exact <= 0):
            raise Obstacle("its scale is no positive number", "quantise with positive scales")
        return exact, zero

    def _quantized(self, op: Op) -> Value:
        x, dtype = op.operands[0], op.attrs["dtype"]
        scale, zeros = self._parameters(op)
        if not dtype.is_int or dtype.bits > 16:
            raise Obstacle(f"it quantises to {dtype}", "quantise to integers of 8 or 16 bits")
        known = self.numbers.array(x) if self.numbers.is_known(x) else None
        if known is not None:
            parameters = [np.asarray(scale, np.float32), zeros]
            return constant(evaluate(OPERATORS[op.name], _whole(known, x), *parameters, **op.attrs), "known")
        zero = _only(zeros)
        curve = self.numbers.curves.get(x)
        if curve is not None and scale.ndim == 0 and dtype.bits == 8:
            parameters = [np.asarray(scale, np.float32), np.asarray(zero).astype(dtype.storage)]
            elements = evaluate(OPERATORS[op.name], curve.elements, *parameters, **op.attrs)
            if elements.dtype == curve.root.tensor.dtype.storage and np.array_equal(elements, every_byte(curve.root)):
                return curve.root
            return bytes_of(Curve(curve.root, elements))
        return requantized(self.numbers.of(x), scale, zero, dtype)

    def _dequantized(self, op: Op) -> None:
        numbers, x, result = self.numbers, op.operands[0], op.result
        scale, zeros = self._parameters(op)
        if not dtype_of(x).is_int:
            raise Obstacle(f"it dequantises {dtype_of(x)}", "quantise to integers of 8 or 16 bits")
        if numbers.is_known(x):
            numbers.note_known(op)
            array = numbers.array(x)
            assert array is not None
            numbers.quantized[result] = lambda: (array.astype(np.int64) - zeros.astype(np.int64), scale)
            return
        if dtype_of(x).bits > 16:
            if np.any(zeros):
                raise Obstacle("its integers of 32 bits have a zero point", "quantise to integers of 8 or 16 bits")
            limit = np.iinfo(dtype_of(x).storage).max
            if dtype_of(x).bits > 32:
                raise Obstacle(f"it dequantises {dtype_of(x)}", "quantise to integers of 8 or 16 bits")
            numbers.fixed[result] = Fixed(x, scale, -limit - 1, limit)
            return
        zero = _only(zeros)
        numbers.fixed[result] = of_integers(x, scale, zero)
        if scale.ndim == 0 and dtype_of(x).bits == 8:
            parameters: list[Any] = [np.float32(scale), np.asarray(zero).astype(dtype_of(x).storage)]
            elements = evaluate(OPERATORS[op.name], every_byte(x), *parameters, dtype=op.attrs["dtype"])
            numbers.curves[result] = Curve(x, elements)


def is_float(value: Value) -> bool:
    """Whether it is a tensor of floats."""
    return isinstance(value.type, TensorType) and value.type.dtype.is_float


def _of_curve(curve: Curve | None, result: Value) -> Value:
    """A result of bytes or truth values that is a function of bytes."""
    if curve is None or curve.elements.dtype.itemsize != 1:
        raise Obstacle("it has no form in integers")
    return bytes_of(curve)


def _whole(array: np.ndarray, value: Value) -> np.ndarray:
    """All elements of a value of which `array` may be the only one."""
    return np.ascontiguousarray(np.broadcast_to(array, [d.value for d in shape_of(value)]))


def _is_full(value: Value) -> bool:
    return value.op is not None and value.op.name == "full"


def _only(zeros: np.ndarray) -> int:
    """The zero point of all elements."""
    flat = zeros.reshape(-1)
    if not flat.size or np.any(flat != flat[0]):
        raise Obstacle("its channels have several zero points", "quantise activations by one zero point")
    return int(flat[0])
