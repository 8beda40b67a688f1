"""Higher-order operators: branches, loops and scans over subgraphs, and subgraphs that are called as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.frontends import control_flow
from tilewright.frontends.torch.adapters.elementwise import as_bool
from tilewright.frontends.torch.node import AtenNode
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.unroll import element
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym
from tilewright.ops.define import constant
from tilewright.ops.source import dim_value
from tilewright.ops.view import concat, reshape, section, shape_of

HIGHER_ORDER = "higher_order"

Carried = Value | Sym | float
"""What loops carry: tensors, sizes, numbers."""


def _tensor(node: AtenNode, x: Carried) -> Value:
    if isinstance(x, Value):
        return x
    if isinstance(x, Sym):
        return dim_value(x)
    return constant(np.array(x), "")


def _truth(node: AtenNode, condition: Carried) -> Value:
    return as_bool(reshape(_tensor(node, condition), shape=()))


def _called(node: AtenNode, graph: Any, arguments: Sequence[Carried]) -> tuple[Value, ...]:
    return node.body(graph)(*arguments)


@aten("cond", namespace=HIGHER_ORDER)
def cond(node: AtenNode, pred: Carried, true_fn: Any, false_fn: Any, operands: Sequence[Carried] = ()) -> Any:
    return control_flow.branch(
        node.translation,
        _truth(node, pred),
        lambda: _called(node, true_fn, operands),
        lambda: _called(node, false_fn, operands),
    )


@aten("while_loop", namespace=HIGHER_ORDER)
def while_loop(
    node: AtenNode, cond_fn: Any, body_fn: Any, carried: Sequence[Carried], additional: Sequence[Carried] = ()
) -> tuple[Value, ...]:
    """The condition is computed before the first trip, and of what each trip gives."""
    state = [_tensor(node, x) for x in carried]

    def goes_on(values: Sequence[Value]) -> Value:
        (found,) = _called(node, cond_fn, (*values, *additional))
        return _truth(node, found)

    def trip(_: Value, condition: Value, *values: Value) -> tuple[Value, ...]:
        after = _called(node, body_fn, (*values, *additional))
        return (goes_on(after), *after)

    return control_flow.loop(node.translation, None, goes_on(state), state, trip, 0)


@aten("scan", namespace=HIGHER_ORDER)
def scan(
    node: AtenNode, combine_fn: Any, init: Sequence[Value], xs: Sequence[Value], additional: Sequence[Carried] = ()
) -> tuple[Value, ...]:
    """Along axis 0: (*carried, *elements) -> (*carried, *one of each output)."""
    outputs = len(node.result) - len(init)

    def body(*values: Value) -> tuple[Value, ...]:
        return _called(node, combine_fn, (*values, *additional))

    return _scanned(node, init, xs, body, outputs)


def _scanned(
    node: AtenNode, init: Sequence[Value], xs: Sequence[Value], body: Callable[..., tuple[Value, ...]], outputs: int
) -> tuple[Value, ...]:
    along = [(x, 0, False) for x in xs]
    return control_flow.scan(node.translation, init, along, body, [(0, False)] * outputs)


@aten("map_impl", namespace=HIGHER_ORDER)
def map_(node: AtenNode, f: Any, xs: Sequence[Value], additional: Sequence[Carried] = ()) -> tuple[Value, ...]:
    return _scanned(node, (), xs, lambda *each: _called(node, f, (*each, *additional)), len(node.result))


@aten("associative_scan", namespace=HIGHER_ORDER)
def associative_scan(
    node: AtenNode, combine_fn: Any, xs: Sequence[Value], additional: Sequence[Carried] = ()
) -> tuple[Value, ...]:
    """Along axis 0, one element after the other; the first is its own result."""

    def body(*values: Value) -> tuple[Value, ...]:
        found = _called(node, combine_fn, (*values, *additional))
        return (*found, *found)

    first = [element(x, 0, 0) for x in xs]
    rest = [_without_first(x) for x in xs]
    rows = _scanned(node, first, rest, body, len(xs))[len(xs) :]
    begin = [reshape(f, shape=(1, *shape_of(f))) for f in first]
    return tuple(concat(a, b, axis=0) for a, b in zip(begin, rows, strict=True))


def _without_first(x: Value) -> Value:
    return section(x, 0, 1, shape_of(x)[0] - 1)


# Subgraphs that say how autograd or autocast should treat them: what they compute is written out in them


@aten("wrap_with_set_grad_enabled", namespace=HIGHER_ORDER)
def with_grad(node: AtenNode, enabled: bool, graph: Any, *operands: Carried) -> tuple[Value, ...]:
    return _called(node, graph, operands)


@aten("wrap_with_autocast", namespace=HIGHER_ORDER)
def with_autocast(
    node: AtenNode, device: str, dtype: Any, enabled: bool, cached: Any, graph: Any, *operands: Carried
) -> tuple[Value, ...]:
    return _called(node, graph, operands)


@aten("invoke_subgraph", namespace=HIGHER_ORDER)
def invoke_subgraph(node: AtenNode, graph: Any, name: str, *operands: Carried) -> tuple[Value, ...]:
    return _called(node, graph, operands)


_CALLS = ("wrap", "wrap_activation_checkpoint", "tag_activation_checkpoint", "checkpoint", "strict_mode")


@aten(*_CALLS, namespace=HIGHER_ORDER)
def inlined(node: AtenNode, graph: Any, *operands: Any, **how: Any) -> tuple[Value, ...]:
    """What is called with its operands, one by one or in a tuple."""
    (listed,) = operands if len(operands) == 1 and isinstance(operands[0], tuple) else (operands,)
    return _called(node, graph, listed)
