"""Steps of optimisers, which are plain arithmetic: one node updates several tensors, each with a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter, refuse
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.reduce import as_dtype, dtype_of

DOMAIN = "ai.onnx.preview.training"

refuse("it asks for derivatives of a graph, which are computed when a model is trained", "Gradient", domain=DOMAIN)


def _groups(node: Node, states: int) -> Iterator[tuple[Value, ...]]:
    """For each tensor X its value, its gradient with the share of X that regularises it, and its states."""
    given = [node.input(k) for k in range(2, len(node.inputs))]
    count, left = divmod(len(given), 2 + states)
    if left or not count:
        raise ModelError(f"{node.op} has {len(given)} operands: {2 + states} are needed for each tensor")
    for k in range(count):
        x, gradient, *others = given[k::count]
        yield (x, ew.add(ew.mul(x, node.attr("norm_coefficient")), gradient), *others)


def _in_order(results: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    """All new tensors, then all states of a kind."""
    return tuple(v for column in zip(*results, strict=True) for v in column)


def _rate(node: Node, x: Value) -> Value:
    """The learning rate, of the dtype of x."""
    return as_dtype(node.input(0), dtype_of(x))


@adapter("Momentum", domain=DOMAIN)
def momentum(node: Node) -> tuple[Value, ...]:
    """V' = alpha V + beta G, with a beta of 1 in the first step; X' = X - R V', or X - R (G + alpha V')."""
    nesterov = node.one_of("mode", "standard", "nesterov") == "nesterov"
    alpha, is_first = node.attr("alpha"), ew.eq(node.input(1), 0)
    results = []
    for x, gradient, v in _groups(node, 1):
        share = ew.select(is_first, gradient, ew.mul(gradient, node.attr("beta")))
        moved = ew.add(ew.mul(v, alpha), share)
        step = ew.add(gradient, ew.mul(moved, alpha)) if nesterov else moved
        results.append((ew.sub(x, ew.mul(step, _rate(node, x))), moved))
    return _in_order(results)


@adapter("Adagrad", domain=DOMAIN)
def adagrad(node: Node) -> tuple[Value, ...]:
    """H' = H + G^2; X' = X - R / (1 + T decay) G / (sqrt(H') + epsilon)."""
    results = []
    for x, gradient, squares in _groups(node, 1):
        past = ew.mul(as_dtype(node.input(1), dtype_of(x)), node.attr("decay_factor"))
        total = ew.add(squares, ew.mul(gradient, gradient))
        step = ew.div(gradient, ew.add(ew.sqrt(total), node.attr("epsilon")))
        results.append((ew.sub(x, ew.mul(step, ew.div(_rate(node, x), ew.add(past, 1.0)))), total))
    return _in_order(results)


@adapter("Adam", domain=DOMAIN)
def adam(node: Node) -> tuple[Value, ...]:
    """V' = alpha V + (1 - alpha) G, H' = beta H + (1 - beta) G^2; X' = X - R c V' / (sqrt(H') + epsilon), where c takes
    back that V and H began at 0."""
    alpha, beta = node.attr("alpha"), node.attr("beta")
    power = as_dtype(node.input(1), dt.f64)
    base = [ew.pow_(constant(np.array(b, np.float64), "base"), power) for b in (beta, alpha)]
    grown, mean = (ew.sub(1.0, b) for b in base)
    correction = ew.select(ew.gt(node.input(1), 0), ew.div(ew.sqrt(grown), mean), 1.0)
    results = []
    for x, gradient, v, h in _groups(node, 2):
        average = ew.add(ew.mul(v, alpha), ew.mul(gradient, 1.0 - alpha))
        squares = ew.add(ew.mul(h, beta), ew.mul(ew.mul(gradient, gradient), 1.0 - beta))
        rate = ew.mul(_rate(node, x), as_dtype(correction, dtype_of(x)))
        step = ew.div(ew.mul(average, rate), ew.add(ew.sqrt(squares), node.attr("epsilon")))
        results.append((ew.mul(ew.sub(x, step), 1.0 - node.attr("norm_coefficient_post")), average, squares))
    return _in_order(results)
