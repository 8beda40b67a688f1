"""Operators that change shapes, with targets that may be computed from dims or read from small inputs."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.onnx.adapters.source import checked_shape
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops.binding import is_input_value
from tilewright.ops.shape import broadcast
from tilewright.ops.view import expand, reshape, tile, transpose


@adapter("Reshape", since=5)
def reshape_(node: Node) -> Value:
    if node.rank(1) != 1:
        raise ModelError(f"the target of Reshape must be a vector, it is {node.type(1)}")
    target = target_shape(node.shape(0), node.symbols(1), keep_zero=bool(node.attr("allowzero", 0)))
    return reshape(node.input(0), shape=checked_shape(target, "Reshape"))


def target_shape(shape: Sequence[Sym], target: Sequence[Sym], keep_zero: bool = False) -> tuple[Sym, ...]:
    """The dims that Reshape's target means: 0 copies the dim of the input, -1 takes what is left."""
    for d in target:
        if d.is_const and d.value < -1:
            raise ModelError(f"{d} is no dim to reshape to")
    if sum(d == -1 for d in target) > 1:
        raise ModelError("the target of Reshape holds -1 more than once")
    copied = [_copied(shape, k, d) if d == 0 and not keep_zero else d for k, d in enumerate(target)]
    if any(_is_input_value(d) for d in target):
        return _run_time_target(shape, copied, keep_zero)
    if -1 not in target:
        return tuple(copied)
    rest = product(d for d in copied if d != -1)
    total = product(shape)
    if rest == 0 or (total.is_const and rest.is_const and total.value % rest.value):
        raise ModelError(f"{total} elements cannot be divided into {rest}")
    return tuple(s.floordiv(total, rest) if d == -1 else d for d in copied)


def _copied(shape: Sequence[Sym], k: int, wanted: Sym) -> Sym:
    if k >= len(shape):
        raise ModelError(f"the target of Reshape copies dim {k} of a tensor with {len(shape)} axes")
    return shape[k]


def _is_input_value(d: Sym) -> bool:
    """Does the dim depend on the value of a graph input, so that it may turn out to be 0 or -1?"""
    lowest = d.bounds[0]
    return (lowest is None or lowest < 0) and any(map(is_input_value, d.vars))


def _run_time_target(shape: Sequence[Sym], target: Sequence[Sym], keep_zero: bool) -> tuple[Sym, ...]:
    """The rules for 0 and -1 as conditions on values that are known when the model is called."""
    dims = []
    for k, d in enumerate(target):
        copies = _is_input_value(d) and k < len(shape) and not keep_zero
        dims.append(s.select(s.eq(d, 0), shape[k], d) if copies else d)
    rest = product(s.select(s.eq(d, -1), sym(1), d) for d in dims)
    inferred = s.floordiv(product(shape), s.maximum(rest, 1))
    return tuple(s.select(s.eq(d, -1), inferred, d) for d in dims)


@adapter("Expand", since=8)
def expand_(node: Node) -> Value:
    wanted = checked_shape(node.symbols(1), "Expand")
    shape = checked_shape(broadcast(node.shape(0), wanted), "Expand")
    return node.input(0) if shape == node.shape(0) else expand(node.input(0), shape=shape)


@adapter("Tile", since=6)
def tile_(node: Node) -> Value:
    repeats = node.symbols(1)
    if len(repeats) != node.rank(0) or any(r.is_const and r.value < 0 for r in repeats):
        raise ModelError(f"Tile repeats {node.type(0)} by [{', '.join(map(str, repeats))}]")
    checked_shape(tuple(d * r for d, r in zip(node.shape(0), repeats, strict=True)), "Tile")
    return tile(node.input(0), repeats=repeats)


@adapter("Squeeze")
def squeeze_attribute(node: Node) -> Value:
    return _squeezed(node, node.attr("axes", None))


@adapter("Squeeze", since=13)
def squeeze_input(node: Node) -> Value:
    return _squeezed(node, None if node.optional(1) is None else node.ints(1))


