"""Operators that pair elements by NumPy broadcasting, whatever the shapes are, or rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

from tilewright.ir.core import Block, Builder, Module, Op
from tilewright.ir.diag import TypeRuleError
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import sym
from tilewright.ir.types import TensorType, tensor
from tilewright.ops.define.operator import OPERATORS, Application, Compute, Operator, exact_items
from tilewright.ops.traits.facts import FIRST, NONE, Indices

_TRIED: tuple[tuple[int, ...], ...] = ((5, 7), (3, 5, 7))
"""Shapes that no attribute is likely to name."""


def is_elementwise(op: Op) -> bool:
    """Whether each element of the result is computed of one element of each operand, paired by broadcasting, by
    operands and attributes alone and for operands of any shapes."""
    operator = OPERATORS.get(op.name)
    if operator is None or operator.kind != "primitive" or not op.operands:
        return False
    types = [v.type for v in op.operands]
    if not all(isinstance(t, TensorType) for t in types):
        return False
    return _is_elementwise(operator.application(types, op.attrs))  # type: ignore[arg-type]


@lru_cache(maxsize=2048)
def _is_elementwise(application: Application) -> bool:
    operator, types, attrs = application.operator, application.types, application.attrs
    compute = operator.compute(types, attrs)
    if compute.combine or compute.tiles or any(o.name in ("bind", "index") for o in compute.body.ops):
        return False  # no need to try other shapes
    return _pairs(_Elements(operator, tuple(t.dtype for t in types), attrs))


def keeps_order(op: Op) -> bool:
    """Whether the result has the elements of the operand in their order, perhaps in another shape."""
    return op.name in OPERATORS and OPERATORS[op.name].is_alias


def paired(op: Op) -> Indices:
    """The operands of which an element of the result is computed of those at its own place (in order where shapes
    change), while it may be computed of any elements of others."""
    operator = OPERATORS.get(op.name)
    if operator is None or operator.kind != "primitive" or not op.operands:
        return NONE
    if operator.is_alias:
        return FIRST
    if is_elementwise(op):
        return frozenset(range(len(op.operands)))
    compute = operator.compute([v.tensor for v in op.operands], op.attrs)
    loads = [o for o in compute.body.ops if o.name == "load"]
    if compute.combine or compute.tiles or any(o.name == "index" for o in compute.body.ops):
        return NONE
    places = tuple(v for v, _ in compute.axes)
    alike = {a: all(o.attrs["idx"] == places for o in loads if o.operands[0] is a) for a in compute.body.args}
    bound = frozenset(o.attrs["var"] for o in compute.body.ops if o.name == "bind")
    computed = all(i.vars <= bound for o in loads if not alike[o.operands[0]] for i in o.attrs["idx"])
    return frozenset(k for k, a in enumerate(compute.body.args) if alike[a]) if computed else NONE


def pairs_rows(op: Op) -> bool:
    """Whether each row of the result, along its last axis, is computed of the rows of operands at its place, paired by
    broadcasting."""
    operator = OPERATORS.get(op.name)
    if operator is None or not op.operands or not all(isinstance(v.type, TensorType) for v in op.operands):
        return False
    return _pairs_rows(operator.application([v.tensor for v in op.operands], op.attrs))


@lru_cache(maxsize=2048)
def _pairs_rows(application: Application) -> bool:
    operator, types, attrs = application.operator, application.types, application.attrs
    if operator.kind == "composite":
        block = Block(types)
        with Builder(block, Module()):
            operator.expand(block.args, attrs)
        return all(pairs_rows(o) for o in block.ops if o.operands)
    return operator.kind == "primitive" and _reads_own_rows(operator.compute(types, attrs))


def _reads_own_rows(compute: Compute) -> bool:
    places = tuple(v for v, _ in compute.axes)
    if compute.tiles or any(o.name in ("bind", "index") for o in compute.body.ops):
        return False
    inside = frozenset({*places[-1:], *(v for v, _ in compute.reduce)})
    for load in (o for o in compute.body.ops if o.name == "load"):
        shape, at = load.operands[0].tensor.shape, load.attrs["idx"]
        if load.attrs.get("guard") or len(at) > len(places) or any(not i.vars <= inside for i in at[-1:]):
            return False
        pairs = zip(shape[:-1], at[:-1], places[len(places) - len(at) : -1], strict=True)
        if any(i != place and not (d == 1 and i == sym(0)) for d, i, place in pairs):
            return False
    return True


class _Elements:
    """An operator on elements of some dtypes, as a key."""

    __slots__ = ("attrs", "dtypes", "key", "operator")

    def __init__(self, operator: Operator, dtypes: tuple[DType, ...], attrs: dict[str, Any]) -> None:
        self.operator, self.dtypes, self.attrs = operator, dtypes, attrs
        self.key: Hashable = (operator, dtypes, exact_items(attrs))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Elements) and self.key == other.key

    def computed(self, shapes: Sequence[tuple[int, ...]]) -> Compute | None:
        """What it computes for operands of these shapes; None where they do not fit."""
        types = [tensor(d, s) for d, s in zip(self.dtypes, shapes, strict=True)]
        try:
            return self.operator.compute(types, self.attrs)
        except TypeRuleError:
            return None


@lru_cache(maxsize=512)
def _pairs(elements: _Elements) -> bool:
    count = len(elements.dtypes)
    bodies = []
    for shapes in _shapes(count):
        compute = elements.computed(shapes)
        whole = max(shapes, key=len)
        if compute is None or compute.type.shape != tensor(compute.dtype, whole).shape or not _pairs_elements(compute):
            return False
        bodies.append([(o.name, o.attrs.get("value"), str(o.attrs.get("expr"))) for o in compute.body.ops])
    return all(b == bodies[0] for b in bodies)


def _shapes(count: int) -> list[list[tuple[int, ...]]]:
    """Shapes of operands that an elementwise operator takes: all alike, and each of fewer axes than the others."""
    alike = [[shape] * count for shape in _TRIED]
    matrix = _TRIED[0]
    return alike + [[matrix[1:] if k == n else matrix for k in range(count)] for n in range(count) if count > 1]


def _pairs_elements(compute: Compute) -> bool:
    """Whether an element is computed of those at its own place."""
    ops = compute.body.ops
    if compute.combine or compute.tiles or any(o.name in ("bind", "index") for o in ops):
        return False
    places = tuple(v for v, _ in compute.axes)
    loads = [o for o in ops if o.name == "load"]
    at_place = all(o.attrs["idx"] == places[len(places) - len(o.attrs["idx"]) :] for o in loads)
    pure = all(o.name not in SCALAR_OPS or SCALAR_OPS[o.name].is_pure for o in ops)
    return bool(loads) and at_place and pure and not any(o.attrs.get("guard") for o in loads)
