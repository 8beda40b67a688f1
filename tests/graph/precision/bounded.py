"""Networks as programs, and in float64 with a bound of the error that rounding operands of products causes.

A bounded tensor has values and, for each, how far a program may be off it. Rounding x to a float with P bits of
mantissa (bfloat16: 8) is off by at most U = 2^-P of |x|; so a product of rounded operands, of which the first is off by
e, is off by at most (1 + U)^2 * (|x| + e) * |w| - |x| * |w|, and sums of products by the sum of these. All else is in
float32, whose errors are far smaller: `SLACK` of the sizes that enter a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.graph.programs import program
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.attention import attention
from tilewright.ops.contract import conv, matmul
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.pool import max_pool
from tilewright.ops.recurrent import lstm
from tilewright.ops.source import full
from tilewright.ops.view import reshape

U = 2.0**-8
SLACK = 1e-5
GROWTH = (1 + U) ** 2 * (1 + SLACK)


@dataclass(frozen=True)
class Bounded:
    """Values in float64, and how far off those of a program may be."""

    value: np.ndarray
    error: np.ndarray

    @property
    def size(self) -> np.ndarray:
        return np.abs(self.value) + self.error

    def after(self, value: np.ndarray, error: np.ndarray) -> Bounded:
        return Bounded(value, error + SLACK * np.abs(value))


@dataclass(frozen=True)
class Layer:
    """A layer as operators of a program, and on bounded tensors."""

    name: str
    emit: Callable[[Value], Value]
    follow: Callable[[Bounded], Bounded]
    shape: tuple[int, ...] = field(default=())
    """Of the result."""


def evaluated(body: Callable[..., Value], *arrays: np.ndarray) -> np.ndarray:
    """An operator in float64."""
    module = program(body, *(tensor(dt.f64, a.shape) for a in arrays))
    (found,) = evaluate_func(module.main, module, list(arrays))
    return np.asarray(found)


def linear(name: str, operator: Callable[[Value, Value], Value], w: np.ndarray, shape: tuple[int, ...]) -> Layer:
    """An operator whose elements are sums of products with w, and a bias of one number."""

    def sums(x: np.ndarray, right: np.ndarray) -> np.ndarray:
        return evaluated(lambda a: operator(a, constant(right)), x)

    def follow(x: Bounded) -> Bounded:
        wide = w.astype(np.float64)
        exact = np.abs(wide)
        error = GROWTH * sums(x.size, exact) - sums(np.abs(x.value), exact)
        return x.after(sums(x.value, wide) + 0.5, error)

    return Layer(name, lambda x: ew.add(operator(x, constant(w)), 0.5), follow, shape)


def dense(rng: np.random.Generator, shape: tuple[int, ...], columns: int, **attrs: Any) -> Layer:
    depth = shape[-1]
    w = (rng.standard_normal((depth, columns)) / depth**0.5).astype(np.float32)
    if attrs.get("transpose_b"):
        w = np.ascontiguousarray(w.T)
    return linear("dense", lambda x, w: matmul(x, w, **attrs), w, (*shape[:-1], columns))


def convolution(
    rng: np.random.Generator, shape: tuple[int, ...], filters: int, taps: int, stride: int = 1, groups: int = 1
) -> Layer:
    channels, space = shape[1] // groups, len(shape) - 2
    w = rng.standard_normal((filters, channels, *(taps,) * space)) / (channels * taps**space) ** 0.5
    pads = (taps // 2,) * space
    attrs = {"strides": (stride,) * space, "pads_begin": pads, "pads_end": pads, "groups": groups}
    result = tuple((n + 2 * (taps // 2) - taps) // stride + 1 for n in shape[2:])
    name = f"conv{taps}/{stride}/{groups}"
    return linear(name, lambda x, w: conv(x, w, **attrs), w.astype(np.float32), (shape[0], filters, *result))


def contracting(name: str, emit: Callable[[Value], Value], shape: tuple[int, ...]) -> Layer:
    """Elementwise work, or choices among elements, which brings no two numbers further apart than they were."""

    def follow(x: Bounded) -> Bounded:
        value = evaluated(emit, x.value)
        if value.shape == x.error.shape:
            return x.after(value, x.error)
        return x.after(value, evaluated(emit, x.error))  # the greatest of each window

    return Layer(name, emit, follow, shape)


def relu(shape: tuple[int, ...]) -> Layer:
    return contracting("relu", lambda x: ew.max_(x, 0), shape)


def tanh(shape: tuple[int, ...]) -> Layer:
    return contracting("tanh", ew.tanh, shape)


def pooled(shape: tuple[int, ...]) -> Layer:
    space = len(shape) - 2
    attrs = {"kernel": (2,) * space, "strides": (2,) * space}
    result = (*shape[:2], *(n // 2 for n in shape[2:]))
    return contracting("max_pool", lambda x: max_pool(x, **attrs), result)


def residual(inner: list[Layer]) -> Layer:
    """x + f(x)."""

    def emit(x: Value) -> Value:
        return ew.add(x, chain_emit(inner, x))

    def follow(x: Bounded) -> Bounded:
        y = chain_follow(inner, x)
        return x.after(x.value + y.value, x.error + y.error)

    return Layer(f"residual({', '.join(layer.name for layer in inner)})", emit, follow, inner[-1].shape)


def self_attention(rng: np.random.Generator, shape: tuple[int, ...]) -> Layer:
    """Softmax of products of three projections. Scores off by at most s multiply a weight by at most exp(2 s)."""
    width = shape[-1]
    parts = [dense(rng, shape, width) for _ in range(3)]
    scale = width**-0.5

    def emit(x: Value) -> Value:
        q, k, v = (part.emit(x) for part in parts)
        return attention(q, k, v, scale=scale)

    def follow(x: Bounded) -> Bounded:
        q, k, v = (part.follow(x) for part in parts)

        def product(a: Bounded, b: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            size = np.abs(b) + error
            return a.value @ b, GROWTH * a.size @ size - np.abs(a.value) @ np.abs(b)

        scores, off = product(q, k.value.swapaxes(-1, -2), k.error.swapaxes(-1, -2))
        weights = np.exp((scores - scores.max(axis=-1, keepdims=True)) * scale)
        weights /= weights.sum(axis=-1, keepdims=True)
        factor = np.exp(2 * scale * off.max(axis=-1, keepdims=True) + SLACK) - 1
        value, error = product(Bounded(weights, weights * factor), v.value, v.error)
        return x.after(value, error)

    return Layer("attention", emit, follow, shape)


def recurrent(rng: np.random.Generator, shape: tuple[int, ...], hidden: int) -> Layer:
    """An LSTM whose gates are a product; states are rounded in each step. The slope of a sigmoid is at most 1/4."""
    steps, batch, _ = shape
    gates = dense(rng, (steps * batch, shape[-1]), 4 * hidden)
    r = (rng.standard_normal((4, hidden, hidden)) / (2 * hidden**0.5)).astype(np.float32)

    def emit(x: Value) -> Value:
        flat = gates.emit(reshape(x, shape=(steps * batch, shape[-1])))
        zeros = full(value=0.0, dtype=dt.f32, shape=(batch, hidden))
        nothing = full(value=0.0, dtype=dt.f32, shape=(3 * hidden,))
        return lstm(reshape(flat, shape=(steps, batch, 4 * hidden)), constant(r), nothing, zeros, zeros)[0]

    def follow(x: Bounded) -> Bounded:
        flat = (steps * batch, shape[-1])
        made = gates.follow(Bounded(x.value.reshape(flat), x.error.reshape(flat)))
        value, error = (a.reshape(steps, batch, 4, hidden) for a in (made.value, made.error))
        h = c = h_off = c_off = np.zeros((batch, hidden))
        found, off = [], []
        for t in range(steps):
            sums = [value[t, :, k] + h @ r[k].T.astype(np.float64) for k in range(4)]
            sizes = [np.abs(r[k].T.astype(np.float64)) for k in range(4)]
            errors = [error[t, :, k] + (GROWTH * (np.abs(h) + h_off) - np.abs(h)) @ sizes[k] for k in range(4)]
            i, o, f = (1 / (1 + np.exp(-s)) for s in sums[:3])
            i_off, o_off, f_off = (e / 4 for e in errors[:3])
            g, g_off = np.tanh(sums[3]), errors[3]
            c_off = (f + f_off) * c_off + f_off * np.abs(c) + (i + i_off) * g_off + i_off * np.abs(g) + SLACK
            c = f * c + i * g
            h_off = (o + o_off) * c_off + o_off * np.abs(np.tanh(c)) + SLACK
            h = o * np.tanh(c)
            found.append(h)
            off.append(h_off)
        return Bounded(np.stack(found), np.stack(off))

    return Layer("lstm", emit, follow, (steps, batch, hidden))


def chain_emit(layers: list[Layer], x: Value) -> Value:
    for layer in layers:
        x = layer.emit(x)
    return x


def chain_follow(layers: list[Layer], x: Bounded) -> Bounded:
    for layer in layers:
        x = layer.follow(x)
    return x
