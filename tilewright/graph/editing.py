"""Changes to the main function of a graph: other inputs and outputs, and ops between those that are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.ir.core import Block, Builder, Module, Op, Value, free_name
from tilewright.ir.diag import Loc
from tilewright.ir.types import TensorType


def add_input(module: Module, name: str, type: TensorType) -> Value:
    """One more input, under this name or a free variation of it."""
    main = module.main
    name = free_name(name, main.attrs["inputs"])
    value = Value(type, main.body, name)
    main.body.args = (*main.body.args, value)
    main.attrs["inputs"] = (*main.attrs["inputs"], name)
    return value


def set_outputs(module: Module, outputs: Mapping[str, Value]) -> None:
    """Values by name in place of the outputs."""
    main = module.main
    main.body.ops[-1].set_operands(tuple(outputs.values()))
    main.attrs["outputs"] = tuple(outputs)
    main.attrs.pop("complex_outputs", None)  # they are what they are in memory


def build(module: Module, place: int, write: Callable[[], Value], loc: Loc) -> Value:
    """The value that `write` gives, whose ops are put before the op at this place of the main function."""
    block = Block()
    with Builder(block, module, loc):
        value = write()
    ops: list[Op] = block.ops
    for op in ops:
        op.parent = module.main.body
    module.main.body.ops[place:place] = ops
    return value


def build_before(op: Op, module: Module, write: Callable[[], Value]) -> Value:
    """The value that `write` gives, of ops that stand before one of the main function, and have its place."""
    return build(module, module.main.body.ops.index(op), write, op.loc)


def build_after(value: Value, module: Module, write: Callable[[], Value]) -> Value:
    """The value that `write` gives, of ops that stand behind what gives another one."""
    ops = module.main.body.ops
    place, loc = (0, Loc()) if value.op is None else (ops.index(value.op) + 1, value.op.loc)
    return build(module, place, write, loc)


def replace_in(users: Sequence[Op], old: Value, new: Value) -> None:
    """Make these ops read another value."""
    for op in dict.fromkeys(users):
        op.set_operands([new if v is old else v for v in op.operands])
