"""A graph without what only changes types: its tensors as they are read, and the layers between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from tilewright.compilation import Compilation
from tilewright.graph.rewrites.duplicates import MergeDuplicates
from tilewright.ir.core import Module, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define.binding import input_variables
from tilewright.ops.quant import changes_type_alone, without_integers
from tilewright.ops.traits.derive import traits_of

MOST_FINISHING = 3
"""Ops that make floats of sums of integers: a cast, a product with the scale, and perhaps a view."""


@dataclass(frozen=True)
class IntegerParameters:
    """The scale and the zero point of a tensor of integers."""

    scale: Value
    zero_point: Value


@dataclass(frozen=True)
class Segment:
    """A layer: the tensors that it reads, and the name and the operator of the node that it is known by."""

    inputs: tuple[Value, ...]
    node: str
    operator: str


class CoreGraph:
    """A graph whose tensors are told apart by their roots: values that only type-changing ops lie between have one
    root. Ops that compute the same are one."""

    def __init__(self, module: Module) -> None:
        self.module, self.main = module, module.main
        self.inputs = dict(zip(self.main.attrs["inputs"], self.main.args, strict=True))
        self.outputs = dict(zip(self.main.attrs["outputs"], self.main.returns, strict=True))

    @classmethod
    def of(cls, module: Module) -> CoreGraph:
        """Of a graph, which is changed."""
        return cls(Compilation.by_default(module).apply([MergeDuplicates()]).module)

    @cached_property
    def computed(self) -> frozenset[Value]:
        """Values that depend on an input."""
        found = set(self.main.args)
        for op in self.main.body.ops:
            if any(v in found for v in _read(op)):
                found.update(op.results)
        return frozenset(found)

    @cached_property
    def roots(self) -> Mapping[Value, Value]:
        """The root of each computed value."""
        found = {value: value for value in self.main.args}
        for op in self.main.body.ops:
            passes = changes_type_alone(op) and op.operands[0] in self.computed
            for value in op.results:
                if value in self.computed:
                    found[value] = found[op.operands[0]] if passes else value
        return found

    @cached_property
    def members(self) -> Mapping[Value, list[Value]]:
        """All values of each tensor, by its root, in the order of the graph."""
        found: dict[Value, list[Value]] = {}
        for value, root in self.roots.items():
            found.setdefault(root, []).append(value)
        return found

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """Those that compute something of the inputs, in order, without type-changing ones."""
        return tuple(
            op
            for op in self.main.body.ops
            if not changes_type_alone(op) and any(v in self.computed for v in op.results)
        )

    def names(self, root: Value) -> list[str]:
        """By which a tensor is known: those that the model gives its values."""
        outputs = [name for name, value in self.outputs.items() if self.roots.get(value) is root]
        return list(dict.fromkeys([*(v.name for v in self.members[root] if v.name), *outputs]))

    def as_read(self, root: Value) -> Value:
        """The value of a tensor that is compared: an output of the model, else what the layers that read it see, else
        the root itself."""
        members = self.members[root]
        for value in members:
            if value in self.outputs.values():
                return value
        read = [m for m in members if any(not changes_type_alone(op) for op in m.users)]
        return read[0] if len(read) == 1 else root

    def parameters(self, value: Value) -> IntegerParameters | None:
        """Those of a tensor of integers of which the graph says them; None for others."""
        if not isinstance(value.type, TensorType) or not value.type.dtype.is_int:
            return None
        named = self._said.get(value.name)
        if named is not None:
            return named
        quantises = value.op is not None and changes_type_alone(value.op) and len(value.op.operands) > 1
        return IntegerParameters(*value.op.operands[1:]) if quantises and value.op is not None else None

    @cached_property
    def _said(self) -> Mapping[str, IntegerParameters]:
        """What the front end says of results of operators on integers."""
        by_name = {v.name: v for v in (*self.main.args, *(v for op in self.main.body.ops for v in op.results))}
        said = self.main.attrs.get("quantised", ())
        return {
            name: IntegerParameters(by_name[scale], by_name[zero])
            for name, scale, zero in said
            if by_name.keys() >= {scale, zero}
        }

    def may_be_given(self, value: Value) -> bool:
        """Whether a call says all sizes that a value has: others are known only when it is computed."""
        return all(dim.vars <= self._dims for dim in value.tensor.shape)

    @cached_property
    def _dims(self) -> frozenset[Sym]:
        sizes = (d for arg in self.main.args if isinstance(arg.type, TensorType) for d in arg.type.shape)
        elements = (symbols.flat for arg in self.main.args if (symbols := input_variables(arg)) is not None)
        return frozenset().union(*(d.vars for d in chain(sizes, *elements)))

    def segment(self, value: Value, ends: Mapping[Value, Value]) -> Segment:
        """The layer that computes a value from those of `ends` (values by roots) that lie before it."""
        inputs: dict[Value, None] = {}
        ops: list[Op] = []
        pending, seen = [value], set[Value]()
        while pending:
            current = pending.pop()
            if current in seen or current not in self.computed:
                continue
            seen.add(current)
            if current is not value and current is ends.get(self.roots[current]):
                inputs.setdefault(current)
            elif current.op is not None:
                ops.append(current.op)
                pending.extend(reversed(_read(current.op)))
        named = next((op for op in ops if traits_of(op).sums_products), None)
        own = next((op for op in ops if not changes_type_alone(op)), None)
        chosen = named or own
        if chosen is None:  # an input, as the layers read it
            return Segment(tuple(inputs), self.names(self.roots[value])[0], "input")
        label = chosen.loc.node or (self.names(self.roots[value]) or [chosen.loc.value])[0]
        return Segment(tuple(inputs), label, chosen.loc.op or chosen.name)

    def data_of(self, op: Op) -> tuple[Value, ...]:
        """The roots of what an op reads that is computed."""
        return tuple(self.roots[value] for value in _read(op) if value in self.computed)

    def finished(self, op: Op) -> Sequence[Value]:
        """The results of an op; of sums of integers, what their dequantisation gives."""
        if without_integers(op) == op.name:
            return op.results
        value = op.result
        for _ in range(MOST_FINISHING):
            reader = value.users[0] if len(set(value.users)) == 1 else None
            own = None if reader is None else traits_of(reader)
            if reader is None or own is None or not (changes_type_alone(reader) or own.linear or own.moves_one):
                break
            value = reader.result
        return [value]


def meaning(op: Op) -> str:
    """The operator that computes the same of floats."""
    return without_integers(op)


def _read(op: Op) -> list[Value]:
    """What an op reads, also in its blocks (some of which these define themselves)."""
    return [v for inner in op.walk() for v in inner.operands]
