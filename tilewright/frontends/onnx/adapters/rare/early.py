"""Meanings that operators had in early operator sets."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tilewright.frontends import control_flow
from tilewright.frontends.onnx.adapters.elementwise import converted
from tilewright.frontends.onnx.adapters.resize import mode_of, resized_to
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter, find_adapter
from tilewright.frontends.onnx.tensors import dtype_of
from tilewright.frontends.problems import shown
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops.composites.images.positions import Resizing
from tilewright.ops.composites.shapes import checked_shape
from tilewright.ops.define.exact import element_of
from tilewright.ops.view import pad, reshape, shape_of, slice_, tile


@adapter("Cast", until=5)
def cast_to_named(node: Node) -> Value:
    """The element type was given by its name."""
    name = node.attr("to")
    if name not in (types := dict(TensorProto.DataType.items())):
        raise ModelError(f"Cast to '{shown(name)}', which is no element type")
    return converted(node, dtype_of(types[name], "attribute 'to' of Cast"))


@adapter("Tile", until=5)
def tile_along(node: Node) -> Value:
    """One axis was repeated, and both numbers were of the type of the data."""
    count, given = node.whole_number(1), node.whole_number(2)
    if not given.is_const:
        raise node.needs_constant(2)
    axis = node.axis(given.value)
    repeats = tuple(count if k == axis else sym(1) for k in range(node.rank(0)))
    checked_shape(tuple(d * r for d, r in zip(node.shape(0), repeats, strict=True)), "Tile")
    return tile(node.input(0), repeats=repeats)


@adapter("Upsample", until=6)
def upsample_images(node: Node) -> Value:
    """Scales were those of height and width alone."""
    if node.rank(0) != 4:
        raise ModelError(f"Upsample takes [n, c, h, w], not {node.type(0)}")
    factors = (1.0, 1.0, node.attr("height_scale"), node.attr("width_scale"))
    scales = [element_of(np.float32(f), dt.f32) for f in factors]
    return resized_to(node, Resizing(mode_of(node), nearest="simple"), tuple(range(4)), scales, 1)


@adapter("Scan", until=8)
def scan_of_batch(node: Node) -> tuple[Value, ...]:
    """Axis 0 is that of the batch, axis 1 is scanned; each sequence may have a length of its own, and what is behind
    its end is 0."""
    body, count, lengths = node.attr("body"), node.attr("num_scan_inputs"), node.optional(0)
    operands = [node.input(k) for k in range(1, len(node.inputs))]
    states = len(operands) - count
    outputs = len(body.output) - states
    if states < 0 or count < 1 or len(body.input) != len(operands) or outputs < 0:
        raise ModelError(f"the body of Scan does not fit {states} states and {count} scanned inputs")
    backward = tuple(map(bool, node.attr("directions", (0,) * count)))
    if len(backward) != count or any(len(shape_of(x)) < 2 for x in operands[states:]):
        raise ModelError(f"Scan with {len(backward)} directions of {count} inputs, which need two axes at least")
    steps, inner = shape_of(operands[states])[1], node.body("body")

    def one(*given: Value) -> tuple[Value, ...]:
        """The scan of one entry of the batch."""
        sequences = given[states : states + count]
        if lengths is None:
            scanned = [(x, 0, back) for x, back in zip(sequences, backward, strict=True)]
            return control_flow.scan(node.translation, given[:states], scanned, inner, [(0, False)] * outputs)
        length = _length(node, given[-1], steps)
        ranks = [len(shape_of(x)) for x in sequences]
        parts = [
            slice_(x, starts=(0,) * rank, sizes=(length, *shape_of(x)[1:]), steps=(1,) * rank)
            for x, rank in zip(sequences, ranks, strict=True)
        ]
        scanned = [(x, 0, back) for x, back in zip(parts, backward, strict=True)]
        found = control_flow.scan(node.translation, given[:states], scanned, inner, [(0, False)] * outputs)
        return (*found[:states], *[_padded(x, steps) for x in found[states:]])

    each = [*operands, *([] if lengths is None else [lengths])]
    return control_flow.scan(node.translation, (), [(x, 0, False) for x in each], one, [(0, False)] * len(body.output))


def _length(node: Node, given: Value, steps: Sym) -> Sym:
    """How many of so many steps a sequence has."""
    found = node.translation.measure(given)
    assert found is not None
    return s.minimum(s.maximum(found.reshape(-1)[0], 0), steps)


def _padded(rows: Value, steps: Sym) -> Value:
    """Rows, with zeros behind them up to so many steps."""
    shape = shape_of(rows)
    none = (sym(0),) * (len(shape) - 1)
    return pad(rows, before=(sym(0), *none), after=(steps - shape[0], *none), value=0)


# Before opset 7, broadcasting was asked for by attributes, and aligned at an axis

_BINARY = ("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Less", "Greater", "Pow")


@adapter(*_BINARY, until=6)
def aligned(node: Node) -> Value:
    """The axes of the second operand are laid under those of the first from attribute `axis` on."""
    own, whole = node.shape(1), node.shape(0)
    if not node.flag("broadcast"):
        if len(own) != len(whole):
            raise ModelError(f"{node.op} of {node.type(0)} and {node.type(1)} without broadcast=1")
    else:
        axis = node.attr("axis", len(whole) - len(own))
        behind = len(whole) - axis - len(own)
        if behind < 0 or axis < 0:
            raise ModelError(f"{node.op}: {node.type(1)} does not fit {node.type(0)} from axis {axis} on")
        node.inputs = (node.input(0), _extended(node.input(1), behind))
    later = find_adapter("", node.op, 7)
    assert later is not None
    return later(node)


@adapter("PRelu", until=6)
def prelu(node: Node) -> Value:
    """A vector of slopes goes along the channels."""
    if node.rank(1) == 1 and node.shape(1)[0] != 1 and node.rank(0) >= 3:
        node.inputs = (node.input(0), _extended(node.input(1), node.rank(0) - 2))
    later = find_adapter("", "PRelu", 7)
    assert later is not None
    return later(node)


def _extended(x: Value, ones: int) -> Value:
    """x with so many axes of one element at its end."""
    return reshape(x, shape=(*shape_of(x), *[sym(1)] * ones)) if ones else x
