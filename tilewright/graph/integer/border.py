"""What goes in and out of a program of integers: the integers, whose scales and zero points are told.

A program that took floats would have to compute with them to make integers of them, and where it runs there may be
nothing that can.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.graph.integer.curves import Curve, every_byte
from tilewright.graph.integer.fixed import Fixed, as_scale, centred, of_integers, uniform
from tilewright.graph.integer.obstacles import Obstacle
from tilewright.graph.integer.state import Numbers
from tilewright.graph.match import dtype_of
from tilewright.ir.core import Module, Op, Value
from tilewright.ir.diag import Problem
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.interp import evaluate
from tilewright.ops.traits.derive import traits_of

Tensor = tuple[str, str, str, float, int]
"""Whether it is an input or an output, its name, the dtype of its integers, their scale and zero point."""


def take_integers(module: Module, numbers: Numbers) -> list[Tensor]:
    """Give arguments of floats that are quantised at once the dtype of the integers."""
    main, found = module.main, []
    names = main.attrs.get("inputs", tuple(a.name for a in main.args))
    for name, arg in zip(names, main.args, strict=True):
        if not isinstance(arg.type, TensorType) or not arg.type.dtype.is_float or not arg.users:
            continue
        try:
            fixed = _taken(arg, numbers)
        except Obstacle as obstacle:
            numbers.problems.append(Problem("the input", name, obstacle.reason, obstacle.hint))
            numbers.missing.add(arg)
            continue
        found.append(_described("input", name, fixed))
    return found


def _taken(arg: Value, numbers: Numbers) -> Fixed:
    quantized = list(_readers(arg))
    hint = "quantise it before all else (QuantizeLinear and DequantizeLinear behind it, with known scales)"
    if not quantized or any(op.name != "quantize_linear" for op in quantized):
        other = next((op for op in quantized if op.name != "quantize_linear"), None)
        raise Obstacle(f"it is read as floats by {other.loc if other else 'nothing'}", hint)
    first = quantized[0]
    arrays = [[numbers.array(v) if numbers.is_known(v) else None for v in op.operands[1:]] for op in quantized]
    if any(a is None or a.size != 1 for row in arrays for a in row):
        raise Obstacle("it is not quantised by one known scale and zero point", hint)
    scale, zero = (np.asarray(a).reshape(()) for a in arrays[0])
    dtype = first.attrs["dtype"]
    alike = all(np.asarray(a).reshape(()) == b for row in arrays for a, b in zip(row, (scale, zero), strict=True))
    if not alike or any(op.attrs["dtype"] is not dtype for op in quantized):
        raise Obstacle("its readers quantise it differently", "quantise it once")
    if not dtype.is_int or dtype.bits > 16 or not 0 < scale < np.inf:
        raise Obstacle(f"it is quantised to {dtype}, or by a scale that is no positive number", hint)
    kind = arg.type
    assert isinstance(kind, TensorType)
    arg.type = TensorType(dtype, kind.shape)
    fixed = of_integers(arg, as_scale(scale), int(zero))
    numbers.fixed[arg] = fixed
    if dtype.bits == 8:
        elements = evaluate(OPERATORS["dequantize_linear"], every_byte(arg), scale, zero, dtype=kind.dtype.accumulator)
        numbers.curves[arg] = Curve(arg, elements.astype(kind.dtype.storage))
    return fixed


def _readers(value: Value) -> Iterator[Op]:
    """What reads a value, or the elements that were moved or cast from it."""
    for user in value.users:
        is_cast = user.name == "cast" and dtype_of(user.result).is_float
        if (traits_of(user).moves_one and user.operands[0] is value) or is_cast:
            yield from _readers(user.result)
        else:
            yield user


def give_integers(module: Module, final: Op, numbers: Numbers) -> list[Tensor]:
    """Return the integers in place of floats."""
    names = module.main.attrs.get("outputs", tuple(f"output{k}" for k in range(len(final.operands))))
    given, found = list(final.operands), []
    for k, (name, value) in enumerate(zip(names, final.operands, strict=True)):
        if not isinstance(value.type, TensorType) or not (value.type.dtype.is_float or value in numbers.fixed):
            continue
        if value in numbers.missing:
            continue
        try:
            fixed = uniform(numbers.of(value))
        except Obstacle as obstacle:
            numbers.problems.append(Problem("the output", name, obstacle.reason, obstacle.hint))
            continue
        given[k] = fixed.value if fixed.is_narrow else centred(fixed)
        found.append(_described("output", name, fixed))
    final.set_operands(given)
    return found


def _described(side: str, name: str, x: Fixed) -> Tensor:
    return side, name, dtype_of(x.value).storage.name, float(x.scale), x.zero
