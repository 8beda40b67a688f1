"""Arithmetic, comparisons and activations, element by element."""

from __future__ import annotations

from functools import reduce

from tilewright.frontends.tflite.node import OperatorNode
from tilewright.frontends.tflite.registry import binds, tflite
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ops import activation as act
from tilewright.ops import elementwise as ew
from tilewright.ops.reduce import dtype_of
from tilewright.ops.view import reshape, shape_of


def _floor_div(a: Value, b: Value) -> Value:
    if dtype_of(a).is_float:
        return ew.floor(ew.div(a, b))
    return ew.div(ew.sub(a, ew.mod(a, b)), b)


def _squared_difference(a: Value, b: Value) -> Value:
    difference = ew.sub(a, b)
    return ew.mul(difference, difference)


def _gelu(x: Value, *, approximate: bool) -> Value:
    return act.gelu(x, approximate="tanh" if approximate else "none")


binds(
    {
        "NEG": ew.neg, "ABS": ew.abs_, "EXP": ew.exp, "LOG": ew.log, "SQRT": ew.sqrt, "RSQRT": ew.rsqrt,
        "SIN": ew.sin, "COS": ew.cos, "FLOOR": ew.floor, "CEIL": ew.ceil, "ROUND": ew.round_, "SIGN": ew.sign,
        "TANH": ew.tanh, "LOGISTIC": ew.sigmoid, "LOGICAL_NOT": ew.not_, "ELU": act.elu, "HARD_SWISH": act.hard_swish,
        "SQUARE": lambda x: ew.mul(x, x), "RELU_0_TO_1": lambda x: act.clip(x, 0.0, 1.0),
        "LEAKY_RELU": act.leaky_relu, "PRELU": act.prelu, "GELU": _gelu,
        "ADD": ew.add, "SUB": ew.sub, "MUL": ew.mul, "DIV": ew.div, "POW": ew.pow_, "FLOOR_DIV": _floor_div,
        "FLOOR_MOD": ew.mod, "SQUARED_DIFFERENCE": _squared_difference, "ATAN2": ew.atan2, "BITWISE_XOR": ew.xor,
        "LOGICAL_AND": ew.and_, "LOGICAL_OR": ew.or_, "EQUAL": ew.eq, "NOT_EQUAL": ew.ne, "LESS": ew.lt,
        "LESS_EQUAL": ew.le, "GREATER": ew.gt, "GREATER_EQUAL": ew.ge,
        "ADD_N": lambda *operands: reduce(ew.add, operands),
    }
)  # fmt: skip
binds({"MAXIMUM": ew.max_, "MINIMUM": ew.min_, "DENSIFY": lambda x: x}, moves=True)  # constants are read densely


@tflite("RELU", "RELU6", "RELU_N1_TO_1")
def limited(node: OperatorNode) -> Value:
    return node.activated(node.input(0), node.op)


@tflite("CAST")
def cast(node: OperatorNode) -> Value:
    """Quantised integers are cast as they are."""
    return ew.cast(node.raw(0), dtype=node.result_dtype())


@tflite("BITCAST")
def bitcast(node: OperatorNode) -> Value:
    return ew.bitcast(node.raw(0), dtype=node.result_dtype())


@tflite("QUANTIZE")
def quantize(node: OperatorNode) -> Value:
    """Floats, or integers by other parameters, which the importer quantises by those of the result."""
    return ew.cast(node.input(0), dtype=dt.f32) if dtype_of(node.input(0)) == dt.f16 else node.input(0)


@tflite("DEQUANTIZE")
def dequantize(node: OperatorNode) -> Value:
    x = node.input(0)
    return x if dtype_of(x) is node.result_dtype() else ew.cast(x, dtype=node.result_dtype())


@tflite("FAKE_QUANT")
def fake_quant(node: OperatorNode) -> Value:
    """The nearest of 2^bits numbers from `min` to `max`, moved so that 0 is one of them."""
    low, high, bits = float(node.options["min"]), float(node.options["max"]), node.integer("num_bits", 2)
    least, most = int(node.flag("narrow_range")), 2**bits - 1
    if bits > 16 or not low < high:
        raise ModelError(f"FAKE_QUANT of {bits} bits from {low} to {high}")
    scale = (high - low) / (most - least)
    zero = min(max(round(least - low / scale), least), most)
    steps = ew.round_(ew.div(node.input(0), scale))
    return ew.mul(act.clip(steps, float(least - zero), float(most - zero)), scale)


@tflite("SELECT", "SELECT_V2", moves=True)
def select(node: OperatorNode) -> Value:
    """A vector as the condition of SELECT chooses slices along axis 0."""
    condition = node.raw(0)
    if node.op == "SELECT" and node.rank(0) == 1 and node.rank(1) > 1:
        condition = reshape(condition, shape=(*shape_of(condition), *[sym(1)] * (node.rank(1) - 1)))
    return ew.select(condition, node.input(1), node.input(2))
