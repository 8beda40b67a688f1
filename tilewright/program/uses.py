"""What ops of a staged graph read: values and variables, also those that nested blocks read from outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define.staged import ASSUME, LOOP, STAGED


@dataclass(slots=True)
class Uses:
    """Values and variables in the order in which they occur; keys of dictionaries, so that each is there once."""

    values: dict[Value, None] = field(default_factory=dict)
    variables: dict[Sym, None] = field(default_factory=dict)

    def without(self, block: Block) -> Uses:
        """What is left outside of a block that defines some of it."""
        values = {v: None for v in self.values if not _is_defined_in(v, block)}
        inner = {d for v in _defined(block) for d in own_dims(v)}
        return Uses(values, {v: None for v in self.variables if v not in inner})

    def add(self, other: Uses) -> None:
        self.values |= other.values
        self.variables |= other.variables


def uses_of(op: Op) -> Uses:
    """What must be there before `op` can run."""
    found = Uses(dict.fromkeys(op.operands))
    if op.name not in STAGED or op.name in (ASSUME, LOOP):
        found.variables |= dict.fromkeys(variables_in(op.attrs.values()))
    if op.name not in STAGED or op.name == ASSUME:
        for v in op.results:
            found.variables |= dict.fromkeys(dims_of(v))
    for block in op.blocks:
        found.add(uses_in(block.ops).without(block))
    return found


def uses_in(ops: Iterable[Op]) -> Uses:
    found = Uses()
    for op in ops:
        found.add(uses_of(op))
    return found


def own_dims(value: Value) -> Iterator[Sym]:
    """The dims of a value that are variables: it gives them their sizes where it comes from outside of native code."""
    if isinstance(value.type, TensorType):
        yield from (d for d in value.type.shape if d.kind == "var")


def dims_of(value: Value) -> Iterator[Sym]:
    """All variables in a value's shape."""
    if isinstance(value.type, TensorType):
        for d in value.type.shape:
            yield from d.vars


def variables_in(attributes: Iterable[object]) -> Iterator[Sym]:
    for a in attributes:
        if isinstance(a, Sym):
            yield from a.vars
        elif isinstance(a, tuple | list):
            yield from variables_in(a)


def _defined(block: Block) -> Iterator[Value]:
    yield from block.args
    for op in block.walk():
        yield from op.results
        for inner in op.blocks:
            yield from inner.args


def _is_defined_in(value: Value, block: Block) -> bool:
    owner: Block | Op | object | None = value.owner
    while owner is not None:
        if owner is block:
            return True
        owner = owner.parent if isinstance(owner, Block | Op) else None
    return False
