"""A program as the data that the runtime keeps of it: values have numbers, sizes are read from values, and states are
the last inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.core import Block, Module, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType, Type
from tilewright.ops.define.staged import BRANCH, HOST, LOOP, MEASURE
from tilewright.program.lifetimes import with_frees
from tilewright.program.native_steps import with_native_steps
from tilewright.program.spec import READ, STATE, UPDATE
from tilewright.program.split import part_functions
from tilewright.program.states import states_of
from tilewright.runtime.staged.program import (
    CallHost,
    RowType,
    RunLoop,
    RunPart,
    Size,
    StagedProgram,
    Step,
    TakeBranch,
)


@dataclass(frozen=True)
class Staged:
    """The steps of a program, whose parts have numbers in the order of the module, and the types of values."""

    program: StagedProgram
    types: Mapping[int, Type]


def staged_program(module: Module) -> Staged:
    """The steps of the main function of a module, which is a program that calls parts."""
    main = module.main
    parts = part_functions(module)
    made = _Steps({part.name: k for k, part in enumerate(parts)})
    states = states_of(main)
    read = {op.operands[0]: op.result for op in main.body.ops if op.name == READ}
    inputs = tuple(map(made.number, (*main.args, *(read[state.result] for state, _ in states))))
    steps = made.block(main.body, {})
    outputs = tuple(map(made.number, (*main.returns, *(update.operands[1] for _, update in states))))
    program = StagedProgram(len(made.numbers), inputs, outputs, with_frees(steps, outputs))
    types = {number: value.type for value, number in made.numbers.items()}
    ranks = [sum(arg.tensor.rank for arg in part.args) for part in parts]
    return Staged(with_native_steps(program, types, ranks), types)


Sizes = dict[Sym, Size]
"""Where the variables that a block may ask for have their values."""


class _Steps:
    def __init__(self, parts: Mapping[str, int]) -> None:
        self.parts = parts
        self.numbers: dict[Value, int] = {}

    def number(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def measured(self, value: Value, sizes: Sizes) -> None:
        """The variables that are dims of a value have their values from it, where they have none yet."""
        for axis, d in enumerate(value.type.shape if isinstance(value.type, TensorType) else ()):
            if d.kind == "var":
                sizes.setdefault(d, Size(self.number(value), axis))

    def block(self, block: Block, outer: Sizes) -> tuple[Step, ...]:
        """The steps of a block, with the variables that are known around it."""
        sizes = dict(outer)
        steps: list[Step] = []
        for value in block.args:
            self.measured(value, sizes)
        for op in block.ops[:-1]:
            if op.name == MEASURE:
                number = self.number(op.operands[0])
                for k, v in enumerate(op.attrs["variables"]):
                    sizes.setdefault(v, Size(number, k, element=True))
            elif op.name not in (STATE, READ, UPDATE):
                steps.append(self.step(op, sizes))
            for value in op.results:
                self.measured(value, sizes)
        return tuple(steps)

    def step(self, op: Op, sizes: Sizes) -> Step:
        operands, results = (tuple(map(self.number, values)) for values in (op.operands, op.results))
        if op.name == "call":
            return RunPart(self.parts[op.attrs["part"]], operands, tuple(sizes[v] for v in op.attrs["sizes"]), results)
        node = f"{op.loc.node} ({op.loc.op})" if op.loc.node else op.loc.op
        if op.name == HOST:
            parameters = {k: v for k, v in op.attrs.items() if k != "function"}
            return CallHost(op.attrs["function"], operands, results, parameters, node)
        bodies = [self.block(block, sizes) for block in op.blocks]
        yielded = [tuple(map(self.number, block.ops[-1].operands)) for block in op.blocks]
        if op.name == BRANCH:
            return TakeBranch(operands[0], (bodies[0], bodies[1]), (yielded[0], yielded[1]), results)
        assert op.name == LOOP, f"a program has no op '{op.name}'"
        (block,) = op.blocks
        rows = block.ops[-1].operands[1 + op.attrs["states"] :]
        types = tuple(_row_type(v, shape, sizes) for v, shape in zip(rows, op.attrs["row_shapes"], strict=True))
        return RunLoop(operands, tuple(map(self.number, block.args)), bodies[0], yielded[0], results, types, node)


def _row_type(row: Value, shape: Sequence[Sym], sizes: Sizes) -> RowType:
    return RowType(row.tensor.dtype.storage.name, tuple(d.value if d.is_const else sizes[d] for d in shape))