def _squeezed(node: Node, axes: Sequence[int] | None) -> Value:
    shape = node.shape(0)
    if axes is None:
        dropped = tuple(
            k for k, d in enumerate(shape) if not node.context.choose(s.ne(d, 1), f"what {node.op} gives")
        )
    else:
        dropped = node.checked_axes(axes)
    for k in dropped:
        if shape[k].is_const and shape[k] != 1:
            raise ModelError(f"Squeeze of axis {k} of {node.type(0)}: the dim is not 1")
    return reshape(node.input(0), shape=tuple(d for k, d in enumerate(shape) if k not in dropped))


@adapter("Unsqueeze")
def unsqueeze_attribute(node: Node) -> Value:
    return _unsqueezed(node, node.attr("axes"))


@adapter("Unsqueeze", since=13)
def unsqueeze_input(node: Node) -> Value:
    return _unsqueezed(node, node.ints(1))


def _unsqueezed(node: Node, axes: Sequence[int]) -> Value:
    shape = list(node.shape(0))
    for k in sorted(node.checked_axes(axes, len(shape) + len(axes))):
        shape.insert(k, sym(1))
    return reshape(node.input(0), shape=tuple(shape))


@adapter("Flatten")
def flatten(node: Node) -> Value:
    shape = node.shape(0)
    axis = node.attr("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise ModelError(f"Flatten at axis {axis} of {node.type(0)}")
    axis = axis + len(shape) if axis < 0 else axis
    return reshape(node.input(0), shape=(product(shape[:axis]), product(shape[axis:])))


@adapter("Transpose")
def transpose_(node: Node) -> Value:
    rank = node.rank(0)
    perm = node.attr("perm", tuple(reversed(range(rank))))
    if sorted(p % rank if -rank <= p < rank else rank for p in perm) != list(range(rank)):
        raise ModelError(f"perm {list(perm)} is no order of the {rank} axes")
    return transpose(node.input(0), perm=tuple(p % rank for p in perm)) if rank > 1 else node.input(0)


@adapter("DepthToSpace")
def depth_to_space(node: Node) -> Value:
    n, c, h, w = _image(node)
    b = _block_size(node)
    if c.is_const and c.value % (b * b):
        raise ModelError(f"DepthToSpace: {c} channels are not a multiple of {b}*{b}")
    depth = s.floordiv(c, b * b)
    if node.attr("mode", "DCR") == "DCR":
        apart = transpose(
            reshape(node.input(0), shape=(n, sym(b), sym(b), depth, h, w)), perm=(0, 3, 4, 1, 5, 2)
        )
    else:
        apart = transpose(
            reshape(node.input(0), shape=(n, depth, sym(b), sym(b), h, w)), perm=(0, 1, 4, 2, 5, 3)
        )
    return reshape(apart, shape=(n, depth, h * b, w * b))


@adapter("SpaceToDepth")
def space_to_depth(node: Node) -> Value:
    n, c, h, w = _image(node)
    b = _block_size(node)
    if any(d.is_const and d.value % b for d in (h, w)):
        raise ModelError(f"SpaceToDepth: the image {h} x {w} is not a multiple of {b}")
    rows, columns = s.floordiv(h, b), s.floordiv(w, b)
    apart = reshape(node.input(0), shape=(n, c, rows, sym(b), columns, sym(b)))
    perm = (0, 3, 5, 1, 2, 4) if node.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return reshape(transpose(apart, perm=perm), shape=(n, c * b * b, rows, columns))


def _image(node: Node) -> tuple[Sym, ...]:
    if node.rank(0) != 4:
        raise ModelError(f"{node.op} takes [n, c, h, w], not {node.type(0)}")
    return node.shape(0)


def _block_size(node: Node) -> int:
    size: int = node.attr("blocksize")
    if not 1 <= size <= 2**16:
        raise ModelError(f"{node.op}: a block of {size} is not possible")
    return size
