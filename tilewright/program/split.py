"""Splitting a graph into a program: calls of functions, as few as the sizes and values allow that one computes for the
next, and between them what native code cannot do in one piece."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Op, Value, free_name
from tilewright.ir.sym import Sym
from tilewright.ir.types import is_native, tensor
from tilewright.ir.verify import TERMINATORS
from tilewright.ops.define.binding import SIZES, input_variables
from tilewright.ops.define.staged import ASSUME, BRANCH, MEASURE, STAGED
from tilewright.passes import PassContext
from tilewright.program.spec import LEVEL
from tilewright.program.uses import Uses, dims_of, own_dims, uses_in, uses_of, variables_in

Assumed = tuple[Sym, str, str, str]
"""A condition that the import takes for granted, what it says, and the name and operator of its node."""


@dataclass(frozen=True)
class SplitGraph:
    """From the graph to the program: the main function calls functions of the module, the parts. A graph that native
    code can compute alone stays one, without ops that nothing needs. Ops with a side of their own are in parts of their
    own: ON_CPU are those that the CPU beside a device computes, other sides are each one part of the compiler that the
    side names. None: there is nothing but the machine."""

    name: ClassVar[str] = "split"
    sides: Mapping[Op, str] | None = None

    def run(self, module: Module, ctx: PassContext | None = None) -> None:
        main = module.main
        found = _Split(module, self.sides)
        found.find_sizes(main.body)
        *ops, final = main.body.ops
        staged = [op for op in ops if op.name in STAGED]
        needed = found.needed(ops, final) if staged else set()
        used = uses_in([*needed, final]).variables | found.assumed_variables()
        asked = any(op in needed or not used.keys().isdisjoint(op.attrs.get("variables", ())) for op in staged)
        if asked or self.sides or not all(is_native(v.type) for v in (*main.args, *main.returns)):
            found.run()
        elif staged:
            found.erase([op for op in ops if op not in needed])


def is_of_parts(main: Func) -> bool:
    """Whether a function is a program that calls parts, or does what needs the host: one piece of native code cannot
    compute it."""
    return main.level == LEVEL and any("part" in op.attrs or op.name in _HOSTED for op in main.body.walk())


_HOSTED = STAGED - {ASSUME, MEASURE}


def is_free(op: Op) -> bool:
    """Whether an op reads nothing, sizes included, as a number that fills a tensor: parts on both sides of a device may
    have a copy each."""
    return not op.operands and not op.blocks and op.name not in STAGED and not uses_of(op).variables


def part_functions(module: Module) -> list[Func]:
    """The functions that a program calls as parts, in the order of the module."""
    called = {op.attrs["part"] for op in module.main.body.walk() if "part" in op.attrs}
    return [func for func in module.funcs.values() if func.name in called]


def parts_of(module: Module) -> tuple[Module, ...]:
    """The parts of a program, each as the main function of a module."""
    return tuple(alone(func, module) for func in part_functions(module))


def alone(func: Func, module: Module) -> Module:
    """A module whose main function is this one, with the constants that it reads and the kernels that it calls."""
    part = Module()
    arrays = module.constants.held if func.level == LEVEL else module.constants  # weights of kernels may be deferred
    for op in func.body.ops:
        if op.name == "constant":
            part.constants[op.attrs["name"]] = arrays[op.attrs["name"]]
    part.add(replace(func, name="main", attrs=dict(func.attrs)))
    for op in func.body.ops:
        kernel = op.attrs.get("kernel") if op.name == "call" else None  # pools have an attribute of this name, too
        if kernel is not None and kernel not in part.funcs:
            part.add(module.funcs[kernel])
    return part


def joined(module: Module, parts: Sequence[Module]) -> Module:
    """A program in one module with what its parts have become. Constants of parts that have a name in common and are
    not the same are named after the part as well."""
    whole = Module()
    whole.add(module.main)
    for op in module.main.body.walk():
        if op.name == "constant":
            whole.constants[op.attrs["name"]] = module.constants.held[op.attrs["name"]]
    for func, part in zip(part_functions(module), parts, strict=True):
        main = part.main.clone()
        for op in main.body.ops:
            if op.name == "constant":
                held = part.constants.held[op.attrs["name"]]
                if whole.constants.held.get(op.attrs["name"], held) is not held:
                    op.attrs["name"] = free_name(f"{func.name}.{op.attrs['name']}", whole.constants)
                whole.constants[op.attrs["name"]] = held
        whole.add(replace(main, name=func.name))
        for kernel in part.funcs.values():
            if kernel is not part.main:
                whole.add(kernel)
    return whole


class _Split:
    def __init__(self, module: Module, sides: Mapping[Op, str] | None) -> None:
        self.module = module
        self.sides = sides or {}
        self.has_sides = sides is not None
        self.values: dict[Value, Value] = {}  # of the graph, and what they are in the program
        self.sizes: dict[Sym, Value] = {}
        self.parts: list[Func] = []
        self.assumed: list[Assumed] = list(module.main.attrs.get("assumed", ()))

    def run(self) -> None:
        main = self.module.main
        body = self.block(main.body)
        _drop_unread_measures(body)
        program = Func(main.name, body, LEVEL, dict(main.attrs))
        self.module.funcs = {main.name: program, **{part.name: part for part in self.parts}}

    def erase(self, ops: Sequence[Op]) -> None:
        """Take ops out that nothing needs, and the conditions on what they compute."""
        gone = set(ops)
        attrs = self.module.main.attrs
        kept = (a for a in self.assumed if not any(self.sizes[v].op in gone for v in a[0].vars if v in self.sizes))
        if "assumed" in attrs:
            attrs["assumed"] = tuple(kept)
        for op in reversed(ops):
            op.erase()

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
            for d in own_dims(value):
                self.sizes.setdefault(d, value)
        for v in [] if elements is None else list(getattr(elements, "flat", elements)):
            self.sizes.setdefault(v, value)

    # Levels: the part of each native op, and after which part each other op runs

    def block(self, block: Block) -> Block:
        """The program of what the block's terminator reads."""
        *ops, final = block.ops
        made = Block([a.type for a in block.args], [a.name for a in block.args])
        for old, new in zip(block.args, made.args, strict=True):
            self.define(made, old, new)
        self.assumed += [_assumption(op) for op in ops if op.name == ASSUME]
        needed = self.needed(ops, final)
        levels = self.levels([op for op in ops if op in needed])
        last = max(levels.values(), default=-1)
        for level in range(-1, last + 2):  # the last part has but conditions on what the host gave, if there are any
            here = [op for op in levels if levels[op] == level]
            native = [op for op in here if op.name not in STAGED]
            ours = set(native)
            later = [op for op in levels if op not in ours and (levels[op] > level or op.name in STAGED)]
            assumed = self.conditions(block, levels, level)
            groups = [[op for op in native if self.side(op) == side] for side in dict.fromkeys(map(self.side, native))]
            for some in groups or ([[]] if assumed else []):
                self.call(some, [*later, final], assumed, block, made)
                assumed = []
            for op in here:
                if op.name in STAGED:
                    self.keep(op, made)
        self.keep(final, made)
        return made

    def define(self, made: Block, old: Value, new: Value) -> None:
        """A value of the program, and after it the variables that stand for its elements."""
        self.values[old] = new
        new.name = old.name
        measured = [op.attrs["variables"] for op in old.users if op.name == MEASURE]
        if old in self.module.main.args and (symbols := input_variables(old)) is not None:
            measured.append(tuple(symbols.flat))
        for variables in measured:
            made.append(Op(MEASURE, [new], (), {"variables": variables}))

    def keep(self, op: Op, made: Block) -> None:
        """An op of the graph in the program."""
        operands = [self.values[v] for v in op.operands]
        types = [v.type for v in op.results]
        kept = Op(op.name, operands, types, op.attrs, [self.block(b) for b in op.blocks], op.loc)
        made.append(kept)
        for old, new in zip(op.results, kept.results, strict=True):
            self.define(made, old, new)

    def needed(self, ops: Sequence[Op], final: Op) -> set[Op]:
        """Ops on which something that is returned depends, or a condition that is taken for granted."""
        own = set(ops)
        found: set[Op] = set()
        waiting = [uses_of(op) for op in (final, *ops) if op is final or op.name == ASSUME]
        waiting.append(Uses(variables=self.assumed_variables()))
        while waiting:
            uses = waiting.pop()
            sources = [self.sizes[v] for v in uses.variables if v in self.sizes]
            for v in (*uses.values, *sources):
                if v.op in own and v.op not in found:
                    found.add(v.op)
                    waiting.append(uses_of(v.op))
        return found

    def assumed_variables(self) -> dict[Sym, None]:
        """What conditions depend on that no part has checked yet."""
        return dict.fromkeys(variables_in(a[0] for a in self.assumed))

    def side(self, op: Op) -> str:
        """What computes an op; "": the machine."""
        return self.sides.get(op, "")

    def levels(self, ops: Sequence[Op]) -> dict[Op, int]:
        """The level of each op. All ops of a compiler's part have that of the last one of them."""
        least: dict[str, int] = {}
        for _ in range(len({*self.sides.values()}) + 2):
            levels = self.levels_from(ops, least)
            whole: dict[str, int] = {}
            for op, level in levels.items():
                if is_compilers(side := self.side(op)):
                    whole[side] = max(whole.get(side, level), level)
            if whole == least:
                break
            least = whole
        return levels  # where there is no such level, the ops of a side are in several parts

    def levels_from(self, ops: Sequence[Op], least: Mapping[str, int]) -> dict[Op, int]:
        """The same, where some sides have a level that they have at least."""
        levels: dict[Op, int] = {}
        outside = {op for op in ops if self.is_copied(op) and not self.crosses(op)}
        for op in ops:
            if op in outside:
                continue
            uses, is_native = uses_of(op), op.name not in STAGED
            level = 0 if is_native else -1
            for v in uses.values:
                if (source := v.op) in levels and not (is_native and self.has_sides and self.is_copied(source)):
                    level = max(level, levels[source] + (is_native and self.is_apart(source, op)))
            for variable in uses.variables:
                level = max(level, self.known_after(variable, levels) + is_native)
            levels[op] = max(level, least.get(self.side(op), level))
        return levels

    def is_apart(self, source: Op, op: Op) -> bool:
        """Whether a native op cannot be in one part with what makes its operand."""
        return source.name in STAGED or self.side(source) != self.side(op)

    def known_after(self, variable: Sym, levels: dict[Op, int]) -> int:
        """The level after which a variable has its value; -1 where it is known from the start."""
        source = self.sizes[variable].op
        return levels.get(source, -1) if source is not None else -1

    def is_copied(self, op: Op) -> bool:
        """Whether each part that reads an op has a copy of it."""
        return op.name == "constant" or (self.has_sides and is_free(op))

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
            # also of what a block sees of those around it, only what has run before: not the results of its own loop
            visible = all(s in self.values and _is_visible(s, block) for s in sources if s is not None)
            if visible and max((self.known_after(v, levels) for v in a[0].vars), default=-1) < max(level, 0):
                found.append(a)
        self.assumed = [a for a in self.assumed if a not in found]
        return found

    # Parts

    def call(
        self, native: Sequence[Op], later: Sequence[Op], assumed: Sequence[Assumed], block: Block, made: Block
    ) -> None:
        """One part of a block, and the call of it in what is `made` of the block."""
        own = set(native)
        read = uses_in(native).values
        constants = {v.op: None for v in read if v.op is not None and self.is_copied(v.op) and v.op not in own}
        args = [v for v in read if v.op not in own and v.op not in constants]
        wanted = uses_in(later)
        sources = [self.sizes[v] for v in wanted.variables | self.assumed_variables() if v in self.sizes]
        outputs = [v for v in dict.fromkeys((*wanted.values, *sources)) if v.op in own]
        sizes = self.unbound(native, args, assumed)
        part = self.part([*constants, *native], args, sizes, outputs)
        more = {"nodes": len(native), "elements": {SIZES: tuple(sizes)}}
        if assumed:
            more["assumed"] = tuple(assumed)
        if place := _place_of(block):
            more[PLACE] = place
        side = self.side(native[0]) if native else ""
        if self.has_sides and (side == ON_CPU or not native):
            more[ON_CPU] = True
        if is_compilers(side):
            more[COMPILER] = side.partition(NUMBER)[0]
        part.attrs |= more
        self.parts.append(part)
        attrs = {"part": part.name, "sizes": tuple(sizes)}
        call = Op("call", [self.values[v] for v in args], [v.type for v in outputs], attrs)
        made.append(call)
        for old, new in zip(outputs, call.results, strict=True):
            self.define(made, old, new)

    def part(self, ops: Sequence[Op], args: Sequence[Value], sizes: Sequence[Sym], outputs: Sequence[Value]) -> Func:
        """The function of some ops, with a vector of `sizes` behind its arguments where it has any."""
        names = _names([v.name or "value" for v in args])
        types = [v.type for v in args]
        if sizes:
            names, types = [*names, SIZES], [*types, tensor(dt.i64, [len(sizes)])]
        body = Block(types, names)
        values = dict(zip(args, body.args, strict=False))
        for op in ops:
            body.append(op.clone(values))
        Builder(body).emit("return", [values[v] for v in outputs])
        attrs = {"inputs": tuple(names), "outputs": tuple(_names([v.name or "value" for v in outputs]))}
        return Func(f"part{len(self.parts)}", body, "graph", attrs)

    def unbound(self, native: Sequence[Op], args: Sequence[Value], assumed: Sequence[Assumed]) -> list[Sym]:
        """Variables of a part that are no axes of its arguments."""
        used = uses_in(native).variables
        for v in args:
            used |= dict.fromkeys(dims_of(v))
        used |= dict.fromkeys(variables_in(a[0] for a in assumed))
        bound = {d for v in args for d in own_dims(v)}
        return [v for v in used if v not in bound]


def _drop_unread_measures(block: Block) -> None:
    """Take out `measure` ops whose variables nothing in the program asks for."""
    used = {v for op in block.walk() if op.name != MEASURE for v in variables_in(op.attrs.values())}
    used |= {v for op in block.walk() for value in op.results for v in dims_of(value)}
    for op in [op for op in block.walk() if op.name == MEASURE]:
        if used.isdisjoint(op.attrs["variables"]):
            op.erase()


def _assumption(op: Op) -> Assumed:
    return op.attrs["condition"], op.attrs["message"], op.attrs["node"], op.attrs["operator"]


ON_CPU = "on_cpu"
"""The attribute of a part of a program for a device that the CPU beside it computes, and the side of its ops."""

COMPILER = "compiler"
"""The attribute of a part that the compiler of a vendor makes: its name."""

NUMBER = "#"
"""Stands between the name of a compiler and the number of its part, in the sides of ops."""


def is_compilers(side: str) -> bool:
    """Whether a side is a part of a compiler."""
    return NUMBER in side


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
