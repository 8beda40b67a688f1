"""Sorting: what comparators compare is recognised; by others elements are counted that come before each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxlib.mlir import ir

from tilewright.frontends.stablehlo.adapters.elementwise import converted, direction_of
from tilewright.frontends.stablehlo.node import ProgramOp, adapter
from tilewright.frontends.stablehlo.types import constant_of
from tilewright.frontends.stablehlo.values import Held, as_value
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops.index import gather_elements, scatter_elements
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.sort import topk
from tilewright.ops.source import iota
from tilewright.ops.view import expand, reshape, shape_of

LONGEST = 4096
"""The longest axis along which each element is compared with each."""


class Key(NamedTuple):
    """What decides an order: an operand, greatest first or last. Of equal ones the next key decides."""

    operand: int
    largest: bool


@adapter("sort")
def _sort(node: ProgramOp) -> Sequence[Held]:
    values = node.values
    rank = len(shape_of(values[0]))
    axis = node.integer("dimension", -1) % max(rank, 1)
    block = node.region(0)
    if len(block.arguments) != 2 * len(values):
        raise ModelError("the comparator does not fit the operands")
    *_, end = block.operations
    keys = _keys(end.operation.operands[0], list(block.arguments))
    if keys is None:
        return _by_counting(node, block, values, axis)
    places: Value | None = None
    if len(keys) == 1:
        x, (key,) = values[keys[0].operand], keys
        ordered, places = _ordered(x, axis, key.largest)
        return [ordered if v is x else _moved(node, k, v, places, axis) for k, v in enumerate(values)]
    for key in reversed(keys):  # stable: the last sort decides first
        x = values[key.operand] if places is None else gather_elements(values[key.operand], places, axis=axis)
        _, found = _ordered(x, axis, key.largest)
        places = found if places is None else gather_elements(places, found, axis=axis)
    assert places is not None
    return [_moved(node, k, v, places, axis) for k, v in enumerate(values)]


def _ordered(x: Value, axis: int, largest: bool) -> tuple[Value, Value]:
    if type_of(x).dtype is dt.bool_:
        values, places = _ordered(ew.cast(x, dtype=dt.u8), axis, largest)
        return ew.cast(values, dtype=dt.bool_), places
    values, places = topk(x, k=shape_of(x)[axis], axis=axis, largest=largest)
    return values, places


def _moved(node: ProgramOp, k: int, value: Value, places: Value, axis: int) -> Value:
    """An operand in the new order; the places themselves where it counts."""
    owner = node.operation.operands[k].owner
    if (
        not isinstance(owner, ir.Block)
        and owner.operation.name == "stablehlo.iota"
        and owner.operation.attributes["iota_dimension"].value == axis
    ):
        return converted(places, type_of(value).dtype)
    return gather_elements(value, places, axis=axis)


# What a comparator compares


def _keys(result: ir.Value, arguments: list[ir.Value]) -> list[Key] | None:
    """Keys by which the first of each pair of arguments comes before the second; None where it is not understood."""
    op = _op(result)
    if op is None:
        return None
    if op.name == "stablehlo.compare":
        key = _compared(op, arguments)
        return None if key is None or key[1] not in ("LT", "GT") else [Key(key[0], key[1] == "GT")]
    if op.name == "stablehlo.or":  # before by the first key, or equal and before by others
        for first, then in (tuple(op.operands), tuple(op.operands)[::-1]):
            found, both = _keys(first, arguments), _op(then)
            if found is None or len(found) != 1 or both is None or both.name != "stablehlo.and":
                continue
            for equal, after in (tuple(both.operands), tuple(both.operands)[::-1]):
                others = _keys(after, arguments)
                if others is not None and _is_equal(equal, found[0], arguments):
                    return [*found, *others]
    if op.name == "stablehlo.select":
        condition, then, other = op.operands
        found, others = _keys(other, arguments), _keys(then, arguments)
        if found is not None and len(found) == 1 and others and _is_equal(condition, found[0], arguments):
            return [*found, *others]
    return None


def _op(value: ir.Value) -> ir.Operation | None:
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _is_equal(value: ir.Value, key: Key, arguments: list[ir.Value]) -> bool:
    op = _op(value)
    return op is not None and op.name == "stablehlo.compare" and _compared(op, arguments) == (key.operand, "EQ")


_TURNED = {"LT": "GT", "GT": "LT", "EQ": "EQ"}


def _compared(op: ir.Operation, arguments: list[ir.Value]) -> tuple[int, str] | None:
    """The operand of which two elements are compared, and how the first of them is to the second."""
    direction = direction_of(op.attributes["comparison_direction"])
    places = []
    for value in op.operands:
        plain = _plain(value)
        if plain not in arguments:
            return None
        places.append(arguments.index(plain))
    if direction not in _TURNED or places[0] // 2 != places[1] // 2 or places[0] == places[1]:
        return None
    return places[0] // 2, direction if places[0] < places[1] else _TURNED[direction]


def _plain(value: ir.Value) -> ir.Value:
    """What a number is before -0 became 0, and all NaN the same: our order has no more of these."""
    while (op := _op(value)) is not None and op.name == "stablehlo.select":
        condition, replaced, other = op.operands
        test = _op(condition)
        if test is None or test.name != "stablehlo.compare":
            return value
        direction = direction_of(test.attributes["comparison_direction"])
        a, b = test.operands
        is_nan = direction == "NE" and a == b and _plain(a) == _plain(other)
        is_zero = direction == "EQ" and a == other and _is_number(b, 0.0) and _is_number(replaced, 0.0)
        if not (is_zero or (is_nan and _is_number(replaced, None))):
            return value
        value = other
    return value


def _is_number(value: ir.Value, wanted: float | None) -> bool:
    """Whether a value is this constant; None for NaN."""
    op = _op(value)
    if op is None or op.name != "stablehlo.constant":
        return False
    number = float(constant_of(op).array.reshape(-1)[0])
    return number != number if wanted is None else number == wanted


# Any comparator


def _by_counting(node: ProgramOp, block: ir.Block, values: Sequence[Value], axis: int) -> Sequence[Held]:
    """An element's place is the number of those that come before it, equal ones at lower places among them."""
    shape = shape_of(values[0])
    size = shape[axis]
    if not size.is_const or size.value > LONGEST:
        raise UnsupportedError(
            f"a comparator that is not understood sorts an axis of {size} elements; supported are {LONGEST}",
            hint=node.translation.fixing(size) if not size.is_const else "compare numbers, one key after the other",
        )
    # [..., i, j]: does element j come before element i?
    rows = (*shape[: axis + 1], sym(1), *shape[axis + 1 :])
    columns = (*shape[:axis], sym(1), *shape[axis:])
    first = [reshape(v, shape=columns) for v in values]
    second = [reshape(v, shape=rows) for v in values]

    def before(a: Sequence[Value], b: Sequence[Value]) -> Value:
        (found,) = node.written(block, [v for pair in zip(a, b, strict=True) for v in pair])
        return as_value(found)

    goes_before, comes_after = before(first, second), before(second, first)
    i = iota(shape=tuple(size if k == axis else sym(1) for k in range(len(rows))), axis=axis)
    j = iota(shape=tuple(size if k == axis + 1 else sym(1) for k in range(len(rows))), axis=axis + 1)
    is_before = ew.or_(goes_before, ew.and_(ew.not_(comes_after), ew.lt(j, i)))
    places = reduce_sum(ew.cast(is_before, dtype=dt.i64), axes=(axis + 1,), keepdims=False)
    places = places if shape_of(places) == shape else expand(places, shape=shape)
    return [scatter_elements(v, places, v, axis=axis) for v in values]


@adapter("chlo.top_k")
def _top_k(node: ProgramOp) -> Sequence[Held]:
    return greatest(node.x(0), node.integer("k"), [t.dtype for t in node.types])


def greatest(x: Value, count: int, dtypes: Sequence[dt.DType], largest: bool = True) -> list[Value]:
    """The `count` greatest along the last axis, and where they are."""
    values, places = topk(x, k=count, axis=len(shape_of(x)) - 1, largest=largest)
    return [values, converted(places, dtypes[1])]
