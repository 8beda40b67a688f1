"""RNN, GRU and LSTM: layouts, directions and defaults."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops import recurrent
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.source import full
from tilewright.ops.view import concat, pad, reshape, shape_of, slice_, transpose

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@adapter("RNN", "GRU", "LSTM", since=7)
def recurrent_network(node: Node) -> tuple[Value, ...]:
    """The directions one by one, stacked: Y [time, directions, batch, hidden], Y_h and Y_c without time."""
    directions = _DIRECTIONS.get(node.attr("direction", "forward"))
    if directions is None:
        raise ModelError(f"{node.op} has no direction '{node.attr('direction')}'")
    if node.has("clip"):
        raise UnsupportedError(f"{node.op} with clip is not supported")
    hidden = _checked_sizes(node, len(directions))
    batch_first = bool(node.attr("layout", 0))
    x = transpose(node.input(0), perm=(1, 0, 2)) if batch_first else node.input(0)
    results = [_direction(node, x, k, reverse, hidden) for k, reverse in enumerate(directions)]
    over_time = _stacked([r[0] for r in results], 1)
    states = [_stacked([r[k] for r in results], 0) for k in range(1, len(results[0]))]
    if batch_first:
        over_time = transpose(over_time, perm=(2, 0, 1, 3))
        states = [transpose(s, perm=(1, 0, 2)) for s in states]
    return (over_time, *states)


def _checked_sizes(node: Node, directions: int) -> int:
    """The hidden size; ModelError when operands disagree with it."""
    if node.rank(0) != 3 or node.rank(1) != 3 or node.rank(2) != 3:
        raise ModelError(
            f"{node.op} takes x, W and R of three axes, not {', '.join(str(node.type(k)) for k in range(3))}"
        )
    hidden = node.attr("hidden_size", None)
    own = node.shape(2)[2]
    if hidden is None and not own.is_const:
        raise ModelError(f"{node.op} needs the attribute 'hidden_size'")
    hidden = own.value if hidden is None else hidden
    rows = _GATES[node.op] * hidden
    wanted: dict[int, tuple[Any, ...]] = {
        1: (directions, rows, node.shape(0)[2]),
        2: (directions, rows, hidden),
    }
    wanted |= {3: (directions, 2 * rows)} if node.optional(3) is not None else {}
    for k, shape in wanted.items():
        if len(node.shape(k)) != len(shape) or any(
            d.is_const and sym(w).is_const and d != w for d, w in zip(node.shape(k), shape, strict=True)
        ):
            listed = ", ".join(map(str, shape))
            raise ModelError(
                f"{node.op}: input {k} is {node.type(k)}; with hidden size {hidden} its shape is [{listed}]"
            )
    return int(hidden)


def _direction(node: Node, x: Value, k: int, reverse: bool, hidden: int) -> tuple[Value, ...]:
    w, r = (_part(node.input(i), k) for i in (1, 2))
    count, units = _GATES[node.op], _units(node, hidden)
    rows = count * hidden
    steps, batch, width = shape_of(x)
    product = matmul(reshape(x, shape=(steps * batch, width)), _extended(w, count, units), transpose_b=True)
    gates = reshape(product, shape=(steps, batch, count * units))
    recurrent_bias = full(value=0.0, dtype=node.dtype(0), shape=(rows,))
    if node.optional(3) is not None:
        both = _part(node.input(3), k)
        input_bias, recurrent_bias = (
            slice_(both, starts=(sym(n),), sizes=(sym(rows),), steps=(1,)) for n in (0, rows)
        )
        gates = ew.add(gates, _extended(_shared_bias(node, input_bias, recurrent_bias, hidden), count, units))
    attrs = {"activations": _activations(node, k), "reverse": reverse}
    r = reshape(r, shape=(count, hidden, hidden))
    h, lengths = _state(node, 5, k, batch, hidden), _lengths(node, steps)
    if node.op == "RNN":
        return recurrent.rnn(gates, r, h, *lengths, **attrs)
    if node.op == "GRU":
        last = slice_(recurrent_bias, starts=(sym(2 * hidden),), sizes=(sym(hidden),), steps=(1,))
        linear = bool(node.attr("linear_before_reset", 0))
        return recurrent.gru(gates, r, last, h, *lengths, linear_before_reset=linear, **attrs)
    c = _state(node, 6, k, batch, hidden)
    peepholes = full(value=0.0, dtype=node.dtype(0), shape=(3 * hidden,))
    if node.optional(7) is not None:
        peepholes = _part(node.input(7), k)
    couple = bool(node.attr("input_forget", 0))
    return recurrent.lstm(gates, r, peepholes, h, c, *lengths, couple=couple, **attrs)


def _units(node: Node, hidden: int) -> Sym:
    """The rows that a gate gets: up to whole cache lines, where that is little more to compute and the weights are
    constants."""
    aligned = hidden >= 4 * recurrent.LINE and node.constant_or_none(1) is not None
    return recurrent.lined(hidden) if aligned else sym(hidden)


def _extended(x: Value, gates: int, units: Sym) -> Value:
    """Zeros after the rows of each gate, [gates * hidden, ...] to [gates * units, ...]."""
    rows, *rest = shape_of(x)
    if rows == gates * units:
        return x
    hidden = rows // gates
    apart = reshape(x, shape=(gates, hidden, *rest))
    zeros = [0] * len(rest)
    padded = pad(apart, before=(0, 0, *zeros), after=(0, units - hidden, *zeros))
    return reshape(padded, shape=(gates * units, *rest))


def _shared_bias(node: Node, input_bias: Value, recurrent_bias: Value, hidden: int) -> Value:
    """What is added to the gates once for all steps; the recurrent bias of GRU's h stays behind its reset."""
    if node.op != "GRU":
        return ew.add(input_bias, recurrent_bias)
    mask = constant(np.repeat(np.array([1, 1, 0], node.dtype(0).storage), hidden), "mask")
    return ew.add(input_bias, ew.mul(recurrent_bias, mask))


