"""What the runtime keeps of a program that calls parts: steps of the host. Values have numbers, sizes are read from
values, states are the last inputs and outputs, and a `native` op is one step, of which only the outside is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.core import Block, Module, Op, Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.types import TensorType
from tilewright.ops.define.staged import BRANCH, HOST, LOOP, MEASURE
from tilewright.program.lifetimes import frees_in, makes, reads
from tilewright.program.native import native_ops, slots_of
from tilewright.program.sizes import SizeOf, sizes_of
from tilewright.program.spec import NATIVE, READ, STATE, UPDATE
from tilewright.program.split import part_functions
from tilewright.program.states import states_of
from tilewright.runtime.staged import frame
from tilewright.runtime.staged.program import (
    CallHost,
    RowType,
    RunLoop,
    RunNative,
    RunPart,
    Size,
    StagedProgram,
    Step,
    TakeBranch,
)


@dataclass(frozen=True)
class Staged:
    """The steps of a program, whose parts have numbers in the order of the module, and the words at which values begin
    in the frame of its native code."""

    program: StagedProgram
    slots: Mapping[Value, int]


def staged_program(module: Module) -> Staged:
    """The steps of the main function of a module, which is a program that calls parts."""
    main = module.main
    steps = _Steps(module)
    states = states_of(main)
    for _, update in states:
        if "at" in update.attrs:
            raise UnsupportedError(
                f"a program of parts writes states as a whole, and not at {list(update.attrs['at'])}",
                where=f"@main, update of '{update.operands[0].name}'",
            )
    read = {op.operands[0]: op.result for op in main.body.ops if op.name == READ}
    inputs = steps.numbers_of((*main.args, *(read[state.result] for state, _ in states)))
    made = steps.block(main.body)
    outputs = steps.numbers_of((*main.returns, *(update.operands[1] for _, update in states)))
    program = StagedProgram(len(steps.numbers), inputs, outputs, made)
    natives = native_ops(module)
    if not natives:
        return Staged(program, {})
    ranks = [sum(arg.tensor.rank for arg in part.args) for part in part_functions(module)]
    parts = frame.SHAPES + max(ranks, default=0)
    slots: dict[Value, int] = {}
    words = parts + frame.PART_WORDS * len(ranks)
    for op in natives:
        for value in slots_of(op, steps.sizes):
            if value not in slots:
                slots[value] = words
                words += frame.DIMS + value.tensor.rank
        slots |= {new: slots[value] for new, value in zip(op.results, op.blocks[0].ops[-1].operands, strict=True)}
    ours = tuple((number, slots[value]) for value, number in steps.numbers.items() if value in slots)
    loops = tuple(_node(inner) for op in natives for inner in op.walk() if inner.name == LOOP)
    return Staged(replace(program, slots=ours, parts=parts, frame_words=words, loops=loops), slots)


class _Steps:
    def __init__(self, module: Module) -> None:
        main = module.main
        self.parts = {part.name: k for k, part in enumerate(part_functions(module))}
        self.sizes = sizes_of(main)
        self.frees = frees_in(main.body, self.sizes, kept=[update.operands[1] for _, update in states_of(main)])
        self.functions = {op: k for k, op in enumerate(native_ops(module))}
        self.numbers: dict[Value, int] = {}

    def number(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def numbers_of(self, values: Sequence[Value]) -> tuple[int, ...]:
        return tuple(map(self.number, values))

    def block(self, block: Block) -> tuple[Step, ...]:
        return tuple(self.step(op) for op in block.ops[:-1] if op.name not in (MEASURE, STATE, READ, UPDATE))

    def step(self, op: Op) -> Step:
        operands, results = self.numbers_of(op.operands), self.numbers_of(op.results)
        frees = tuple(sorted(self.numbers_of(self.frees[op])))
        sizes = tuple(self.size(size) if isinstance(size, SizeOf) else size for size in self.sizes.get(op, ()))
        if op.name == NATIVE:
            return self.native(op, results, frees)
        if op.name == "call":
            read = tuple(size for size in sizes if isinstance(size, Size))
            return RunPart(self.parts[op.attrs["part"]], operands, read, results, frees)
        if op.name == HOST:
            parameters = {k: v for k, v in op.attrs.items() if k != "function"}
            return CallHost(op.attrs["function"], operands, results, parameters, _node(op), frees)
        bodies = [self.block(block) for block in op.blocks]
        yielded = [self.numbers_of(block.ops[-1].operands) for block in op.blocks]
        if op.name == BRANCH:
            return TakeBranch(operands[0], (bodies[0], bodies[1]), (yielded[0], yielded[1]), results, frees)
        assert op.name == LOOP, f"a program has no op '{op.name}'"
        (block,) = op.blocks
        types, arguments = tuple(_row_types(op, sizes)), self.numbers_of(block.args)
        return RunLoop(operands, arguments, bodies[0], yielded[0], results, types, _node(op), frees)

    def native(self, op: Op, outputs: tuple[int, ...], frees: tuple[int, ...]) -> RunNative:
        own = set(makes(op))
        read = [value for value in dict.fromkeys(reads(op, self.sizes)) if value not in own]
        types = (tuple(map(_type_of, read)), tuple(map(_type_of, op.results)))
        loops = any(inner.name == LOOP for inner in op.walk())
        return RunNative(self.functions[op], self.numbers_of(read), outputs, *types, loops, frees)

    def size(self, size: SizeOf) -> Size:
        return Size(self.number(size.value), size.position, size.element)


def _node(op: Op) -> str:
    return f"{op.loc.node} ({op.loc.op})" if op.loc.node else op.loc.op


def _type_of(value: Value) -> tuple[str, int]:
    return value.tensor.dtype.storage.name, value.tensor.rank


def _row_types(op: Op, sizes: Sequence[Size | int]) -> list[RowType]:
    """Of the rows of a loop, whose sizes follow each other."""
    rows = op.blocks[0].ops[-1].operands[1 + op.attrs["states"] :]
    found, start = [], 0
    for row, shape in zip(rows, op.attrs["row_shapes"], strict=True):
        assert isinstance(row.type, TensorType)
        found.append(RowType(row.type.dtype.storage.name, tuple(sizes[start : start + len(shape)])))
        start += len(shape)
    return found
