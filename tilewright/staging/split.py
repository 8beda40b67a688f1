"""Splitting a graph into parts: as few as the sizes and values allow that one part computes for the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType, Type, is_native, tensor
from tilewright.ir.verify import TERMINATORS
from tilewright.ops.define.binding import SIZES, input_variables
from tilewright.ops.define.staged import ASSUME, BRANCH, HOST, MEASURE, STAGED
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
from tilewright.staging.lifetimes import with_frees
from tilewright.staging.native_steps import with_native_steps
from tilewright.staging.uses import Uses, dims_of, own_dims, uses_in, uses_of, variables_in

Assumed = tuple[Sym, str, str, str]
"""A condition that the import takes for granted, what it says, and the name and operator of its node."""


@dataclass(frozen=True)
class Staged:
    """Parts, each a module with a main function of its own, the steps that call them, and the types of values."""

    parts: tuple[Module, ...]
    program: StagedProgram
    types: Mapping[int, Type]


def split(module: Module) -> Staged | None:
    """The parts of a graph; None for one that native code can compute alone, from which ops that nothing needs are
    taken out."""
    main = module.main
    parts = _Split(module)
    parts.find_sizes(main.body)
    *ops, final = main.body.ops
    staged = [op for op in ops if op.name in STAGED]
    needed = parts.needed(ops, final) if staged else set()
    used = uses_in([*needed, final]).variables | parts.assumed_variables()
    if any(op in needed or not used.keys().isdisjoint(op.attrs.get("variables", ())) for op in staged):
        return parts.run()
    if not all(is_native(v.type) for v in (*main.args, *main.returns)):
        return parts.run()
    if staged:
        parts.erase([op for op in ops if op not in needed])
    return None


class _Split:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.numbers: dict[Value, int] = {}
        self.sizes: dict[Sym, tuple[Value, Size]] = {}
        self.parts: list[Module] = []
        self.assumed: list[Assumed] = list(module.main.attrs.get("assumed", ()))

    def run(self) -> Staged:
        main = self.module.main
        inputs = tuple(map(self.number, main.args))
        steps = self.steps(main.body)
        outputs = tuple(map(self.number, main.returns))
        program = StagedProgram(len(self.numbers), inputs, outputs, with_frees(steps, outputs))
        types = {number: value.type for value, number in self.numbers.items()}
        ranks = [sum(arg.tensor.rank for arg in part.main.args) for part in self.parts]
        return Staged(tuple(self.parts), with_native_steps(program, types, ranks), types)

    def erase(self, ops: Sequence[Op]) -> None:
        """Take ops out that nothing needs, and the conditions on what they compute."""
        gone = set(ops)
        attrs = self.module.main.attrs
        kept = (a for a in self.assumed if not any(self.sizes[v][0].op in gone for v in a[0].vars if v in self.sizes))
        if "assumed" in attrs:
            attrs["assumed"] = tuple(kept)
        for op in reversed(ops):
            op.erase()

    def number(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    # Where the sizes come from

    def find_sizes(self, body: Block) -> None:
        for arg in body.args:
            self.measured_by(arg, (input_variables(arg) if body.parent is self.module.main else None))
        for op in body.ops:
            if op.name == MEASURE:
                self.measured_by(op.operands[0], op.attrs["variables"])
            elif op.name in STAGED:
                for v in op.results:
                    self.measured_by(v, None)
            for block in op.blocks:
                self.find_sizes(block)

    def measured_by(self, value: Value, elements: Iterable[Sym] | None) -> None:
        """Note the variables that are dims of a value or, where given, those of its elements."""
        if elements is None or value.op is None:
            type = value.type
            for axis, d in enumerate(type.shape if isinstance(type, TensorType) else ()):
                if d.kind == "var":
                    self.sizes.setdefault(d, (value, Size(self.number(value), axis)))
        for k, v in enumerate([] if elements is None else list(getattr(elements, "flat", elements))):
            self.sizes.setdefault(v, (value, Size(self.number(value), k, element=True)))

    # Levels: the part of each native op, and after which part each other op runs

    def steps(self, block: Block) -> tuple[Step, ...]:
        """The steps that compute what the block's terminator reads."""
        *ops, final = block.ops
        self.assumed += [_assumption(op) for op in ops if op.name == ASSUME]
        needed = self.needed(ops, final)
        levels = self.levels([op for op in ops if op in needed])
        found: list[Step] = []
        last = max(levels.values(), default=-1)
        for level in range(-1, last + 2):  # the last part has but conditions on what the host gave, if there are any
            here = [op for op in levels if levels[op] == level]
            native = [op for op in here if op.name not in STAGED]
            later = [op for op in levels if op not in native and (levels[op] > level or op.name in STAGED)]
            assumed = self.conditions(block, levels, level)
            if native or assumed:
                found.append(self.part(native, [*later, final], assumed, block))
            found += [self.host_step(op) for op in here if op.name in STAGED]
        return tuple(found)

    def needed(self, ops: Sequence[Op], final: Op) -> set[Op]:
        """Ops on which something that is returned depends, or a condition that is taken for granted."""
        own = set(ops)
        found: set[Op] = set()
        waiting = [uses_of(op) for op in (final, *ops) if op is final or op.name == ASSUME]
        waiting.append(Uses(variables=self.assumed_variables()))
        while waiting:
            uses = waiting.pop()
            sources = [self.sizes[v][0] for v in uses.variables if v in self.sizes]
            for v in (*uses.values, *sources):
                if v.op in own and v.op not in found:
                    found.add(v.op)
                    waiting.append(uses_of(v.op))
        return found

    def assumed_variables(self) -> dict[Sym, None]:
        """What conditions depend on that no part has checked yet."""
        return dict.fromkeys(variables_in(a[0] for a in self.assumed))

    def levels(self, ops: Sequence[Op]) -> dict[Op, int]:
        levels: dict[Op, int] = {}
        outside = {op for op in ops if op.name == "constant" and not self.crosses(op)}
        for op in ops:
            if op in outside:
                continue
            uses, is_native = uses_of(op), op.name not in STAGED
            level = 0 if is_native else -1
            for v in uses.values:
                if (source := v.op) in levels:
                    level = max(level, levels[source] + (is_native and source.name in STAGED))
            for variable in uses.variables:
                level = max(level, self.known_after(variable, levels) + is_native)
            levels[op] = level
        return levels

    def known_after(self, variable: Sym, levels: dict[Op, int]) -> int:
        """The level after which a variable has its value; -1 where it is known from the start."""
        source = self.sizes[variable][0].op
        return levels.get(source, -1) if source is not None else -1

    def crosses(self, op: Op) -> bool:
        """Is a constant read by anything but native ops, which have copies of their own?"""
        return any(user.name in STAGED or user.name in TERMINATORS for user in op.result.users)

    def conditions(self, block: Block, levels: dict[Op, int], level: int) -> list[Assumed]:
        """Conditions that can be checked by the part of a level, and by none before."""
        found = []
        for a in self.assumed if level >= 0 else ():
            sources = [self.sizes.get(v) for v in a[0].vars]
            if any(s is None for s in sources):
                continue
            visible = all(_is_visible(s[0], block) for s in sources if s is not None)
            if visible and max((self.known_after(v, levels) for v in a[0].vars), default=-1) < max(level, 0):
                found.append(a)
        self.assumed = [a for a in self.assumed if a not in found]
        return found

    # Parts

    def part(self, native: Sequence[Op], later: Sequence[Op], assumed: Sequence[Assumed], block: Block) -> RunPart:
        """The module of one part of a block, and the step that calls it."""
        own = set(native)
        read = uses_in(native).values
        constants = {v.op: None for v in read if v.op is not None and v.op.name == "constant" and v.op not in own}
        args = [v for v in read if v.op not in own and v.op not in constants]
        wanted = uses_in(later)
        sources = [self.sizes[v][0] for v in wanted.variables | self.assumed_variables() if v in self.sizes]
        outputs = [v for v in dict.fromkeys((*wanted.values, *sources)) if v.op in own]
        sizes = self.unbound(native, args, assumed)
        names = _names([v.name or "value" for v in args])
        types = [v.type for v in args]
        if sizes:
            names, types = [*names, SIZES], [*types, tensor(dt.i64, [len(sizes)])]
        part = Module()
        body = Block(types, names)
        values = dict(zip(args, body.args, strict=False))
        for op in (*constants, *native):
            body.append(op.clone(values))
            if op.name == "constant":
                part.constants[op.attrs["name"]] = self.module.constants[op.attrs["name"]]
        with Builder(body, part) as builder:
            builder.emit("return", [values[v] for v in outputs])
        attrs = {"inputs": tuple(names), "outputs": tuple(_names([v.name or "value" for v in outputs])),
                 "nodes": len(native), "elements": {SIZES: tuple(sizes)}}  # fmt: skip
        if assumed:
            attrs["assumed"] = tuple(assumed)
        if place := _place_of(block):
            attrs[PLACE] = place
        part.add(Func("main", body, "graph", attrs))
        self.parts.append(part)
        numbers = (tuple(map(self.number, args)), tuple(self.sizes[v][1] for v in sizes))
        return RunPart(len(self.parts) - 1, *numbers, tuple(map(self.number, outputs)))

    def unbound(self, native: Sequence[Op], args: Sequence[Value], assumed: Sequence[Assumed]) -> list[Sym]:
        """Variables of a part that are no axes of its arguments."""
        used = uses_in(native).variables
        for v in args:
            used |= dict.fromkeys(dims_of(v))
        used |= dict.fromkeys(variables_in(a[0] for a in assumed))
        bound = {d for v in args for d in own_dims(v)}
        return [v for v in used if v not in bound]

    # The other ops

    def host_step(self, op: Op) -> Step:
        outputs = tuple(map(self.number, op.results))
        node = f"{op.loc.node} ({op.loc.op})" if op.loc.node else op.loc.op
        if op.name == HOST:
            parameters = {k: v for k, v in op.attrs.items() if k != "function"}
            return CallHost(op.attrs["function"], tuple(map(self.number, op.operands)), outputs, parameters, node)
        ways = tuple(self.way(b) for b in op.blocks)
        if op.name == BRANCH:
            then, other = ways
            return TakeBranch(self.number(op.operands[0]), (then[0], other[0]), (then[1], other[1]), outputs)
        (body, results), block = ways[0], op.blocks[0]
        rows = block.ops[-1].operands[1 + op.attrs["states"] :]
        types = tuple(self.row_type(v, shape) for v, shape in zip(rows, op.attrs["row_shapes"], strict=True))
        inputs, arguments = tuple(map(self.number, op.operands)), tuple(map(self.number, block.args))
        return RunLoop(inputs, arguments, body, results, outputs, types, node)

    def way(self, block: Block) -> tuple[tuple[Step, ...], tuple[int, ...]]:
        """The steps of a nested block, and the numbers of what it yields."""
        steps = self.steps(block)
        return steps, tuple(map(self.number, block.ops[-1].operands))

    def row_type(self, row: Value, shape: Sequence[Sym]) -> RowType:
        assert isinstance(row.type, TensorType)
        return RowType(
            row.type.dtype.storage.name, tuple(d.value if d.is_const else self.sizes[d][1] for d in shape)
        )


def _assumption(op: Op) -> Assumed:
    return op.attrs["condition"], op.attrs["message"], op.attrs["node"], op.attrs["operator"]


PLACE = "place"
"""The attribute of a part that only some calls run: where it is, in words."""


def _place_of(block: Block) -> str:
    """Where the ops of a block are that is not run in every call; "" for the main one."""
    op = block.parent
    if not isinstance(op, Op):
        return ""
    return f"{'a branch' if op.name == BRANCH else 'the body'} of {op.loc}"


def _is_visible(value: Value, block: Block) -> bool:
    """May ops of `block` read a value?"""
    home = value.owner.parent if isinstance(value.owner, Op) else value.owner
    around: Block | Op | Func | None = block
    while around is not None and around is not home:
        around = around.parent if isinstance(around, Block | Op) else None
    return around is home


def _names(names: Sequence[str]) -> list[str]:
    """The names, made different where some are alike."""
    taken: dict[str, None] = {}
    for name in names:
        unique, n = name, 0
        while unique in taken or unique == SIZES:
            n += 1
            unique = f"{name}_{n}"
        taken[unique] = None
    return list(taken)
