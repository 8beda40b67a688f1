"""If, Loop and Scan: what is known is decided now, loops of a known length are unrolled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, TilewrightError, UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.ops import elementwise as ew
from tilewright.ops.binding import is_input_value
from tilewright.ops.define import constant
from tilewright.ops.view import concat, reshape, shape_of, slice_

MAX_TRIPS = 256
"""Longer loops are not unrolled."""


@adapter("If")
def if_(node: Node) -> tuple[Value, ...]:
    """The branch that a known condition takes; otherwise both, and a choice between their results."""
    branches: tuple[GraphProto, GraphProto] = node.attr("then_branch"), node.attr("else_branch")
    if node.type(0).size != 1:
        raise ModelError(f"the condition of If must be one bool, it is {node.type(0)}")
    known = node.constant_or_none(0)
    if known is not None:
        return node.context.inline(branches[0 if known.any() else 1], ())
    start = node.context.mark()
    both = [node.context.attempt(b) for b in branches]
    taken, other = both
    if isinstance(taken, tuple) and isinstance(other, tuple):
        if len(taken) != len(other):
            raise ModelError(f"the branches of If have {len(taken)} and {len(other)} outputs")
        different = [(a, b) for a, b in zip(taken, other, strict=True) if not _are_alike(a, b)]
        if not different:
            condition = reshape(node.input(0), shape=())
            return tuple(ew.select(condition, a, b) for a, b in zip(taken, other, strict=True))
        a, b = different[0]
        reason = f"the branches of If give {a.type} and {b.type}: the shape would depend on data"
    else:
        which, failed = ("then", taken) if isinstance(taken, TilewrightError) else ("else", other)
        assert isinstance(failed, TilewrightError)
        reason = f"both branches of If would be computed, but not the {which}-branch: {failed.what}"
    node.context.rewind(start)
    return node.context.inline(branches[0 if _decided(node, reason) else 1], ())


def _decided(node: Node, reason: str) -> bool:
    """What the condition of If is taken to be in all calls, where it follows from dims; `reason` is why it must be."""
    symbols = node.context.symbols_of(node.input(0))
    if symbols is not None:
        condition = s.truth(symbols.reshape(-1)[0])
        if not any(is_input_value(v) for v in condition.vars):
            return node.context.choose(condition, f"what {node.op} gives")
    raise node.must_be_known(node.input(0), reason)


def _are_alike(a: Value, b: Value) -> bool:
    assert isinstance(a.type, TensorType) and isinstance(b.type, TensorType)
    if a.type.dtype != b.type.dtype:
        raise ModelError(f"the branches of If give {a.type} and {b.type}")
    return a.type.shape == b.type.shape


@adapter("Loop")
def loop(node: Node) -> tuple[Value, ...]:
    """A loop whose number of trips is known, unrolled."""
    body: GraphProto = node.attr("body")
    state = [node.input(k) for k in range(2, len(node.inputs))]
    if len(body.input) != len(state) + 2 or len(body.output) < len(state) + 1:
        raise ModelError(f"the body of Loop has {len(body.input)} inputs for {len(state)} carried values")
    trips = _trip_count(node)
    condition = constant(np.array(True), "condition") if node.optional(1) is None else node.input(1)
    rows: list[list[Value]] = [[] for _ in body.output[len(state) + 1 :]]
    trip = 0
    while _goes_on(node, condition):
        if trip == trips:
            break
        if trip == MAX_TRIPS:
            raise UnsupportedError(f"a Loop of more than {MAX_TRIPS} trips is not unrolled")
        number = constant(np.array(trip, np.int64), "trip")
        condition, *results = node.context.inline(body, (number, condition, *state))
        state = results[: len(state)]
        for row, value in zip(rows, results[len(state) :], strict=True):
            row.append(value)
        trip += 1
    return (*state, *[_stacked(row, k + len(state), node) for k, row in enumerate(rows)])


def _trip_count(node: Node) -> int | None:
    if node.optional(0) is None:
        return None
    (count,) = node.ints(0)
    return max(count, 0)


def _goes_on(node: Node, condition: Value) -> bool:
    assert isinstance(condition.type, TensorType)
    if condition.type.dtype != dt.bool_:
        raise ModelError(f"the condition of Loop must be bool, it is {condition.type}")
    known = node.context.constant_of(condition)
    if known is None:
        raise node.must_be_known(
            condition,
            "a Loop that ends by a computed condition is not supported, but if it is known when compiling",
        )
    return bool(known.any())


def _stacked(row: Sequence[Value], k: int, node: Node) -> Value:
    if not row:
        raise UnsupportedError(
            f"output {k} of {node.op} collects the results of no trip: its shape is not known"
        )
    wide = [reshape(v, shape=(sym(1), *shape_of(v))) for v in row]
    return concat(*wide, axis=0) if len(wide) > 1 else wide[0]


@adapter("Scan", since=9)
def scan(node: Node) -> tuple[Value, ...]:
    """A scan over axes of a known length, unrolled."""
    body: GraphProto = node.attr("body")
    count = node.attr("num_scan_inputs")
    states = len(node.inputs) - count
    if states < 0 or count < 1 or len(body.input) != len(node.inputs) or len(body.output) < states:
        raise ModelError(f"the body of Scan does not fit {states} states and {count} scanned inputs")
    outs = len(body.output) - states
    scanned = [node.input(states + k) for k in range(count)]
    axes = _per(node, "scan_input_axes", count)
    axes = tuple(node.checked_axis(a, len(shape_of(x))) for a, x in zip(axes, scanned, strict=True))
    backward = _per(node, "scan_input_directions", count)
    length = _length(node, shape_of(scanned[0])[axes[0]])
    state = [node.input(k) for k in range(states)]
    rows: list[list[Value]] = [[] for _ in range(outs)]
    for trip in range(length):
        elements = [
            _element(x, axis, length - 1 - trip if flipped else trip)
            for x, axis, flipped in zip(scanned, axes, backward, strict=True)
        ]
        results = node.context.inline(body, (*state, *elements))
        state = list(results[:states])
        for row, value in zip(rows, results[states:], strict=True):
            row.append(value)
    flipped_out, out_axes = _per(node, "scan_output_directions", outs), _per(node, "scan_output_axes", outs)
    return (
        *state,
        *[_joined(row, f, a, node) for row, f, a in zip(rows, flipped_out, out_axes, strict=True)],
    )


def _per(node: Node, name: str, count: int) -> tuple[int, ...]:
    values: tuple[int, ...] = node.attr(name, (0,) * count)
    if len(values) != count:
        raise ModelError(f"Scan: {name} has {len(values)} entries for {count}")
    return values


def _length(node: Node, size: Sym) -> int:
    if not size.is_const:
        raise UnsupportedError(
            f"a Scan over {size} elements: only a known number is unrolled", hint=node.fixing(size)
        )
    if not 1 <= size.value <= MAX_TRIPS:
        raise UnsupportedError(f"a Scan over {size} elements is not unrolled (1 to {MAX_TRIPS} are)")
    return size.value


def _element(x: Value, axis: int, position: int) -> Value:
    """x[position] along `axis`, without that axis."""
    shape = shape_of(x)
    starts = tuple(sym(position) if k == axis else sym(0) for k in range(len(shape)))
    sizes = tuple(sym(1) if k == axis else d for k, d in enumerate(shape))
    one = slice_(x, starts=starts, sizes=sizes, steps=(1,) * len(shape))
    return reshape(one, shape=tuple(d for k, d in enumerate(shape) if k != axis))


def _joined(row: list[Value], flipped: int, axis: int, node: Node) -> Value:
    shape = shape_of(row[0])
    at = node.checked_axis(axis, len(shape) + 1)
    wide = [reshape(v, shape=(*shape[:at], sym(1), *shape[at:])) for v in (row[::-1] if flipped else row)]
    return concat(*wide, axis=at) if len(wide) > 1 else wide[0]
