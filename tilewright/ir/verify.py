"""Verification: what every program must obey, and what the Spec of its level adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.diag import InternalError, VerifyError
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import Sym
from tilewright.ir.symbolic.reach import beyond_64_bits, fits_64_bits, fits_as_memory
from tilewright.ir.text import line_of
from tilewright.ir.types import BufferType, HostType, ScalarType, TensorType, TokenType, Type

OpRule = Callable[[Op], str | None]
"""Checks one op (operands, attributes, types, blocks): a sentence about what is wrong, or None."""

FuncRule = Callable[[Func], "str | tuple[str, Op] | tuple[str, Op, type[VerifyError]] | None"]
"""Checks a function as a whole: a sentence about what is wrong, with the op that it is about where there is one, and
the class of the error where it has one of its own."""

TERMINATORS = frozenset({"return", "yield"})


TYPE = "type"
"""What sizes in the type of a value are said to be of: they count memory that is there."""


@dataclass(frozen=True, eq=False)
class Spec:
    """A level: its legal ops, each with a rule.

    `func_rule` checks a function as a whole (its arguments, its attributes). With `declared_dims` a variable
    that no loop and no bind declares must be one of `func.dims`. Attributes in `memory` are bytes of a call, which is
    refused where they need more than 64 bits.
    """

    name: str
    ops: Mapping[str, OpRule]
    func_rule: FuncRule | None = None
    declared_dims: bool = False
    memory: frozenset[str] = frozenset()


def verify_func(func: Func, spec: Spec | None = None) -> None:
    """Verify structure, and with a spec also the rules of the level; VerifyError for the first fault.

    Structure: parents and owners, values defined before they are read and visible there, lists of users, one
    `return` at the end, variables declared where they occur, expressions whose values fit 64 bits.
    """
    _Verifier(func, spec).run()


class _Verifier:
    """One walk over a function, with what is visible at the current op."""

    def __init__(self, func: Func, spec: Spec | None) -> None:
        self.func = func
        self.spec = spec
        self.visible: set[Value] = set()
        self.reads: dict[Value, list[Op]] = {}
        self.variables: dict[str, Sym] = {}
        self.scoped = 0  # how many of `variables` loops and binds declare
        self.checked_types: set[int] = set()  # identities of types whose variables are those of the function

    def fail(self, message: str, op: Op | None = None, kind: type[VerifyError] = VerifyError) -> NoReturn:
        where = f"@{self.func.name}"
        if op is None:
            raise VerifyError(message, where=where)
        try:
            number, line = line_of(self.func, op)
        except (InternalError, RecursionError):  # a program so broken that it cannot be printed
            number, line = 0, ""
        place = f", line {number} of its text" if number else ""
        origin = f", from {op.loc}" if op.loc.node or op.loc.op or op.loc.line else ""
        shown = f"\n    {line}" if line else ""
        raise kind(f"{op.name}: {message}{shown}", where=f"{where}{place}{origin}")

    def run(self) -> None:
        func, spec = self.func, self.spec
        if func.body.parent is not func:
            self.fail("the body does not have the function as its parent")
        self.declare_dims()
        self.block(func.body)
        if not func.body.ops or func.body.ops[-1].name != "return":
            self.fail("the function does not end in a return")
        for value, users in self.reads.items():
            if value.users != users and sorted(map(id, value.users)) != sorted(map(id, users)):
                self.wrong_users(value, users)
        if spec is not None and spec.func_rule is not None:
            problem = spec.func_rule(func)
            if isinstance(problem, tuple):
                self.fail(*problem)
            if problem:
                self.fail(problem)

    def declare_dims(self) -> None:
        dims = self.func.dims
        if not isinstance(dims, tuple) or not all(isinstance(d, Sym) and d.kind == "var" for d in dims):
            self.fail("'dims' is not a tuple of variables")
        for variable in dims:
            if variable.name in self.variables:
                self.fail(f"dim {variable} is declared twice")
            self.variables[variable.name] = variable

    def wrong_users(self, value: Value, users: list[Op]) -> NoReturn:
        """Report the difference between the users that a value lists and those that there are."""
        label = f"'{value.name}'" if value.name else "a value"
        for user in users:
            if value.users.count(user) < users.count(user):
                self.fail(f"{label} does not list this op as its user", user)
        for user in value.users:
            if value.users.count(user) > users.count(user):
                self.fail(f"{label} lists {user.name} as its user, which does not read it", value.op)
        raise AssertionError("unreachable")

    # Blocks and ops

    def block(self, block: Block) -> None:
        new: list[Value] = []
        declared: list[str] = []
        holder = block.parent if isinstance(block.parent, Op) else None
        for arg in block.args:
            self.type(arg.type, holder)
            if arg.owner is not block:
                self.fail(f"argument {arg.name or '?'} does not have its block as its owner")
            self.define(arg, new)
        last = len(block.ops) - 1
        for position, op in enumerate(block.ops):
            if op.parent is not block:
                self.fail("the op does not have its block as its parent", op)
            if op.name in TERMINATORS:
                self.terminator(op, block, position == last)
            for value in op.operands:
                if value not in self.visible:
                    self.not_visible(value, op)
                self.reads[value].append(op)
            self.op(op, declared)
            for value in op.results:
                if value.owner is not op:
                    self.fail("a result does not have the op as its owner", op)
                self.define(value, new)
        self.visible.difference_update(new)
        self.restore(declared)

    def define(self, value: Value, new: list[Value]) -> None:
        self.visible.add(value)
        self.reads.setdefault(value, [])
        new.append(value)

    def terminator(self, op: Op, block: Block, is_last: bool) -> None:
        if not is_last:
            self.fail(f"a {op.name} is the last op of its block", op)
        if (op.name == "return") != isinstance(block.parent, Func):
            self.fail("a return ends a function, a yield a nested block", op)

    def not_visible(self, value: Value, op: Op) -> NoReturn:
        label = f"'{value.name}'" if value.name else f"operand {op.operands.index(value)}"
        if value in self.reads:
            self.fail(f"{label} is not visible here: it belongs to a block that has ended", op)
        self.fail(f"{label} is used before it is defined", op)

    def op(self, op: Op, declared: list[str]) -> None:
        binds = op.name in ("for", "bind")
        for key, attr in op.attrs.items():
            if not (binds and key == "var"):
                self.attr(attr, key, op)
        for value in op.results:
            self.type(value.type, op)
        if op.name == "for":
            inner: list[str] = []
            self.declare(op, inner)
            self.blocks(op)
            self.restore(inner)
        else:
            if op.name == "bind":
                self.declare(op, declared)
            if op.blocks:
                self.blocks(op)
        self.rule(op)

    def blocks(self, op: Op) -> None:
        for block in op.blocks:
            if block.parent is not op:
                self.fail("a block does not have the op as its parent", op)
            self.block(block)

    def rule(self, op: Op) -> None:
        if self.spec is None:
            return
        rule = self.spec.ops.get(op.name)
        if rule is None:
            self.fail(f"level '{self.spec.name}' has no such op", op)
        problem = rule(op)
        if problem:
            self.fail(problem, op)

    # Variables

    def declare(self, op: Op, declared: list[str]) -> None:
        variable = op.attrs.get("var")
        if not isinstance(variable, Sym) or variable.kind != "var":
            self.fail("the attribute 'var' is not a variable", op)
        name = variable.name
        if name in self.variables:
            self.fail(f"variable {name} is declared already", op)
        self.variables[name] = variable
        declared.append(name)
        self.scoped += 1

    def restore(self, declared: list[str]) -> None:
        for name in declared:
            del self.variables[name]
        self.scoped -= len(declared)

    def attr(self, attr: Any, key: str, op: Op) -> None:
        if isinstance(attr, Sym):
            self.sym(attr, key, op)
        elif isinstance(attr, tuple):
            for item in attr:
                self.attr(item, key, op)

    def sym(self, expression: Sym, key: str, op: Op | None) -> None:
        is_memory = key == TYPE or (self.spec is not None and key in self.spec.memory)
        if not (fits_as_memory if is_memory else fits_64_bits)(expression):
            self.fail(f"{key}: the values of '{beyond_64_bits(expression)}' need more than 64 bits", op)
        if expression.is_const:
            return
        for variable in expression.vars:
            known = self.variables.get(variable.name)
            if known is variable:
                continue
            if known is not None:
                self.fail(f"{key}: there are two variables '{variable}', with different bounds", op)
            if self.spec is not None and self.spec.declared_dims:
                self.fail(f"{key}: variable '{variable}' is not declared here", op)
            self.variables[variable.name] = variable

    def type(self, type: Type, op: Op | None) -> None:
        if isinstance(type, ScalarType | TokenType | HostType) or id(type) in self.checked_types:
            return
        if isinstance(type, TensorType):
            syms: Iterable[Sym] = type.shape
        elif isinstance(type, BufferType):
            syms = (*type.shape, *type.strides, type.offset)
        else:
            self.fail(f"{type!r} is no type of a value", op)
        for expression in syms:
            self.sym(expression, TYPE, op)
        if not self.scoped:
            self.checked_types.add(id(type))


# Rules that several levels share


def scalar_op_rule(op: Op) -> str | None:
    """The rule of the ops of `SCALAR_OPS` on scalars: arity, equal dtypes, dtype of the result."""
    spec = SCALAR_OPS[op.name]
    dtypes = [v.type.dtype for v in op.operands if isinstance(v.type, ScalarType)]
    if len(dtypes) != len(op.operands) or len(dtypes) != spec.arity:
        return f"takes {spec.arity} scalars, not ({', '.join(str(v.type) for v in op.operands)})"
    if len(op.results) != 1 or op.attrs or op.blocks:
        return "has one result, no attributes and no blocks"
    same = dtypes[spec.conditions :]
    if any(d is not same[0] for d in same):
        return f"operands have different dtypes: {', '.join(map(str, dtypes))}"
    if spec.conditions and dtypes[0].kind != "bool":
        return f"the condition is {dtypes[0]}, not bool"
    expected = ScalarType(spec.result_dtype(tuple(dtypes)))
    return None if op.result.type == expected else f"the result is {expected}, not {op.result.type}"
