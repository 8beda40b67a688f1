"""What is stated of rules about numbers, and of those that move factors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.proofs.statement import Given, Statement, stated, typed
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import var
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import conv, matmul
from tilewright.ops.define import OPERATORS, constant
from tilewright.ops.quant import conv_integer, dequantize_linear, quantize_linear
from tilewright.ops.source import full
from tilewright.ops.view import concat, pad, slice_, transpose

N, M, K, D = (var(name) for name in ("n", "m", "k", "d"))
INTEGERS = dict(dtype=dt.i8)


def number(value: float, dtype: DType = dt.f32) -> Value:
    return full(value=value, dtype=dtype, shape=())


def scalars() -> Iterator[Statement]:
    """Of rules about single elements."""
    exchanged = [name for name in ("add", "mul", "min", "max", "eq", "ne") if name in OPERATORS]
    for name in exchanged:
        yield stated("constant_on_the_right", name, lambda c, x, f=OPERATORS[name]: f(c, x),
                     typed(M), typed(N, M), constants=[0])  # fmt: skip
    for name in ("and", "or", "xor"):
        yield stated("constant_on_the_right", name, lambda c, x, f=OPERATORS[name]: f(c, x),
                     typed(M, **INTEGERS), typed(N, M, **INTEGERS), constants=[0])  # fmt: skip
    floats = {"add": 0, "sub": 0, "mul": 1, "div": 1, "max": -np.inf, "min": np.inf}
    for name, neutral in floats.items():
        yield stated("right_identity", f"{name} of floats", lambda x, f=OPERATORS[name], n=neutral: f(x, number(n)),
                     typed(N), arithmetic="floats", one_zero=name == "add")  # fmt: skip
    integers = {"add": 0, "sub": 0, "mul": 1, "div": 1, "and": -1, "or": 0, "xor": 0}
    for name, neutral in integers.items():
        yield stated("right_identity", f"{name} of integers",
                     lambda x, f=OPERATORS[name], n=neutral: f(x, number(n, dt.i8)),
                     typed(N, **INTEGERS), arithmetic="integers")  # fmt: skip
    for divisor in (2.0, 0.5, -4.0, 1.0, 0.25):
        yield stated("division_by_power_of_two", f"by {divisor}", lambda x, c=divisor: ew.div(x, number(c)),
                     typed(N), arithmetic="floats")  # fmt: skip
    for taken in (1.5, -0.5, 0.0):
        yield stated("subtraction_of_constant", f"{taken}", lambda x, c=taken: ew.sub(x, number(c)),
                     typed(N), arithmetic="floats")  # fmt: skip
    for exponent in (2.0, 3.0, 0.5, -0.5, -1.0):
        yield stated("power_by_constant", f"to the {exponent}", lambda x, e=exponent: ew.pow_(x, number(e)),
                     typed(N), arithmetic="reals",
                     given=(Given(0, ">", 0.0),) if exponent % 1 else ())  # fmt: skip
    yield stated("reciprocal_of_root", "1 / sqrt(x)", lambda x: ew.div(number(1.0), ew.sqrt(x)), typed(N),
                 arithmetic="reals")  # fmt: skip
    yield stated("double_negation", "of floats", lambda x: ew.neg(ew.neg(x)), typed(N), arithmetic="floats")
    yield stated("double_negation", "of integers", lambda x: ew.neg(ew.neg(x)), typed(N, **INTEGERS),
                 arithmetic="integers")  # fmt: skip
    yield stated("double_negation", "of conditions", lambda x: OPERATORS["not"](OPERATORS["not"](x)),
                 typed(N, dtype=dt.bool_))  # fmt: skip
    for name in ("max", "min"):
        f = OPERATORS[name]
        yield stated("bounds_that_meet", name, lambda x, a, b, f=f: f(f(x, a), b), typed(N), typed(N), typed(N),
                     arithmetic="floats", one_zero=True, constants=[1, 2])  # fmt: skip
    for name in ("add", "mul"):
        f = OPERATORS[name]
        yield stated("constants_that_meet", name, lambda x, a, b, f=f: f(f(x, a), b), typed(N), typed(N), typed(N),
                     arithmetic="reals", constants=[1, 2])  # fmt: skip
    for flag in (0, 1):
        yield stated("known_choice", f"by {bool(flag)}",
                     lambda x, y, c=flag: ew.select(number(c, dt.bool_), x, y), typed(N), typed(N))  # fmt: skip
    yield stated("known_choice", "between equal things", lambda c, x: ew.select(c, x, x),
                 typed(N, dtype=dt.bool_), typed(N))  # fmt: skip
    both = "to the same dtype (chains of two are tried with all numbers of short types)"
    yield stated("needless_cast", both, lambda x: ew.cast(x, dtype=dt.f32), typed(N))
    yield stated("cast_of_number", "to float16", lambda: ew.cast(number(2.5), dtype=dt.f16), arithmetic="reals")
    root = lambda x: ew.sqrt(ew.add(x, number(1e-3)))  # noqa: E731
    yield stated("division_of_rows", "by a root", lambda x, y: ew.div(x, root(y)), typed(N, 2), typed(N, 1),
                 arithmetic="reals", given=(Given(1, ">=", 0.0),))  # fmt: skip
    yield stated("division_by_constant", "by 3", lambda x: ew.div(x, constant(np.float32([3]), "c")), typed(N, 2),
                 arithmetic="reals")  # fmt: skip


def factors() -> Iterator[Statement]:
    """Of rules that move factors over sums, and into weights."""
    product = lambda x, w: matmul(x, w)  # noqa: E731
    types = (typed(N, K), typed(K, 4))
    yield stated("difference_with_constant", "of a product", lambda x, w, c: ew.sub(product(x, w), c),
                 *types, typed(4), constants=[1, 2], arithmetic="floats")  # fmt: skip
    yield stated("factor_over_sum", "for each channel",
                 lambda x, w, b, c: ew.mul(ew.add(product(x, w), b), c),
                 *types, typed(4), typed(4), constants=[1, 2, 3], arithmetic="reals")  # fmt: skip
    yield stated("factor_over_scaled_integers", "of a sum", lambda n, s, b, c: ew.mul(
        ew.add(ew.mul(ew.cast(n, dtype=dt.f32), s), b), c),
        typed(N, 4, dtype=dt.i32), typed(4), typed(4), typed(4), constants=[1, 2, 3], arithmetic="reals")  # fmt: skip
    yield stated("factor_into_weights", "matmul", lambda x, w, c: ew.mul(product(x, w), c),
                 *types, typed(4), constants=[1, 2], arithmetic="reals")  # fmt: skip
    yield stated("factor_into_weights", "conv", lambda x, w, c: ew.mul(
        conv(x, w, pads_begin=(1, 1), pads_end=(1, 1)), c),
        typed(N, K, M, D), typed(4, K, 3, 3), typed(4, 1, 1), constants=[1, 2], arithmetic="reals")  # fmt: skip
    yield stated("number_of_operand", "left", lambda x, y: matmul(ew.mul(x, number(0.125)), y),
                 typed(N, K), typed(K, M), arithmetic="reals")  # fmt: skip
    yield stated("number_of_operand", "right, behind a transpose",
                 lambda x, y: matmul(x, transpose(ew.mul(y, number(0.125)), perm=(1, 0))),
                 typed(N, K), typed(M, K), arithmetic="reals")  # fmt: skip
    long = var("k", 1)
    for name in ("mul", "div"):
        yield stated("factor_of_rows", name, lambda x, r, y, f=OPERATORS[name]: matmul(f(x, r), y),
                     typed(N, long), typed(N, 1), typed(long, 1), arithmetic="reals",
                     given=(Given(1, "!=", 0.0),))  # fmt: skip
        yield stated("factor_of_short_rows", name, lambda x, r, y, f=OPERATORS[name]: matmul(f(x, r), y),
                     typed(N, 1), typed(N, 1), typed(1, 2), arithmetic="reals",
                     given=(Given(1, "!=", 0.0),))  # fmt: skip
    yield stated("rows_of_zeros", "mask", lambda c, x, y: matmul(ew.select(c, number(0.0), x), y),
                 typed(N, 1, dtype=dt.bool_), typed(N, 2), typed(2, M), arithmetic="reals")  # fmt: skip


def convolutions() -> Iterator[Statement]:
    """Of rules about convolutions and what a concat joins."""
    padded = lambda x: pad(x, before=(0, 0, 1, 2), after=(0, 0, 0, 1))  # noqa: E731
    yield stated("padding_into_conv", "3 x 3", lambda x, w: conv(padded(x), w), typed(N, K, M, D), typed(4, K, 3, 3))
    yield stated("padding_into_conv", "with padding and strides", lambda x, w: conv(
        padded(x), w, strides=(2, 1), dilations=(1, 2), pads_begin=(1, 0), pads_end=(0, 1)),
        typed(N, K, M + 4, D + 4), typed(4, K, 3, 2), arithmetic="reals")  # fmt: skip
    yield stated("conv_of_single_elements", "4 channels", lambda x, w: conv(x, w, groups=4), typed(N, 4, M, D),
                 typed(4, 1, 1, 1), arithmetic="reals")  # fmt: skip
    yield stated("filters_within_the_image", "one row", lambda x, w: conv(x, w, pads_begin=(1, 1), pads_end=(1, 1)),
                 typed(N, 2, 1, M), typed(4, 2, 3, 3), arithmetic="reals")  # fmt: skip
    part = lambda x, k: slice_(x, starts=(0, 2 * k, 0), sizes=(N, 2, M))  # noqa: E731
    yield stated("groups_of_one_convolution", "two", lambda x, v, w: concat(
        conv(part(x, 0), v), conv(part(x, 1), w), axis=1),
        typed(N, 4, M), typed(3, 2, 3), typed(3, 2, 3), constants=[1, 2])  # fmt: skip
    for name in ("reduce_max", "reduce_sum"):
        yield stated("reduction_of_each_part", name, lambda x, y, v, w, f=OPERATORS[name]: f(
            concat(matmul(x, v), matmul(y, w), axis=0), axes=(1,), keepdims=False),
            typed(N, K), typed(M, K), typed(K, D), typed(K, D))  # fmt: skip
    yield stated("lines_without_strides", "5 taps, every second", lambda x, w: conv(x, w, strides=(2,)),
                 typed(N, 2, M + 5), typed(3, 2, 5), arithmetic="reals")  # fmt: skip
    yield stated("lines_without_strides", "dilated", lambda x, w: conv(
        x, w, strides=(3,), dilations=(2,), pads_begin=(1,), pads_end=(2,)),
        typed(N, 1, M + 8), typed(2, 1, 4), arithmetic="reals")  # fmt: skip
    yield stated("groups_as_an_axis", "pointwise", lambda x, w: conv(x, w, groups=2), typed(N, 4, 3, 5),
                 typed(6, 2, 1, 1), arithmetic="reals")  # fmt: skip
    yield stated("groups_as_an_axis", "3 x 3", lambda x, w: conv(x, w, groups=2), typed(N, 4, M + 3, D + 3),
                 typed(6, 2, 3, 3), arithmetic="reals")  # fmt: skip
    small = typed(N, 2, 1, M, **INTEGERS)
    yield stated("integer_filters_within_the_image", "one row", lambda x, w, a, b: conv_integer(
        x, w, a, b, pads_begin=(1, 1), pads_end=(1, 1)),
        small, typed(4, 2, 3, 3, **INTEGERS), typed(**INTEGERS), typed(**INTEGERS), arithmetic="reals")  # fmt: skip


def quantised() -> Iterator[Statement]:
    """Of rules about dequantised values."""
    shown = lambda q: dequantize_linear(q, number(0.25), number(3, dt.i8), dtype=dt.f32)  # noqa: E731
    moved = lambda x: transpose(x, perm=(1, 0))  # noqa: E731
    types = (typed(N, M, **INTEGERS), typed(), typed(**INTEGERS))
    yield stated("dequantize_below_move", "transpose",
                 lambda q, s, z: moved(dequantize_linear(q, s, z, dtype=dt.f32)), *types)  # fmt: skip
    yield stated("dequantize_below_pad", "of zeros", lambda q: pad(shown(q), before=(1, 0), after=(0, 2)), types[0],
                 arithmetic="reals")  # fmt: skip
    yield stated("dequantize_below_concat", "of rows", lambda p, q: concat(shown(p), shown(q), axis=0),
                 typed(N, M, **INTEGERS), typed(K, M, **INTEGERS))  # fmt: skip
    yield stated("move_below_quantize", "transpose",
                 lambda x, s, z: quantize_linear(moved(x), s, z, dtype=dt.i8),
                 typed(N, M), *types[1:])  # fmt: skip
