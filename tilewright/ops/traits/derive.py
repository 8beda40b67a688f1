"""What the definition of an operator tells of its traits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilewright.ir import sym as s
from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.scalar import SCALAR_OPS, ScalarOp, identity
from tilewright.ir.sym import Sym
from tilewright.ir.types import ScalarType, TensorType
from tilewright.ops.define.operator import OPERATORS, Application, Compute, Operator
from tilewright.ops.traits.facts import NONE, UNKNOWN, Indices, Number, Product, Traits
from tilewright.ops.traits.products import product_of_compute, product_of_parts


def traits_of(op: Op) -> Traits:
    """The traits of a graph op; nothing is known of what is no operator on tensors."""
    operator = OPERATORS.get(op.name)
    types = [v.type for v in op.operands]
    if operator is None or not all(isinstance(t, TensorType) for t in types):
        return UNKNOWN
    return traits(operator, types, op.attrs)  # type: ignore[arg-type]


def traits(operator: Operator, types: Sequence[TensorType], attrs: dict[str, Any]) -> Traits:
    """The traits of an operator on operands of these types; TypeRuleError where they do not fit."""
    if operator.kind == "primitive":
        own = _of_compute(operator.compute(types, attrs))
        return own if operator.declared is UNKNOWN else own.with_declared(_declared(operator, attrs))
    return _of_application(operator.application(types, attrs))


def is_alias(op: Op) -> bool:
    """Whether its result lies in memory as its operand does."""
    operator = OPERATORS.get(op.name)
    return operator is not None and operator.is_alias


def is_view(op: Op) -> bool:
    """Whether it shows all or some elements of its only operand, and nothing else, at places that its attributes
    tell."""
    return len(op.operands) == 1 and len(op.results) == 1 and traits_of(op).moves_one


def product_of(op: Op) -> Product | None:
    """The axes of the products that an op adds up; None where they are not all that it adds up."""
    return traits_of(op).product


def known_product(op: Op) -> Product:
    """Those of an op that is known to be a product."""
    product = product_of(op)
    assert product is not None, f"{op.name} adds up no products"
    return product


def is_reduction(op: Op) -> bool:
    """Whether it combines elements of its only operand along axes."""
    operator = OPERATORS.get(op.name)
    if operator is None or operator.kind != "primitive" or len(op.operands) != 1:
        return False
    compute = operator.compute([op.operands[0].tensor], op.attrs)
    axes = {v for v, _ in (*compute.axes, *compute.reduce)}
    loads = (o for o in compute.body.ops if o.name == "load")
    return compute.combine != "" and all(axes.issuperset(o.attrs["idx"]) for o in loads)


# Of primitives


@lru_cache(maxsize=2048)
def _of_compute(compute: Compute) -> Traits:
    return _Body(compute).traits()


def _declared(operator: Operator, attrs: dict[str, Any]) -> Traits:
    return operator.declared if isinstance(operator.declared, Traits) else operator.declared(**attrs)


@dataclass(frozen=True, slots=True)
class _Element:
    """What is known of a scalar of a body: the operands that it depends on, those that it depends on by steps, those in
    which it is linear (all where it is 0)."""

    reads: Indices = NONE
    steps: Indices = NONE
    linear: Indices = NONE


@dataclass(frozen=True, slots=True)
class _Moved:
    """A scalar that is an element of one of some operands, or one of some numbers."""

    operands: Indices
    fills: frozenset[Number]

    def __or__(self, other: _Moved) -> _Moved:
        return _Moved(self.operands | other.operands, self.fills | other.fills)


class _Body:
    """The body of a primitive, read from its loads to what it yields."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute
        self.operands = {v: k for k, v in enumerate(compute.body.args)}
        self.everything = frozenset(self.operands.values())
        self.bound: dict[Sym, Indices] = {}
        self.elements: dict[Value, _Element] = {}
        for op in compute.body.ops:
            if op.name == "bind":
                self.bound[op.attrs["var"]] = self.elements[op.operands[0]].reads
            elif op.results:
                self.elements[op.result] = self._element(op)

    def traits(self) -> Traits:
        compute = self.compute
        found = [self.elements[v] for v in compute.body.ops[-1].operands]
        reads = frozenset[int]().union(*(e.reads for e in found))
        steps = frozenset[int]().union(*(e.steps for e in found))
        is_sum = compute.combine in ("", "add")
        linear = self.everything.intersection(*(e.linear for e in found)) & reads if is_sum else NONE
        ordered = compute.combine in ("", "min", "max")
        chosen = self._joined(chooses=True) if ordered else None
        moved = self._joined(chooses=False) if not compute.combine else None
        fills = self._kept_fills(chosen)
        applied = self._scalar_operation()
        return Traits(
            moves=moved.operands if moved is not None else NONE,
            chooses=chosen.operands if chosen is not None else NONE,
            fills=fills if chosen is not None else (),
            continuous=frozenset(k for k in self._floats() - steps if k in reads),
            linear=linear,
            commutative=applied is not None and applied.commutative,
            right_identity=None if applied is None else applied.identity,
            is_exact=self._is_exact(),
            is_finite=not compute.combine and all(map(_is_finite, compute.body.ops)),
            sums_products=compute.combine == "add" and len(linear) > 1 and not compute.tiles,
            product=product_of_compute(compute),
            is_pure=all(o.name not in SCALAR_OPS or SCALAR_OPS[o.name].is_pure for o in compute.body.ops),
        )

    def _scalar_operation(self) -> ScalarOp | None:
        """The one scalar operation that is applied to elements of both operands."""
        ops = self.compute.body.ops
        if len(ops) != 4 or self.compute.combine or [o.name for o in ops[:2]] != ["load", "load"]:
            return None
        applied, end = ops[2:]
        read = [v.op.operands[0] for v in applied.operands if v.op is not None]
        in_order = read == list(self.compute.body.args) and end.operands[0] is applied.result
        return SCALAR_OPS.get(applied.name) if in_order else None

    def _floats(self) -> Indices:
        return frozenset(k for v, k in self.operands.items() if v.tensor.dtype.is_float)

    def _element(self, op: Op) -> _Element:
        if op.name == "load":
            operand = frozenset({self.operands[op.operands[0]]})
            places = self._bound_in(op.attrs["idx"]) | self._bound_in(op.attrs.get("guard", ()))
            linear = operand - places if not op.attrs.get("guard") or op.attrs["other"] == 0 else NONE
            return _Element(operand | places, places, linear)
        if op.name == "index":
            places = self._bound_in((op.attrs["expr"],))
            return _Element(places, places)
        if op.name == "const":
            return _Element(linear=self.everything if op.attrs["value"] == 0 else NONE)
        parts = [self.elements[v] for v in op.operands]
        reads = frozenset[int]().union(*(p.reads for p in parts))
        steps = frozenset[int]().union(*(p.steps for p in parts))
        if op.name == "select":
            steps |= parts[0].reads
        elif not _is_continuous(op):
            steps |= reads
        return _Element(reads, steps, _linear(op, parts))

    def _bound_in(self, expressions: Sequence[Sym]) -> Indices:
        variables = frozenset[Sym]().union(*(e.vars for e in expressions))
        return frozenset[int]().union(*(self.bound.get(v, NONE) for v in variables))

    def _is_exact(self) -> bool:
        computing = (o for o in self.compute.body.ops if o.results and _concerns_floats(o))
        return self.compute.combine in ("", "min", "max") and all(map(_is_exact, computing))

    # Elements as they are

    def _joined(self, chooses: bool) -> _Moved | None:
        """What the elements of the result are, where all are elements of operands."""
        found: _Moved | None = None
        for value in self.compute.body.ops[-1].operands:
            one = self._moved(value, chooses, frozenset())
            if one is None:
                return None
            found = one if found is None else found | one
        return found if found is not None and found.operands else None

    def _moved(self, value: Value, chooses: bool, holding: frozenset[Sym]) -> _Moved | None:
        """What a value is while some conditions on the place of the result hold; None where it is computed."""
        op = value.op
        assert op is not None
        if op.name == "load":
            outside = any(g not in holding for g in op.attrs.get("guard", ()))
            fills = frozenset({op.attrs["other"]} if outside else ())
            return _Moved(frozenset({self.operands[op.operands[0]]}), fills)
        if op.name == "const":
            return _Moved(NONE, frozenset({op.attrs["value"]}))
        if op.name == "select" and not self._by_data(op.operands[0]):
            place = op.operands[0].op
            tells = place is not None and place.name == "index"
            condition = place.attrs["expr"] if place is not None and tells else None
            where = holding if condition is None else holding | {condition}
            elsewhere = holding if condition is None else holding | {s.logical_not(condition)}
            return self._either(op.operands[1:], chooses, (where, elsewhere))
        if chooses and op.name in ("min", "max"):
            return self._either(op.operands, chooses, (holding, holding))
        return None

    def _either(
        self, values: Sequence[Value], chooses: bool, holding: Sequence[frozenset[Sym]]
    ) -> _Moved | None:
        one, other = (self._moved(v, chooses, h) for v, h in zip(values, holding, strict=True))
        return None if one is None or other is None else one | other

    def _by_data(self, condition: Value) -> bool:
        """Whether elements tell what a condition on them is. Those that say where others go are no such elements."""
        return bool(self.elements[condition].reads)

    def _kept_fills(self, chosen: _Moved | None) -> tuple[Number, ...]:
        """The fills, but for those that a reduction never chooses."""
        if chosen is None:
            return ()
        dtype, combine = self.compute.dtype, self.compute.combine
        neutral = identity(combine, dtype) if combine else None
        return tuple(sorted(n for n in chosen.fills if n != neutral))