def _part(x: Value, k: int) -> Value:
    """The operand of direction k."""
    shape = shape_of(x)
    if shape[0] == 1:
        return reshape(x, shape=shape[1:])
    starts = (sym(k), *[sym(0)] * (len(shape) - 1))
    return reshape(
        slice_(x, starts=starts, sizes=(sym(1), *shape[1:]), steps=(1,) * len(shape)), shape=shape[1:]
    )


def _state(node: Node, k: int, direction: int, batch: Sym, hidden: int) -> Value:
    """The initial state of a direction, [batch, hidden]."""
    if node.optional(k) is None:
        return full(value=0.0, dtype=node.dtype(0), shape=(batch, hidden))
    given = node.input(k)
    if node.attr("layout", 0):
        given = transpose(given, perm=(1, 0, 2))
    return _part(given, direction)


def _lengths(node: Node, steps: Sym) -> tuple[Value, ...]:
    """The number of steps of each entry; nothing where all entries last for all steps."""
    if node.optional(4) is None:
        return ()
    known = node.constant_or_none(4)
    if (
        known is not None
        and steps.is_const
        and known.size
        and not 0 <= known.min() <= known.max() <= steps.value
    ):
        raise ModelError(f"{node.op}: lengths up to {known.max()} for {steps} steps")
    return (ew.cast(node.input(4), dtype=dt.i64),)


def _activations(node: Node, direction: int) -> tuple[str, ...]:
    defaults = _DEFAULTS[node.op]
    named = node.attr("activations", None) or defaults * 2
    chosen = tuple(name.lower() for name in named[direction * len(defaults) :][: len(defaults)])
    if len(chosen) != len(defaults):
        raise ModelError(f"{node.op} needs {len(defaults)} activations for each direction")
    unknown = [name for name in chosen if name not in recurrent.ACTIVATIONS]
    if unknown:
        raise UnsupportedError(f"{node.op} with activation '{unknown[0]}' is not supported")
    return chosen


def _stacked(values: list[Value], axis: int) -> Value:
    """The results of the directions along a new axis."""
    shape = shape_of(values[0])
    wide = [reshape(v, shape=(*shape[:axis], sym(1), *shape[axis:])) for v in values]
    return concat(*wide, axis=axis) if len(wide) > 1 else wide[0]
