"""Softmax and normalisations of rows, in integers (after I-BERT, Kim et al., 2021)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.integer.fixed import Fixed, as_scale, centred, rescaled, times, uniform
from tilewright.graph.integer.obstacles import Obstacle
from tilewright.graph.integer.state import FIXED_POINT, Numbers
from tilewright.graph.integer.sums import plus_known
from tilewright.graph.match import shape_of
from tilewright.ir.core import Op
from tilewright.ir.types import product
from tilewright.ops.fixed_point import LOG_BITS, MEAN_BITS, SHARE_BITS, softmax_fixed, standardize_fixed
from tilewright.ops.norm import layer_norm, rms_norm, softmax

LOG_LIMIT = 1 << 30
"""The greatest logarithm, of which differences are taken."""

MOST_ELEMENTS = 1 << 20
"""Elements of a row whose squares have a sum of 63 digits."""


@FIXED_POINT.rule(softmax)
def _softmax(op: Op, numbers: Numbers) -> Fixed:
    logarithms = rescaled(uniform(numbers.of(op.operands[0])), np.log(2) / (1 << LOG_BITS), LOG_LIMIT)
    found = softmax_fixed(logarithms.value, axis=op.attrs["axis"])
    return Fixed(found, as_scale(2.0**-SHARE_BITS), 0, 1 << SHARE_BITS)


@FIXED_POINT.rule(layer_norm)
def _layer_norm(op: Op, numbers: Numbers) -> Fixed:
    scale, *bias = op.operands[1:]
    found = _known_factors(_standardized(op, numbers, centre=True), scale, numbers)
    if not bias:
        return found
    shift = numbers.array(bias[0])
    if not numbers.is_known(bias[0]) or shift is None:
        raise Obstacle("its bias is not known when compiling")
    return plus_known(found, shift)


@FIXED_POINT.rule(rms_norm)
def _rms_norm(op: Op, numbers: Numbers) -> Fixed:
    return _known_factors(_standardized(op, numbers, centre=False), op.operands[1], numbers)


def _known_factors(x: Fixed, scale: Any, numbers: Numbers) -> Fixed:
    factors = numbers.array(scale) if numbers.is_known(scale) else None
    if factors is None:
        raise Obstacle("its scale is not known when compiling")
    return times(x, factors)


def _standardized(op: Op, numbers: Numbers, centre: bool) -> Fixed:
    x = uniform(numbers.of(op.operands[0]))
    shape = shape_of(x.value)
    axes = tuple(range(op.attrs["axis"] % len(shape), len(shape)))
    count = product(shape[a] for a in axes)
    if not count.is_const or not 0 < count.value <= MOST_ELEMENTS:
        raise Obstacle("the number of elements of its rows is not known when compiling", "fix the sizes of the inputs")
    digits = max(MEAN_BITS - x.bound.bit_length(), 0)
    goal = x.scale / (1 << digits) if digits else x.range / ((1 << MEAN_BITS) - 2)
    fine = rescaled(x, goal, 1 << MEAN_BITS)
    epsilon = round(min(op.attrs["epsilon"] / float(fine.scale) ** 2, 1 << 42))
    root = int(np.ceil(np.sqrt(count.value)))
    bits = 30 - (root + 1).bit_length()
    found = standardize_fixed(centred(fine), axes=axes, bits=bits, epsilon=epsilon, centred=centre)
    bound = (root + 1) << bits
    return Fixed(found, as_scale(2.0**-bits), -bound, bound)
