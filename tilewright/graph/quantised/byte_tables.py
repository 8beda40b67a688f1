"""Functions of one byte, as tables of 256.

    quantize(f(dequantize(q)))      becomes      table_lookup(q, table)

Whatever elementwise work stands between two tensors of bytes is a function of the 256 values that an element of the
first can have, where it reads no other tensor: it is computed for each of them when compiling, by the operators' own
definitions. What only limits bytes stays arithmetic. Reshapes may stand in between: elements keep their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tilewright.cost.byte_tables import computed_instructions, look_up_instructions
from tilewright.graph.match import dtype_of, is_constant, shape_of, uniform_number
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Op, Value
from tilewright.ir.diag import TilewrightError
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, Rule, rewrite
from tilewright.ir.scalar import CONVERSIONS, SCALAR_OPS
from tilewright.ir.types import TensorType, tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.define import OPERATORS, constant
from tilewright.ops.define.interp import evaluate_block
from tilewright.ops.index import table_lookup
from tilewright.ops.source import full
from tilewright.ops.traits.pairing import is_elementwise, keeps_order, paired
from tilewright.ops.view import reshape
from tilewright.passes import PassContext
from tilewright.target.target import Target

VALUES = 256
LONGEST = 256
"""Operators of one function at most."""


@dataclass(frozen=True)
class ByteTables:
    """Look up functions of bytes whose result is a byte, where that is faster than computing them."""

    name: ClassVar[str] = "byte-tables"

    def run(self, module: Module, ctx: PassContext) -> None:
        if ctx.target is None or not any(is_byte(v) for op in module.main.body.ops for v in op.results):
            return
        found = ByteFunctions(module)
        rule = Rule("tabulate", (), _Tabulation(found, ctx.target).replacement)
        rewrite(module.main, [rule], module, ctx.remarks, stage=self.name, within=ctx)
        drop_dead(module)


def is_byte(value: Value) -> bool:
    """Whether the elements are integers of 8 bits."""
    return isinstance(value.type, TensorType) and dtype_of(value) in (dt.i8, dt.u8)


@dataclass(eq=False)
class ByteFunctions:
    """Which values are functions of the elements of one tensor of bytes, in their order, found in program order."""

    module: Module
    roots: dict[Value, Value] = field(default_factory=dict)

    def root(self, op: Op) -> Value | None:
        """The bytes that the result of `op` is a function of, element by element; None where there are none."""
        tensors = [v for k, v in enumerate(op.operands) if k in paired(op)]
        if not tensors or not all(v in tensors or is_constant(v) for v in op.operands):
            return None
        varying = [v for v in tensors if uniform_number(v, self.module) is None]
        roots = {self.roots.get(v) or (v if is_byte(v) else None) for v in varying}
        root = roots.pop() if len(roots) == 1 else None
        repeats = not keeps_order(op) and any(shape_of(v) != shape_of(op.result) for v in varying)
        if root is None or repeats:
            self.roots.pop(op.result, None)
            return None
        self.roots[op.result] = root
        return root

    def between(self, root: Value, value: Value) -> list[Op]:
        """The operators that make `value` of `root`, each after those that it reads."""
        found: dict[Op, None] = {}
        pending = [value]
        while pending:
            op = pending[-1].op
            assert op is not None
            missing = [v for v in op.operands if self.roots.get(v) is root and v.op not in found]
            pending += missing
            if not missing:
                found[op] = None
                pending.pop()
        return list(found)


@dataclass(frozen=True, eq=False)
class _Tabulation:
    """The rule: what it knows of the function, and the machine."""

    functions: ByteFunctions
    target: Target

    def replacement(self, op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
        root = self.functions.root(op)
        if root is None or not is_byte(op.result) or keeps_order(op):
            return None
        ops = [o for o in self.functions.between(root, op.result) if not keeps_order(o)]
        if len(ops) == 1 and not is_elementwise(op):
            return None  # it is a table
        if len(ops) > LONGEST:
            return NoMatch(f"the function has more than {LONGEST} operators")
        if all(dtype_of(v) is dtype_of(root) for o in ops for v in o.results):
            return None  # arithmetic on bytes, of which a register holds many
        table = table_of(root, op.result, ops, ctx.module)
        if isinstance(table, NoMatch):
            return table
        moved = root if shape_of(root) == shape_of(op.result) else reshape(root, shape=shape_of(op.result))
        limited = as_limits(moved, table)
        if limited is not None:
            return limited
        if sum(map(self._instructions, ops)) <= look_up_instructions(self.target):
            return NoMatch("computing it takes no longer than finding it in a table")
        return table_lookup(moved, constant(table, "table"))

    def _instructions(self, op: Op) -> int:
        if op.name == "table_lookup":
            return look_up_instructions(self.target)
        bits = max(8 * dtype_of(v).bytes for v in (*op.operands, op.result))
        body = OPERATORS[op.name].compute([v.tensor for v in op.operands], op.attrs).body.ops
        names = [o.name for o in body if o.name in SCALAR_OPS or o.name in CONVERSIONS]
        return sum(computed_instructions(name, bits, self.target) for name in names)


def table_of(root: Value, value: Value, ops: list[Op], module: Module) -> np.ndarray | NoMatch:
    """What `ops`, reshapes left out, make of each byte, in the order of bytes without a sign; a reason where they fail
    for one."""
    block, inner = Block([tensor(dtype_of(root), (VALUES,))]), Module()
    inner.add(Func("main", block))
    values: dict[Value, Value] = {root: block.args[0]}
    with Builder(block, inner):
        for op in ops:
            operands = [values.get(_before_reshapes(v)) or _known(v, module) for v in op.operands]
            values[op.result] = OPERATORS[op.name](*operands, **op.attrs)
    inputs = {block.args[0]: np.arange(VALUES).astype(np.uint8).view(dtype_of(root).storage)}
    try:
        evaluate_block(block.ops, inputs, {}, inner)
    except TilewrightError as e:
        return NoMatch(f"it fails for some bytes: {e.what}")
    found = inputs[values[value]]
    return np.ascontiguousarray(np.broadcast_to(found, (VALUES,)))


def _before_reshapes(value: Value) -> Value:
    while value.op is not None and keeps_order(value.op):
        value = value.op.operands[0]
    return value


def _known(value: Value, module: Module) -> Value:
    """A constant in the program of the table: a number, or the elements of another table."""
    number = uniform_number(value, module)
    if number is not None:
        return full(value=number, dtype=dtype_of(value), shape=())
    assert value.op is not None
    return constant(module.constants[value.op.attrs["name"]])


def as_limits(root: Value, table: np.ndarray) -> Value | None:
    """The bytes themselves, limited, where that is all that the table does."""
    if table.dtype != dtype_of(root).storage:
        return None
    own = np.arange(VALUES).astype(np.uint8).view(table.dtype)
    low, high = table.min(), table.max()
    if not np.array_equal(np.clip(own, low, high), table):
        return None
    found, whole = root, np.iinfo(table.dtype)
    if low > whole.min:
        found = ew.max_(found, full(value=int(low), dtype=dtype_of(root), shape=()))
    if high < whole.max:
        found = ew.min_(found, full(value=int(high), dtype=dtype_of(root), shape=()))
    return found