def _is_continuous(op: Op) -> bool:
    if op.name == "cast":
        return op.result.scalar.dtype.is_float and op.operands[0].scalar.dtype.is_float
    return op.name in SCALAR_OPS and not SCALAR_OPS[op.name].steps


def _rounds(op: Op) -> bool:
    """Whether a cast is to shorter floats."""
    return op.result.scalar.dtype.bits < op.operands[0].scalar.dtype.bits


def _linear(op: Op, parts: Sequence[_Element]) -> Indices:
    """The operands in which a scalar is linear."""
    if op.name in ("add", "sub"):
        return parts[0].linear & parts[1].linear
    if op.name == "mul":
        a, b = parts
        return (a.linear - b.reads) | (b.linear - a.reads)
    if op.name == "div":
        return parts[0].linear - parts[1].reads
    if op.name == "select":
        return (parts[1].linear & parts[2].linear) - parts[0].reads
    keeps = op.name == "neg" or (op.name == "cast" and _is_continuous(op) and not _rounds(op))
    return parts[0].linear if keeps else NONE


def _concerns_floats(op: Op) -> bool:
    scalars = (v.type for v in (op.result, *op.operands))
    return any(isinstance(t, ScalarType) and t.dtype.is_float for t in scalars)


def _is_exact(op: Op) -> bool:
    if op.name == "cast":
        return op.result.scalar.dtype is op.operands[0].scalar.dtype
    return op.name in ("load", "const") or (op.name in SCALAR_OPS and SCALAR_OPS[op.name].is_exact)


