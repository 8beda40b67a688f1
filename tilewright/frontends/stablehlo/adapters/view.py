"""Ops that only move elements, and sources of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.stablehlo.adapters.complexes import as_pair
from tilewright.frontends.stablehlo.node import ProgramOp, adapter
from tilewright.frontends.stablehlo.values import ComplexPair, Held, each, rank_of
from tilewright.frontends.translation import Translation, type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops import source, view
from tilewright.ops.source import dim_value


@adapter("reshape")
def _reshape(node: ProgramOp) -> Held:
    shape = tuple(d or 0 for d in node.result_type.shape)
    return each(node.held(0), lambda x: _reshaped(x, tuple(map(sym, shape))))


def _reshaped(x: Value, shape: tuple[Sym, ...]) -> Value:
    return x if type_of(x).shape == shape else view.reshape(x, shape=shape)


@adapter("dynamic_reshape")
def _dynamic_reshape(node: ProgramOp) -> Held:
    shape = node.symbols(1)
    return each(node.held(0), lambda x: _reshaped(x, shape))


@adapter("broadcast_in_dim")
def _broadcast_in_dim(node: ProgramOp) -> Held:
    dims = node.integers("broadcast_dimensions")
    shape = tuple(sym(d or 0) for d in node.result_type.shape)
    return each(node.held(0), lambda x: spread(node.translation, x, dims, shape))


@adapter("dynamic_broadcast_in_dim")
def _dynamic_broadcast_in_dim(node: ProgramOp) -> Held:
    dims, shape = node.integers("broadcast_dimensions"), node.symbols(1)
    known = tuple(s if d is None else sym(d) for d, s in zip(node.result_type.shape, shape, strict=True))
    return each(node.held(0), lambda x: spread(node.translation, x, dims, known))


def spread(translation: Translation, x: Value, dims: Sequence[int], shape: tuple[Sym, ...]) -> Value:
    """x with its axes at positions `dims` of a result of `shape`."""
    own = type_of(x).shape
    if len(dims) != len(own) or len(set(dims)) != len(dims) or any(not 0 <= d < len(shape) for d in dims):
        raise ModelError(f"axes {tuple(dims)} of a result of {len(shape)} axes do not fit {len(own)} axes")
    order = sorted(range(len(dims)), key=lambda k: dims[k])
    if order != list(range(len(dims))):
        x = view.transpose(x, perm=tuple(order))
        own = type_of(x).shape
    wide = [sym(1)] * len(shape)
    for d, size in zip(sorted(dims), own, strict=True):
        wide[d] = size
    x = _reshaped(x, tuple(wide))
    return x if tuple(wide) == shape else view.expand(x, shape=shape)


@adapter("transpose")
def _transpose(node: ProgramOp) -> Held:
    perm = node.integers("permutation")
    if perm == tuple(range(len(perm))):
        return node.held(0)
    return each(node.held(0), lambda x: view.transpose(x, perm=perm))


@adapter("reverse")
def _reverse(node: ProgramOp) -> Held:
    axes = node.integers("dimensions")
    return each(node.held(0), lambda x: view.reverse(x, axes=axes) if axes else x)


@adapter("concatenate")
def _concatenate(node: ProgramOp) -> Held:
    axis = node.integer("dimension")
    operands = node.operands
    if len(operands) == 1:
        return operands[0]
    if node.result_type.is_complex:
        from_parts = [list(p) for p in zip(*[_parts(o) for o in operands], strict=True)]
        return ComplexPair(view.concat(*from_parts[0], axis=axis), view.concat(*from_parts[1], axis=axis))
    return view.concat(*node.values, axis=axis)


def _parts(held: Held) -> tuple[Value, Value]:
    pair = as_pair(held)
    return pair.real, pair.imaginary


@adapter("pad")
def _pad(node: ProgramOp) -> Held:
    low = tuple(map(sym, node.integers("edge_padding_low")))
    high = tuple(map(sym, node.integers("edge_padding_high")))
    return _padded(node, low, high, node.integers("interior_padding"))


@adapter("dynamic_pad")
def _dynamic_pad(node: ProgramOp) -> Held:
    interior = node.symbols(4)
    if not all(n.is_const for n in interior):
        raise node.translation.must_be_known(node.x(4), "padding between elements must be known")
    return _padded(node, node.symbols(2), node.symbols(3), tuple(n.value for n in interior))


def _padded(node: ProgramOp, low: tuple[Sym, ...], high: tuple[Sym, ...], interior: tuple[int, ...]) -> Held:
    held, value = node.held(0), node.held(1)
    if node.result_type.is_complex:
        x, by = as_pair(held), as_pair(value)
        return ComplexPair(
            padded(node.translation, x.real, by.real, low, high, interior),
            padded(node.translation, x.imaginary, by.imaginary, low, high, interior),
        )
    return padded(node.translation, node.x(0), node.x(1), low, high, interior)


def padded(
    translation: Translation,
    x: Value,
    value: Value,
    low: Sequence[Sym],
    high: Sequence[Sym],
    interior: Sequence[int],
) -> Value:
    """x with elements `value` before, behind and between those that it has; fewer where numbers are below 0."""
    known = translation.constant_of(value)
    if known is not None:
        return _padded_by(x, known.item(), low, high, interior)
    if all(n == 0 for n in (*low, *high, *interior)):
        return x
    inside = source.full(value=1, dtype=dt.bool_, shape=type_of(x).shape)
    is_own = _padded_by(inside, 0, low, high, interior)
    return ew.select(is_own, _padded_by(x, 0, low, high, interior), value)


def _padded_by(
    x: Value, value: float, low: Sequence[Sym], high: Sequence[Sym], interior: Sequence[int]
) -> Value:
    for axis, count in enumerate(interior):
        if count:
            x = _apart(x, axis, count, value)
    if all(n == 0 for n in (*low, *high)):
        return x
    return view.pad(x, before=tuple(low), after=tuple(high), value=value)


def _apart(x: Value, axis: int, count: int, value: float) -> Value:
    """x with `count` elements between its own along an axis."""
    shape = type_of(x).shape
    if shape[axis] == 0:
        return x
    wide = view.reshape(x, shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]))
    after = tuple(count if k == axis + 1 else 0 for k in range(len(shape) + 1))
    wide = view.pad(wide, before=(0,) * len(after), after=after, value=value)
    long = view.reshape(wide, shape=(*shape[:axis], shape[axis] * (count + 1), *shape[axis + 1 :]))
    return view.pad(
        long,
        before=(0,) * len(shape),
        after=tuple(-count if k == axis else 0 for k in range(len(shape))),
        value=value,
    )


@adapter("iota")
def _iota(node: ProgramOp) -> Held:
    return _counted(node, tuple(sym(d or 0) for d in node.result_type.shape))


@adapter("dynamic_iota")
def _dynamic_iota(node: ProgramOp) -> Held:
    return _counted(node, node.symbols(0))


def _counted(node: ProgramOp, shape: tuple[Sym, ...]) -> Held:
    found = source.iota(shape=shape, axis=node.integer("iota_dimension"), dtype=node.result_type.dtype)
    return as_pair(found) if node.result_type.is_complex else found


@adapter("get_dimension_size")
def _get_dimension_size(node: ProgramOp) -> Held:
    axis = node.integer("dimension")
    if not 0 <= axis < rank_of(node.held(0)):
        raise ModelError(f"there is no axis {axis}")
    held = node.held(0)
    shape = type_of(held.real if isinstance(held, ComplexPair) else node.x(0)).shape
    return ew.cast(dim_value(shape[axis]), dtype=node.result_type.dtype)


@adapter("set_dimension_size")
def _set_dimension_size(node: ProgramOp) -> Held:
    (size,) = node.symbols(1)
    axis = node.integer("dimension")
    shape = type_of(node.x(0)).shape
    sizes = tuple(size if k == axis else d for k, d in enumerate(shape))
    return view.slice_(node.x(0), starts=(0,) * len(shape), sizes=sizes, steps=(1,) * len(shape))
