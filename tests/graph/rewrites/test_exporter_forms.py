"""Norms, activations and attention in the forms that exporters write: each becomes the kernels of the operator kept
whole, and computes what NumPy computes in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from tests.graph.programs import inputs, kinds, program, run
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.pipeline import default_passes
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.types import tensor
from tilewright.ops import activation, norm
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops import view as vw
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.source import full
from tilewright.options import Options
from tilewright.schedule.strategies import STRATEGIES

Body = Callable[..., Value]


@dataclass(frozen=True)
class Family:
    """An operator, its reference, the shapes of its arguments, the kind of its one kernel, and how it is written."""

    whole: Body
    reference: Callable[..., np.ndarray]
    shapes: tuple[tuple[int, ...], ...]
    strategy: str
    forms: tuple[Body, ...]


def mean(x: Value) -> Value:
    return rd.reduce_mean(x, axes=(-1,), keepdims=True)


def reference_layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


def layer_norm_of_powers(x: Value, w: Value, b: Value) -> Value:
    centred = ew.sub(x, mean(x))
    deviation = ew.sqrt(ew.add(mean(ew.pow_(centred, 2.0)), 1e-5))
    return ew.add(ew.mul(ew.div(centred, deviation), w), b)


def layer_norm_of_reciprocals(x: Value, w: Value, b: Value) -> Value:
    """As Keras writes it: one factor and one offset for each row and column."""
    centre = mean(x)
    difference = ew.sub(x, centre)
    variance = mean(ew.mul(difference, difference))
    factor = ew.mul(ew.div(1.0, ew.sqrt(ew.add(variance, 1e-5))), w)
    return ew.add(ew.mul(x, factor), ew.sub(b, ew.mul(centre, factor)))


def layer_norm_of_roots(x: Value, w: Value, b: Value) -> Value:
    centred = ew.sub(x, mean(x))
    return ew.add(ew.mul(w, ew.mul(centred, ew.rsqrt(ew.add(mean(ew.mul(centred, centred)), 1e-5)))), b)


def reference_rms_norm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w


def rms_norm_of_powers(x: Value, w: Value) -> Value:
    return ew.mul(w, ew.mul(x, ew.div(1.0, ew.sqrt(ew.add(mean(ew.pow_(x, 2.0)), 1e-5)))))


def rms_norm_of_quotients(x: Value, w: Value) -> Value:
    return ew.mul(ew.div(x, ew.sqrt(ew.add(mean(ew.mul(x, x)), 1e-5))), w)


def rms_norm_of_sums(x: Value, w: Value) -> Value:
    power = ew.div(rd.reduce_sum(ew.mul(x, x), axes=(-1,), keepdims=True), 40.0)
    return ew.mul(ew.mul(x, ew.pow_(ew.add(power, 1e-5), -0.5)), w)


def reference_softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def powers_of(x: Value) -> Value:
    return ew.exp(ew.sub(x, rd.reduce_max(x, axes=(-1,), keepdims=True)))


def softmax_of_quotients(x: Value) -> Value:
    return ew.div(powers_of(x), rd.reduce_sum(powers_of(x), axes=(-1,), keepdims=True))


def softmax_of_reciprocals(x: Value) -> Value:
    powers = powers_of(x)
    return ew.mul(powers, ew.div(1.0, rd.reduce_sum(powers, axes=(-1,), keepdims=True)))


def softmax_of_logarithms(x: Value) -> Value:
    return ew.exp(norm.log_softmax(x))


def reference_gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_of_quotients(x: Value) -> Value:
    return ew.mul(ew.mul(x, ew.add(ew.erf(ew.div(x, math.sqrt(2))), 1.0)), 0.5)


def gelu_of_halves(x: Value) -> Value:
    return ew.mul(ew.mul(0.5, x), ew.add(1.0, ew.erf(ew.mul(x, math.sqrt(0.5)))))


def reference_gelu_of_tanh(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_of_powers(x: Value) -> Value:
    inner = ew.mul(math.sqrt(2 / math.pi), ew.add(x, ew.mul(0.044715, ew.pow_(x, 3.0))))
    return ew.mul(ew.mul(0.5, x), ew.add(1.0, ew.tanh(inner)))


def gelu_of_products(x: Value) -> Value:
    inner = ew.mul(ew.mul(x, 0.7978845608), ew.add(ew.mul(ew.mul(x, x), 0.044715), 1.0))
    return ew.mul(x, ew.mul(ew.add(ew.tanh(inner), 1.0), 0.5))


def reference_silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def silu_of_sigmoid(x: Value) -> Value:
    return ew.mul(ew.sigmoid(x), x)


def silu_of_quotient(x: Value) -> Value:
    return ew.div(x, ew.add(ew.exp(ew.neg(x)), 1.0))


def reference_hard_swish(x: np.ndarray) -> np.ndarray:
    return x * np.clip(x + 3, 0, 6) / 6


def hard_swish_of_clip(x: Value) -> Value:
    return ew.div(ew.mul(x, ew.min_(ew.max_(ew.add(x, 3.0), 0.0), 6.0)), 6.0)


def hard_swish_of_hard_sigmoid(x: Value) -> Value:
    return ew.mul(x, activation.hard_sigmoid(x, alpha=1 / 6, beta=0.5))


def reference_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return reference_softmax(q @ k.swapaxes(-1, -2) / 4 + mask) @ v


def attention_whole(q: Value, k: Value, v: Value, mask: Value) -> Value:
    scores = ew.add(ew.mul(ct.matmul(q, k, transpose_b=True), 0.25), mask)
    return ct.matmul(norm.softmax(scores), v)


def transposed(k: Value) -> Value:
    return vw.transpose(k, perm=(0, 1, 3, 2))


def attention_scaled_after(q: Value, k: Value, v: Value, mask: Value) -> Value:
    return ct.matmul(softmax_of_quotients(ew.add(ew.div(ct.matmul(q, transposed(k)), 4.0), mask)), v)


def attention_scaled_before(q: Value, k: Value, v: Value, mask: Value) -> Value:
    return ct.matmul(norm.softmax(ew.add(mask, ct.matmul(ew.div(q, 4.0), transposed(k)))), v)


def attention_scaled_on_both_sides(q: Value, k: Value, v: Value, mask: Value) -> Value:
    return ct.matmul(norm.softmax(ew.add(ct.matmul(ew.mul(q, 0.5), transposed(ew.mul(k, 0.5))), mask)), v)


def attention_of_chosen_scores(q: Value, k: Value, v: Value, mask: Value) -> Value:
    """All is allowed: the choice changes nothing."""
    scores = ew.add(ew.mul(ct.matmul(q, transposed(k)), 0.25), mask)
    allowed = ew.lt(scores, 1e9)
    lowest = full(value=-3.4028235e38, dtype=dt.f32, shape=())
    return ct.matmul(softmax_of_reciprocals(ew.select(allowed, scores, lowest)), v)


ROWS = (3, 5, 40)
FAMILIES = {
    "layer_norm": Family(
        norm.layer_norm, reference_layer_norm, (ROWS, (40,), (40,)), "row_reduction",
        (layer_norm_of_powers, layer_norm_of_reciprocals, layer_norm_of_roots),
    ),
    "rms_norm": Family(
        norm.rms_norm, reference_rms_norm, (ROWS, (40,)), "row_reduction",
        (rms_norm_of_powers, rms_norm_of_quotients, rms_norm_of_sums),
    ),
    "softmax": Family(
        norm.softmax, reference_softmax, (ROWS,), "row_reduction",
        (softmax_of_quotients, softmax_of_reciprocals, softmax_of_logarithms),
    ),
    "gelu": Family(activation.gelu, reference_gelu, (ROWS,), "elementwise", (gelu_of_quotients, gelu_of_halves)),
    "gelu_tanh": Family(
        lambda x: activation.gelu(x, approximate="tanh"), reference_gelu_of_tanh, (ROWS,), "elementwise",
        (gelu_of_powers, gelu_of_products),
    ),
    "silu": Family(activation.silu, reference_silu, (ROWS,), "elementwise", (silu_of_sigmoid, silu_of_quotient)),
    "hard_swish": Family(
        activation.hard_swish, reference_hard_swish, (ROWS,), "elementwise",
        (hard_swish_of_clip, hard_swish_of_hard_sigmoid),
    ),
    "attention": Family(
        attention_whole, reference_attention, ((2, 3, 9, 16), (2, 3, 11, 16), (2, 3, 11, 16), (2, 1, 1, 11)),
        "attention",
        (attention_scaled_after, attention_scaled_before, attention_scaled_on_both_sides, attention_of_chosen_scores),
    ),
}  # fmt: skip
WRITTEN = [(family, form) for family, f in FAMILIES.items() for form in (f.whole, *f.forms)]


@pytest.mark.parametrize(
    ("family", "form"), WRITTEN, ids=[f"{n}-{getattr(f, '__name__', n)}" for n, f in WRITTEN]
)
def test_every_form_is_one_kernel_of_the_same_kind(family: str, form: Body) -> None:
    chosen = FAMILIES[family]
    module = program(form, *(tensor(dt.f32, s) for s in chosen.shapes))
    arrays = inputs(module)
    run(module, *default_passes(Options()), Fuse(STRATEGIES))
    assert kinds(module) == {chosen.strategy: 1}
    (found,) = evaluate_func(module.main, module, arrays)
    wanted = chosen.reference(*(a.astype(np.float64) for a in arrays))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)
