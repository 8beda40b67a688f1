"""Activation functions. Those that exporters write as several operators are kept whole until fusion."""

from __future__ import annotations

import math

from tilewright.ir.core import Value
from tilewright.ops.define import op
from tilewright.ops.elementwise import (
    abs_,
    add,
    div,
    erf,
    exp,
    expm1,
    gt,
    log1p,
    lt,
    max_,
    min_,
    mul,
    neg,
    select,
    sigmoid,
    sub,
    tanh,
)
from tilewright.ops.reduce import as_dtype, dtype_of, widened
from tilewright.ops.source import number_like


@op
def relu(x: Value) -> Value:
    """max(x, 0)."""
    return max_(x, 0)


relu.onnx("Relu", since=1).torch("relu")


@op
def leaky_relu(x: Value, *, alpha: float = 0.01) -> Value:
    """x, below 0 times `alpha`."""
    return select(lt(x, 0), mul(x, alpha), x)


leaky_relu.onnx("LeakyRelu", since=1, alpha="alpha").torch("leaky_relu", negative_slope="alpha")


@op
def prelu(x: Value, slope: Value) -> Value:
    """x, below 0 times `slope` (broadcastable to x)."""
    return select(lt(x, 0), mul(x, slope), x)


prelu.onnx("PRelu", since=7)


@op
def elu(x: Value, *, alpha: float = 1.0) -> Value:
    """x, below 0 alpha * (exp(x) - 1) (Clevert et al., 2015)."""
    wide = widened(x)
    return as_dtype(select(lt(wide, 0), mul(expm1(min_(wide, 0)), alpha), wide), dtype_of(x))


elu.onnx("Elu", since=1, alpha="alpha")


@op
def selu(x: Value, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Value:
    """gamma * elu(x, alpha) (Klambauer et al., 2017)."""
    wide = widened(x)
    negative = mul(expm1(min_(wide, 0)), alpha)
    return as_dtype(mul(select(gt(wide, 0), wide, negative), gamma), dtype_of(x))


selu.onnx("Selu", since=1, alpha="alpha", gamma="gamma")


@op
def celu(x: Value, *, alpha: float = 1.0) -> Value:
    """max(x, 0) + min(0, alpha * (exp(x / alpha) - 1)) (Barron, 2017)."""
    wide = widened(x)
    negative = mul(expm1(div(min_(wide, 0), alpha)), alpha)
    return as_dtype(add(max_(wide, 0), min_(negative, 0)), dtype_of(x))


celu.onnx("Celu", since=12, alpha="alpha")


@op(keep=True)
def gelu(x: Value, *, approximate: str = "none") -> Value:
    """x times the normal distribution function of x (Hendrycks & Gimpel, 2016), or their "tanh" form."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate '{approximate}' is neither none nor tanh")
    wide = widened(x)
    if approximate == "tanh":
        inner = mul(add(wide, mul(mul(mul(wide, wide), wide), 0.044715)), math.sqrt(2 / math.pi))
        twice = add(tanh(inner), 1)
    else:
        twice = add(erf(mul(wide, math.sqrt(0.5))), 1)
    return as_dtype(mul(mul(wide, 0.5), twice), dtype_of(x))


gelu.onnx("Gelu", since=20, approximate="approximate")
gelu.onnx("Gelu", since=1, domain="com.microsoft")


@op(keep=True)
def silu(x: Value) -> Value:
    """x * sigmoid(x) (Elfwing et al., 2017)."""
    wide = widened(x)
    return as_dtype(mul(wide, sigmoid(wide)), dtype_of(x))


@op
def swish(x: Value, *, alpha: float = 1.0) -> Value:
    """x * sigmoid(alpha * x) (Ramachandran et al., 2017)."""
    if alpha == 1.0:
        return silu(x)
    wide = widened(x)
    return as_dtype(mul(wide, sigmoid(mul(wide, alpha))), dtype_of(x))


swish.onnx("Swish", since=24, alpha="alpha")


@op(keep=True)
def hard_sigmoid(x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Value:
    """alpha * x + beta, limited to 0..1."""
    return min_(max_(add(mul(x, alpha), beta), 0), 1)


hard_sigmoid.onnx("HardSigmoid", since=1, alpha="alpha", beta="beta")


@op(keep=True)
def hard_swish(x: Value) -> Value:
    """x times (x / 6 + 1/2 limited to 0..1) (Howard et al., 2019)."""
    wide = widened(x)
    return as_dtype(mul(wide, min_(max_(add(mul(wide, 1 / 6), 0.5), 0), 1)), dtype_of(x))


hard_swish.onnx("HardSwish", since=14)


@op
def softplus(x: Value) -> Value:
    """log(1 + exp(x)), without overflow."""
    wide = widened(x)
    return as_dtype(add(max_(wide, 0), log1p(exp(neg(abs_(wide))))), dtype_of(x))


softplus.onnx("Softplus", since=1)


@op
def softsign(x: Value) -> Value:
    """x / (1 + |x|)."""
    return div(x, add(abs_(x), 1))


softsign.onnx("Softsign", since=1)


@op
def mish(x: Value) -> Value:
    """x * tanh(log(1 + exp(x))) (Misra, 2019)."""
    wide = widened(x)
    return as_dtype(mul(wide, tanh(softplus(wide))), dtype_of(x))


mish.onnx("Mish", since=18)


@op
def thresholded_relu(x: Value, *, alpha: float = 1.0) -> Value:
    """x where it is above `alpha`, else 0."""
    return select(gt(x, alpha), x, number_like(0, x))


thresholded_relu.onnx("ThresholdedRelu", since=1, alpha="alpha")


@op
def shrink(x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    """x drawn towards 0 by `bias` where |x| is above `lambd`, else 0."""
    low, high = lt(x, -lambd), gt(x, lambd)
    return select(low, add(x, bias), select(high, sub(x, bias), number_like(0, x)))


shrink.onnx("Shrink", since=9, bias="bias", lambd="lambd")


@op
def clip(x: Value, low: Value | float, high: Value | float) -> Value:
    """min(max(x, low), high)."""
    return min_(max_(x, low), high)