def _is_finite(op: Op) -> bool:
    return SCALAR_OPS[op.name].is_finite if op.name in SCALAR_OPS else op.name != "bitcast"


# Of composites


@lru_cache(maxsize=2048)
def _of_application(application: Application) -> Traits:
    operator = application.operator
    if operator.kind == "irregular":
        return _declared(operator, application.attrs)
    block = Block(application.types)
    with Builder(block, Module()):
        results = operator.expand(block.args, application.attrs)
    return _of_parts(block, results).with_declared(_declared(operator, application.attrs))


@dataclass(frozen=True, slots=True)
class _Part:
    """What is known of a value within a composite, in terms of the composite's operands."""

    reads: Indices = NONE
    steps: Indices = NONE
    moves: Indices = NONE
    chooses: Indices = NONE
    fills: tuple[Number, ...] = ()


def _of_parts(block: Block, results: Sequence[Value]) -> Traits:
    known = {v: _Part(frozenset({k}), NONE, frozenset({k}), frozenset({k})) for k, v in enumerate(block.args)}
    found = []
    for op in block.ops:
        own = traits_of(op)
        found.append(own)
        known.update(dict.fromkeys(op.results, _composed(own, [known.get(v, _Part()) for v in op.operands])))
    parts = [known[v] for v in results]
    products = [(op, own.product) for op, own in zip(block.ops, found, strict=True) if own.sums_products]
    floats = frozenset(k for k, v in enumerate(block.args) if v.tensor.dtype.is_float)
    reads, steps = (frozenset[int]().union(*sets) for sets in ([p.reads for p in parts], [p.steps for p in parts]))
    return Traits(
        moves=parts[0].moves,
        chooses=parts[0].chooses,
        fills=parts[0].fills,
        continuous=(floats & reads) - steps,
        is_exact=all(t.is_exact for t in found),
        is_finite=all(t.is_finite for t in found),
        sums_products=bool(products),
        product=product_of_parts(block, results, *products[0][::-1]) if len(products) == 1 else None,
        is_pure=all(t.is_pure for t in found),
        has_state=any(t.has_state for t in found),
    )


def _composed(own: Traits, operands: Sequence[_Part]) -> _Part:
    """What is known of the first result of an operator with these traits."""
    reads = frozenset[int]().union(*(p.reads for p in operands))
    steps = [p.steps if k in own.continuous else p.reads for k, p in enumerate(operands)]
    moved, chosen = ([operands[k] for k in indices] for indices in (own.moves, own.chooses))
    moves = frozenset[int]().union(*(p.moves for p in moved)) if all(p.moves for p in moved) else NONE
    chooses = frozenset[int]().union(*(p.chooses for p in chosen)) if all(p.chooses for p in chosen) else NONE
    fills = {*own.fills, *(n for p in chosen for n in p.fills)} if chooses else set()
    return _Part(reads, frozenset[int]().union(*steps), moves, chooses, tuple(sorted(fills)))
