"""Operators that change shapes, with targets that may be computed from dims or read from small inputs."""

from __future__ import annotations

from contextlib import nullcontext

from tilewright.frontends.axes import chosen, require, with_ones, without
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ops.composites.shapes import checked_shape, target_shape
from tilewright.ops.define.binding import is_input_value
from tilewright.ops.define.broadcasting import both_meanings
from tilewright.ops.source import full
from tilewright.ops.view import concat, expand, reshape, shape_of, slice_, squeeze, tile, transpose, unsqueeze


@adapter("Reshape")
def reshape_(node: Node) -> Value:
    if node.optional(1) is not None and node.rank(1) != 1:
        raise ModelError(f"the target of Reshape must be a vector, it is {node.type(1)}")
    wanted = _listed_target(node) if node.optional(1) is not None else node.listed_symbols("shape", 1)
    if wanted is None:
        raise ModelError("Reshape has no target")
    target = target_shape(node.shape(0), wanted, keep_zero=node.flag("allowzero", 0))
    return reshape(node.input(0), shape=checked_shape(target, "Reshape"))


@adapter("Expand")
def expand_(node: Node) -> Value:
    wanted, x = checked_shape(_listed_target(node, at_least=node.rank(0)), "Expand"), node.input(0)
    given = any(is_input_value(v) for d in wanted for v in d.vars)  # nothing says what a caller gives
    with both_meanings() if given else nullcontext():
        shape = checked_shape(node.translation.broadcast(node.shape(0), wanted), "Expand")
        return x if shape == shape_of(x) else expand(x, shape=shape)


def _listed_target(node: Node, at_least: int | None = None) -> tuple[Sym, ...]:
    """The elements of operand 1, a shape. Where their number is known only in calls, it is the rank that the file
    declares for the result. A shape that broadcasts with one of rank `at_least` may be shorter, as if it began with
    ones; none may be longer."""
    if node.rank(1) != 1 or node.shape(1)[0].is_const:
        return node.symbols(1)
    (length,), rank = node.shape(1), node.declared_rank
    if rank is None or rank < (at_least or 0):
        raise UnsupportedError(
            f"{node.op} needs the rank of its result at compile time, which is the length {length} of its input 1",
            hint=f"{node.translation.fixing(length)}, or declare the rank of the result in the model",
        )
    fits = s.le(length, rank) if rank == at_least else s.eq(length, rank)
    node.demand(fits, f"{node.op} to a shape of {length} dims gives what the model declares with {rank} axes")
    ones = full(value=1, dtype=node.dtype(1), shape=[rank])
    shape = slice_(concat(ones, node.input(1), axis=0), starts=[length], sizes=[rank])
    found = node.translation.measure(shape)
    if found is None:
        raise node.needs_constant(1)
    return tuple(found.reshape(-1))


@adapter("Tile", since=6)
def tile_(node: Node) -> Value:
    repeats = node.symbols(1)
    if len(repeats) != node.rank(0) or any(r.is_const and r.value < 0 for r in repeats):
        raise ModelError(f"Tile repeats {node.type(0)} by [{', '.join(map(str, repeats))}]")
    checked_shape(tuple(d * r for d, r in zip(node.shape(0), repeats, strict=True)), "Tile")
    return tile(node.input(0), repeats=repeats)


@adapter("Squeeze")
def squeeze_(node: Node) -> Value:
    axes = node.axes("axes", 1)
    if axes is None:
        choose = node.translation.choose
        axes = tuple(sym(k) for k, d in enumerate(node.shape(0)) if not choose(s.ne(d, 1)))
        flags = chosen(axes, node.rank(0))
        return reshape(node.input(0), shape=without(node.shape(0), flags, len(axes)))
    if all(a.is_const for a in axes):
        return squeeze(node.input(0), axes=tuple(a.value for a in axes))
    flags = chosen(axes, node.rank(0))
    for flag, d in zip(flags, node.shape(0), strict=True):
        holds = s.logical_or(1 - flag, s.eq(d, 1))
        require(node.translation, holds, f"Squeeze of {node.type(0)} along an axis of more than one element")
    return reshape(node.input(0), shape=without(node.shape(0), flags, len(axes)))


@adapter("Unsqueeze")
def unsqueeze_(node: Node) -> Value:
    count = len(node.listed_symbols("axes", 1) or ())
    axes = node.axes("axes", 1, node.rank(0) + count) or ()
    if all(a.is_const for a in axes):
        return unsqueeze(node.input(0), axes=tuple(a.value for a in axes))
    return reshape(node.input(0), shape=with_ones(node.shape(0), chosen(axes, node.rank(0) + count)))


@adapter("Transpose")
def transpose_(node: Node) -> Value:
    rank = node.rank(0)
    perm = node.checked_axes(node.attr("perm", tuple(reversed(range(rank)))))
    if any(axis < 0 for axis in node.attr("perm", ())):
        raise ModelError(f"Transpose: axes are not counted from the end, as in perm={list(node.attr('perm'))}")
    return transpose(node.input(0), perm=perm) if rank > 1 else node.input(0)


@adapter("DepthToSpace", "SpaceToDepth")
def blocks(node: Node) -> Value:
    if node.rank(0) != 4:
        raise ModelError(f"{node.op} takes [n, c, h, w], not {node.type(0)}")
    (n, c, h, w), b = node.shape(0), node.attr("blocksize")
    if not 1 <= b <= 2**16:
        raise ModelError(f"{node.op}: a block of {b} is not possible")
    divided = {c: b * b} if node.op == "DepthToSpace" else {h: b, w: b}
    for d, parts in divided.items():
        node.demand(s.eq(d % parts, 0), f"{node.type(0)} is not a multiple of blocks of {b} x {b}")
    depth_first = node.attr("mode", "DCR") == "DCR"
    if node.op == "DepthToSpace":
        depth = s.floordiv(c, b * b)
        apart = (n, b, b, depth, h, w) if depth_first else (n, depth, b, b, h, w)
        perm = (0, 3, 4, 1, 5, 2) if depth_first else (0, 1, 4, 2, 5, 3)
        shape = (n, depth, h * b, w * b)
    else:
        rows, columns = s.floordiv(h, b), s.floordiv(w, b)
        apart = (n, c, rows, b, columns, b)
        perm = (0, 3, 5, 1, 2, 4) if depth_first else (0, 1, 3, 5, 2, 4)
        shape = (n, c * b * b, rows, columns)
    return reshape(transpose(reshape(node.input(0), shape=apart), perm=perm), shape=shape)
