"""One container for every level: a Module holds Funcs, a Func one Block, a Block Ops, an Op Values and Blocks.

What a level allows is not said here but in its `Spec` (see `verify`). Ops and Blocks are mutable and have
identity; types, Syms and attributes are immutable. Every Value knows its users, so that a rewrite can replace
it everywhere in time proportional to its uses.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from tilewright.ir.constants import ConstantArrays, Deferred
from tilewright.ir.diag import UNKNOWN, Loc, TypeRuleError
from tilewright.ir.sym import Sym
from tilewright.ir.types import BufferType, ScalarType, TensorType, Type

Attrs = dict[str, Any]


class Value:
    """An SSA value: the result of an op, or an argument of a block. `name` is a hint for the printer."""

    __slots__ = ("name", "op", "owner", "type", "users")

    def __init__(self, type: Type, owner: Op | Block, name: str = "") -> None:
        self.type = type
        self.owner = owner
        self.op = owner if isinstance(owner, Op) else None  # what defines this value; None for a block's argument
        self.name = name
        self.users: list[Op] = []  # one entry for each operand slot that holds this value

    @property
    def tensor(self) -> TensorType:
        """The type of a tensor."""
        assert isinstance(self.type, TensorType), f"{self} is not a tensor"
        return self.type

    @property
    def buffer(self) -> BufferType:
        """The type of a buffer."""
        assert isinstance(self.type, BufferType), f"{self} is not a buffer"
        return self.type

    @property
    def scalar(self) -> ScalarType:
        """The type of a scalar."""
        assert isinstance(self.type, ScalarType), f"{self} is not a scalar"
        return self.type

    def replace_by(self, new: Value) -> None:
        """Make every user read `new` instead."""
        if new is self:
            return
        for user in self.users:
            user.operands = tuple(new if v is self else v for v in user.operands)
        new.users.extend(self.users)
        self.users = []
        if not new.name:
            new.name = self.name

    def __repr__(self) -> str:
        return f"<Value {self.name or '?'}: {self.type}>"


class Op:
    """An operation: operands, results, immutable attributes by name, and nested blocks."""

    __slots__ = ("attrs", "blocks", "loc", "name", "operands", "parent", "results")

    def __init__(
        self,
        name: str,
        operands: Sequence[Value] = (),
        result_types: Sequence[Type] = (),
        attrs: Mapping[str, Any] | None = None,
        blocks: Sequence[Block] = (),
        loc: Loc = UNKNOWN,
    ) -> None:
        self.name = name
        self.operands: tuple[Value, ...] = tuple(operands)
        self.attrs: Attrs = dict(attrs) if attrs else {}
        self.blocks: tuple[Block, ...] = tuple(blocks)
        self.loc = loc
        self.parent: Block | None = None
        for v in self.operands:
            v.users.append(self)
        for b in self.blocks:
            b.parent = self
        self.results: tuple[Value, ...] = tuple([Value(t, self) for t in result_types])

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def set_operands(self, operands: Sequence[Value]) -> None:
        for v in self.operands:
            if v.users[-1] is self:  # often the latest reader, which `remove` would find last of thousands
                v.users.pop()
            else:
                v.users.remove(self)
        self.operands = tuple(operands)
        for v in self.operands:
            v.users.append(self)

    def drop(self) -> None:
        """Forget operands, here and in nested blocks; the op must be taken out of its block by the caller."""
        self.set_operands(())
        for b in self.blocks:
            for op in b.ops:
                op.drop()
        self.parent = None

    def erase(self) -> None:
        """Take the op out of its block and drop it. Results must have no users."""
        assert not any(v.users for v in self.results), f"{self.name}: a result still has users"
        if self.parent is not None:
            self.parent.ops.remove(self)
        self.drop()

    def walk(self) -> Iterator[Op]:
        """This op, then all nested ops in program order."""
        return _walk([self])

    def clone(self, values: dict[Value, Value], subs: Callable[[Any], Any] | None = None) -> Op:
        """A deep copy; operands are looked up in `values` (kept when absent), which gains the new results.

        `subs` maps attribute values (for example to substitute loop variables).
        """
        attrs = self.attrs if subs is None else {k: subs(v) for k, v in self.attrs.items()}
        new = Op(
            self.name,
            [values.get(v, v) for v in self.operands],
            [v.type for v in self.results],
            attrs,
            [b.clone(values, subs) for b in self.blocks],
            self.loc,
        )
        for old, fresh in zip(self.results, new.results, strict=True):
            fresh.name = old.name
            values[old] = fresh
        return new

    def __repr__(self) -> str:
        return f"<Op {self.name}>"


class Block:
    """A list of ops with arguments; `parent` is the op or func that holds it."""

    __slots__ = ("args", "ops", "parent")

    def __init__(self, arg_types: Sequence[Type] = (), names: Sequence[str] = ()) -> None:
        self.args: tuple[Value, ...] = tuple(Value(t, self) for t in arg_types)
        for value, name in zip(self.args, names, strict=False):
            value.name = name
        self.ops: list[Op] = []
        self.parent: Op | Func | None = None

    def append(self, op: Op) -> Op:
        op.parent = self
        self.ops.append(op)
        return op

    def walk(self) -> Iterator[Op]:
        """All ops in program order, each before those nested in it."""
        return _walk(self.ops)

    def clone(self, values: dict[Value, Value], subs: Callable[[Any], Any] | None = None) -> Block:
        new = Block([a.type for a in self.args], [a.name for a in self.args])
        values.update(zip(self.args, new.args, strict=True))
        for op in self.ops:
            new.append(op.clone(values, subs))
        return new


def _walk(ops: Iterable[Op]) -> Iterator[Op]:
    pending = [iter(ops)]
    while pending:  # one generator for all depths: whole kernels are walked again and again
        for op in pending[-1]:
            yield op
            if op.blocks:
                blocks = op.blocks
                pending.append(iter(blocks[0].ops) if len(blocks) == 1 else chain.from_iterable(b.ops for b in blocks))
                break
        else:
            pending.pop()


@dataclass(eq=False)
class Func:
    """A function of one block whose last op is `return`. `level` names the Spec it obeys.

    `dims` are the variables whose values the caller gives. What else is known of a function is in `info`, the frozen
    dataclass of its level, or by name in `attrs` where the level has none.
    """

    name: str
    body: Block
    level: str = "graph"
    attrs: Attrs = field(default_factory=dict)
    dims: tuple[Sym, ...] = ()
    info: object = None

    def __post_init__(self) -> None:
        self.body.parent = self

    @property
    def args(self) -> tuple[Value, ...]:
        return self.body.args

    @property
    def returns(self) -> tuple[Value, ...]:
        """The values that the final `return` gives."""
        return self.body.ops[-1].operands if self.body.ops else ()

    def clone(self) -> Func:
        return replace(self, body=self.body.clone({}), attrs=dict(self.attrs))


def free_name(hint: str, taken: Container[str]) -> str:
    """`hint`, or a variation of it that is not taken."""
    name, n = hint, 0
    while name in taken:
        n += 1
        name = f"{hint}_{n}"
    return name


@dataclass(eq=False)
class Module:
    """Functions by name, and the arrays that `constant` ops refer to by name.

    A partly lowered program holds functions of several levels at once.
    """

    funcs: dict[str, Func] = field(default_factory=dict)
    constants: ConstantArrays = field(default_factory=ConstantArrays)
    _variations: dict[str, int] = field(default_factory=dict, repr=False)

    def add(self, func: Func) -> Func:
        assert func.name not in self.funcs, f"function @{func.name} exists"
        self.funcs[func.name] = func
        return func

    @property
    def main(self) -> Func:
        return self.funcs["main"]

    def copy(self, values: dict[Value, Value] | None = None) -> Module:
        """A module of its own that shares the arrays; `values` gains what the values of the main function became."""
        made = Module(constants=ConstantArrays(self.constants.held))
        for func in self.funcs.values():
            body = func.body.clone(values if values is not None and func is self.main else {})
            made.add(replace(func, body=body, attrs=dict(func.attrs)))
        return made

    def add_constant(self, name: str, array: np.ndarray | Deferred) -> str:
        """Store `array` under `name`, or under a free variation of it; return the name taken."""
        unique = name
        while unique in self.constants:
            number = self._variations[name] = self._variations.get(name, 0) + 1
            unique = f"{name}_{number}"
        self.constants[unique] = array
        return unique


_BUILDER: ContextVar[Builder] = ContextVar("tilewright_builder")


class Builder:
    """Appends ops to a block (or any list of ops). `with builder:` makes it the current one, which the
    operator functions of `ops/` use when they are called with Values."""

    def __init__(self, block: Block, module: Module | None = None, loc: Loc = UNKNOWN) -> None:
        self.block = block
        self.module = module
        self.loc = loc
        self._tokens: list[Any] = []

    def emit(
        self,
        name: str,
        operands: Sequence[Value] = (),
        result_types: Sequence[Type] = (),
        attrs: Mapping[str, Any] | None = None,
        blocks: Sequence[Block] = (),
    ) -> Op:
        return self.block.append(Op(name, operands, result_types, attrs, blocks, self.loc))

    @contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        """Append to `block` for a while."""
        outer, self.block = self.block, block
        try:
            yield block
        finally:
            self.block = outer

    @contextmanager
    def at(self, loc: Loc) -> Iterator[None]:
        outer, self.loc = self.loc, loc
        try:
            yield
        finally:
            self.loc = outer

    def __enter__(self) -> Builder:
        self._tokens.append(_BUILDER.set(self))
        return self

    def __exit__(self, *exc: object) -> None:
        _BUILDER.reset(self._tokens.pop())


def current_builder() -> Builder:
    """The innermost `with builder:`; TypeRuleError outside of any."""
    builder = _BUILDER.get(None)
    if builder is None:
        raise TypeRuleError(
            "an operator was called where no program is built",
            hint="call it in `with Builder(block, module):`, or `evaluate` it with arrays",
        )
    return builder


def substitute(attr: Any, mapping: Mapping[Sym, Sym]) -> Any:
    """`attr` with variables replaced in every Sym it holds (through tuples)."""
    if isinstance(attr, Sym):
        return attr if attr.kind == "const" else attr.subs(mapping)
    if isinstance(attr, tuple):
        return tuple([a.subs(mapping) if isinstance(a, Sym) else substitute(a, mapping) for a in attr])
    return attr


def erase_dead(block: Block, is_pure: Callable[[Op], bool]) -> int:
    """Remove pure ops without users, last to first; return how many."""
    kept: list[Op] = []
    dropped = 0
    for op in reversed(block.ops):
        if op.results and not any([v.users for v in op.results]) and is_pure(op):
            op.drop()
            dropped += 1
        else:
            kept.append(op)
    block.ops = kept[::-1]
    return dropped


def replace_in_block(block: Block, ops: Iterable[Op]) -> None:
    """Set the ops of `block`, fixing parents."""
    block.ops = list(ops)
    for op in block.ops:
        op.parent = block


def insert_before(op: Op, ops: Iterable[Op]) -> None:
    """Put new ops before `op` in its block."""
    block = op.parent
    assert isinstance(block, Block)
    fresh = list(ops)
    for new in fresh:
        new.parent = block
    at = block.ops.index(op)
    block.ops[at:at] = fresh
