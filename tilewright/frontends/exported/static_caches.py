"""Caches of a fixed size that a decoder keeps as buffers become caches that come and go, which grow.

    kept = scatter_elements(cache, past + iota(n), new);   attention(q, kept, kept', mask)        cache [.., size, ..]
        ->  kept = concat(cache, new);                     attention(q, kept, kept', mask[.., 0 : past + n])
                                                                                                  cache [.., past, ..]

Attention of such decoders reads whole buffers, and masks what is not filled. The second form is the same where the mask
hides all columns from `past + n` on, which is proved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.frontends.exported.elements import ElementsAt
from tilewright.ir.core import Builder, Op, Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import product, tensor
from tilewright.ops.define import OPERATORS
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.ops.view import concat, slice_, transpose


@dataclass(frozen=True)
class _Write:
    """What puts rows `new` into a cache, along an axis."""

    axis: int
    new: Value


class StaticCaches:
    """The caches of a program that has been written, for `steps` tokens behind `past` others."""

    def __init__(self, builder: Builder, past: Sym, steps: Sym) -> None:
        assert builder.module is not None
        self._builder, self._past, self._steps = builder, past, steps
        self._elements = ElementsAt(builder.module)
        self._parts: dict[tuple[Value, int], Value] = {}

    @property
    def end(self) -> Sym:
        """How many rows are filled when a call is over."""
        return self._past + self._steps

    def grow(self, caches: Mapping[str, tuple[Value, Value]]) -> tuple[dict[Value, Value], int]:
        """Make of caches, by the names of their buffers, with what they become in a call, such that come and go: what
        is in place of these results, and how many positions all of them had room for. UnsupportedError where it is not
        seen that this is the same."""
        found = {name: self._write(name, *pair) for name, pair in caches.items()}
        sinks: dict[Op, tuple[Sym, str]] = {}
        for name, (cache, following) in caches.items():
            axis = found[name].axis
            for op in self._sinks(following, axis, name):
                sinks[op] = cache.tensor.shape[axis], name
        rooms, kept = [], {}
        for name, (cache, following) in caches.items():
            axis, new, dims = found[name].axis, found[name].new, cache.tensor.shape
            rooms.append(dims[axis].value)
            cache.type = tensor(cache.tensor.dtype, (*dims[:axis], self._past, *dims[axis + 1 :]))
            assert following.op is not None
            kept[following] = self._before(following.op, lambda: concat(cache, new, axis=axis))  # noqa: B023
            self._parts[following, axis] = kept[following]
        order = {op: k for k, op in enumerate(self._builder.block.ops)}
        for op in sorted(sinks, key=order.__getitem__):
            self._limit(op, *sinks[op])
        self._erase_unused([*kept, *(op.result for op in sinks)])
        return kept, min(rooms)

    # Writing

    def _write(self, name: str, cache: Value, following: Value) -> _Write:
        """The rows that a call puts behind those that are there."""
        found = self._write_of(cache, following)
        if found is None:
            raise _unknown(name, "calls put their rows behind those that are there, along one axis")
        return found

    def _write_of(self, cache: Value, following: Value) -> _Write | None:
        """The same in one of the forms that indexing becomes."""
        op = following.op
        while op is not None and op.name == "reshape" and op.operands[0].type == following.type:
            op = op.operands[0].op
        order = tuple(range(cache.tensor.rank))
        if op is not None and op.name == "transpose":
            order, op = tuple(op.attrs["perm"]), op.operands[0].op
        if op is None or op.attrs.get("reduction") != "none" or not cache.tensor.is_static:
            return None
        whole, places, new = op.operands
        back = tuple(order.index(k) for k in range(len(order)))
        if op.name == "scatter_elements" and whole is cache and order == back:
            axis = op.attrs["axis"] % cache.tensor.rank
        elif op.name == "scatter_nd" and _is_transposed(whole, cache, back) and places.tensor.shape[-1:] == (sym(1),):
            axis = back[0]
        else:
            return None
        along = axis if op.name == "scatter_elements" else 0
        position = [sym(0) if d == 1 else var(f"place_{k}") for k, d in enumerate(places.tensor.shape)]
        element = self._elements.known(places, position)
        if element != self._past + position[along] or places.tensor.shape[along] != self._steps:
            return None
        rows = new if op.name == "scatter_elements" else self._before(op, lambda: transpose(new, perm=order))
        return _Write(axis, rows) if _is_part(rows, cache, axis) else None

    # Reading

    def _sinks(self, value: Value, axis: int, name: str) -> Iterator[Op]:
        """The ops that sum along the axis of a cache."""
        for op in dict.fromkeys(value.users):
            for k, operand in enumerate(op.operands):
                if operand is not value:
                    continue
                if _sums(op, k, axis):
                    yield op
                    yield from self._counts(op)
                elif (found := _axis_of_result(op, k, axis)) is not None:
                    yield from self._sinks(op.result, found, name)
                else:
                    raise _unknown(name, f"{op.name} reads rows that are not filled")

    def _counts(self, op: Op) -> Iterator[Op]:
        """What asks of the mask of attention whether anything is attended to."""
        for mask in op.operands[3:]:
            last = mask.tensor.rank - 1
            yield from (u for u in mask.users if u.name == "reduce_or" and tuple(u.attrs["axes"]) == (last,))

    def _limit(self, op: Op, size: Sym, name: str) -> None:
        """Sum along what is filled."""
        axes = [_summed(op, k) for k in range(len(op.operands))]
        if op.name == "attention" or op.name == "reduce_or":
            masks = [(x, x.tensor.rank - 1) for x in (op.operands[3:] if op.name == "attention" else op.operands)]
            if not any(self._hides(*mask, size) for mask in masks):
                raise _unknown(name, "attention masks what is not filled")
        elif not any(self._vanishes(x, axis or 0, size) for x, axis in zip(op.operands, axes, strict=True)):
            raise _unknown(name, "products with what is not filled are with zeros, as those of a softmax of a mask")

        def limited() -> Value:
            pairs = zip(op.operands, axes, strict=True)
            return _applied(op, [x if axis is None else self._part(x, axis, size) for x, axis in pairs])

        op.result.replace_by(self._before(op, limited))

    def _vanishes(self, value: Value, axis: int, size: Sym) -> bool:
        """Whether all elements behind the rows that are filled are 0: those of a softmax of what a mask hides."""
        op = value.op
        if op is None or value.tensor.shape[axis] != size:
            return False
        if op.name == "softmax":
            return op.attrs["axis"] % value.tensor.rank == axis and self._hides(op.operands[0], axis, size)
        before = _axis_of_operand(op, 0, axis)
        is_moved = op.name in (*_MOVES, "cast") and before is not None
        return is_moved and before is not None and self._vanishes(op.operands[0], before, size)

    def _hides(self, mask: Value, axis: int, size: Sym) -> bool:
        """Whether nothing is attended to behind the rows that are filled, wherever a row of queries stands."""
        shape = mask.tensor.shape
        if shape[axis] != size:
            return False
        position = []
        for k, d in enumerate(shape):
            if k == axis:
                position.append(self.end + var("behind"))
            elif d == self._steps and d != 1:
                position.append(self._steps - 1 - var(f"before_{k}"))
            else:
                position.append(sym(0) if d == 1 else var(f"place_{k}"))
        return self._elements.is_hidden(mask, position)

    def _part(self, value: Value, axis: int, size: Sym) -> Value:
        """The value with what is filled of an axis of the cache's size; of one element, which is paired with all, as it
        is."""
        if value.tensor.shape[axis] != size:
            return value
        if (value, axis) not in self._parts:
            self._parts[value, axis] = self._limited(value, axis, size)
        return self._parts[value, axis]

    def _limited(self, value: Value, axis: int, size: Sym) -> Value:
        op, shape = value.op, value.tensor.shape
        known = None
        if op is not None:
            attrs: dict[str, Any] = {}
            if "shape" in op.attrs:
                attrs["shape"] = (*shape[:axis], self.end, *shape[axis + 1 :])
            axes = [_axis_of_operand(op, k, axis) for k in range(len(op.operands))]
            if op.name == "softmax" and op.attrs["axis"] % len(shape) == axis and not self._vanishes(value, axis, size):
                axes = [None]
            if op.name in _FILLS or any(found is not None for found in axes):
                operands = [
                    x if found is None else self._part(x, found, size)
                    for x, found in zip(op.operands, axes, strict=True)
                ]
                known = _applied(op, operands, **attrs)
        if known is not None:
            return known
        found: Value = slice_(value, starts=(0,) * len(shape), sizes=(*shape[:axis], self.end, *shape[axis + 1 :]))
        return found

    # Where ops stand

    def _erase_unused(self, values: Iterable[Value]) -> None:
        """Take out what gave values that nothing reads any more, and what only that read: it does not fit the caches
        now."""
        waiting = list(values)
        while waiting:
            op = waiting.pop().op
            if op is not None and op.parent is not None and not any(v.users for v in op.results):
                waiting += op.operands
                op.erase()

    def _before(self, op: Op, write: Callable[[], Value]) -> Value:
        """What is written, in place behind all that it reads: where the op stands."""
        ops = self._builder.block.ops
        count = len(ops)
        with self._builder.at(op.loc):
            found = write()
        made = ops[count:]
        del ops[count:]
        place = ops.index(op)
        ops[place:place] = made
        return found


_MOVES = ("reshape", "expand", "transpose")
_FILLS = ("iota", "full")


def _unknown(name: str, wanted: str) -> UnsupportedError:
    return UnsupportedError(
        f"the buffer '{name}' is no cache of a form that is known: it is looked for that {wanted}",
        hint="export the decoder with its caches as inputs and outputs, joined with what is new",
    )


def _is_transposed(value: Value, cache: Value, order: tuple[int, ...]) -> bool:
    if order == tuple(range(len(order))):
        return value is cache
    op = value.op
    return op is not None and op.name == "transpose" and op.operands[0] is cache and tuple(op.attrs["perm"]) == order


def _is_part(rows: Value, cache: Value, axis: int) -> bool:
    """Whether rows are as long as those of a cache, and of its type."""
    pairs = zip(rows.tensor.shape, cache.tensor.shape, strict=True)
    return rows.tensor.dtype is cache.tensor.dtype and all(a == b for k, (a, b) in enumerate(pairs) if k != axis)


def _applied(op: Op, operands: Sequence[Value], **changed: Any) -> Value:
    found: Value = OPERATORS[op.name](*operands, **{**op.attrs, **changed})
    return found


def _inner(op: Op, operand: int) -> int:
    """The axis of an operand along which a product sums."""
    is_turned = bool(op.attrs["transpose_a" if operand == 0 else "transpose_b"])
    return op.operands[operand].tensor.rank - (2 if is_turned == (operand == 0) else 1)


def _sums(op: Op, operand: int, axis: int) -> bool:
    """Whether an op sums along an axis of an operand: of the keys and values of attention, or of a product."""
    return (op.name != "attention" or operand in (1, 2)) and axis == _summed(op, operand)


def _summed(op: Op, operand: int) -> int | None:
    """The axis of an operand along which an op sums, or has one element for each that it sums."""
    rank = op.operands[operand].tensor.rank
    if op.name == "attention":
        return None if operand == 0 else rank - 1 if operand == 3 else rank - 2
    if op.name == "reduce_or":
        return rank - 1
    is_product = op.name == "matmul" and min(v.tensor.rank for v in op.operands) > 1
    return _inner(op, operand) if is_product else None


def _axis_of_result(op: Op, operand: int, axis: int) -> int | None:
    """The axis of the result that an axis of an operand is; None where it is none, or that is not known."""
    if len(op.results) != 1:
        return None
    for found in range(op.result.tensor.rank):
        if _axis_of_operand(op, operand, found) == axis:
            return found
    return None


def _axis_of_operand(op: Op, operand: int, axis: int) -> int | None:
    """The axis of an operand that an axis of the result is; None where it is none, or that is not known."""
    x, result = op.operands[operand], op.result
    if op.name == "reshape":
        return _kept_axis(result.tensor.shape, x.tensor.shape, axis)
    if op.name == "transpose":
        return int(op.attrs["perm"][axis]) % x.tensor.rank
    if op.name == "softmax":
        return axis
    if op.name == "gather":  # along another axis
        along, more = op.attrs["axis"] % x.tensor.rank, op.operands[1].tensor.rank - 1
        is_along = along <= axis <= along + more
        return None if operand or is_along else axis if axis < along else axis - more
    if op.name == "matmul":
        outer = x.tensor.rank - (1 if _inner(op, operand) == x.tensor.rank - 2 else 2)
        is_outer = axis == result.tensor.rank - 2 + operand and min(v.tensor.rank for v in op.operands) > 1
        return outer if is_outer else None
    if op.name == "expand" or is_elementwise(op):
        own = axis - (result.tensor.rank - x.tensor.rank)
        return own if own >= 0 and x.tensor.shape[own] == result.tensor.shape[axis] else None
    return None


def _kept_axis(shape: Sequence[Sym], other: Sequence[Sym], axis: int) -> int | None:
    """The axis of another shape of the same elements that is an axis of the first: as long, behind as many."""
    for k, d in enumerate(other):
        if d == shape[axis] and product(other[:k]) == product(shape[:axis]):
            return k
    return None
