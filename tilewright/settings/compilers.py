"""Which parts of a graph the compilers of plugins are given.

What an operator takes on both sides, and what its values take to be handed over, goes into the cut that also places
operators beside a device (`cost/machine/placement.py`). Of the operators that are quicker on a compiler's side the
greatest parts are made of which no path leaves and comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from tilewright.cost.machine.placement import cheapest_sides, copy_seconds, host_seconds
from tilewright.external.compiler import ExternalCompiler, ExternalGraph
from tilewright.external.kernel import WholeOperator
from tilewright.ir.core import Block, Func, Module, Op
from tilewright.ir.diag import Remark, failure
from tilewright.ir.sym import Sym
from tilewright.ops.define.staged import MEASURE, STAGED
from tilewright.options import Options
from tilewright.plugins import Plugins
from tilewright.program.split import COMPILER, NUMBER, alone, is_free, part_functions
from tilewright.program.uses import own_dims, uses_of
from tilewright.runtime.report.records import PlacedPart
from tilewright.settings.flow import (
    block_of,
    bytes_of_all,
    moved_values,
    native_ops,
    time_text,
    times_of_blocks,
)
from tilewright.settings.works import sizes_of, work_of
from tilewright.target.machine import HostLink
from tilewright.target.target import Target

STAGE = "external-compilers"


@dataclass(frozen=True)
class ExternalCompilers:
    """The compilers of plugins, each beside the name of its plugin, for parts that the CPU would compute; `why_not`
    says why none is asked."""

    cpu: Target
    compilers: tuple[tuple[str, ExternalCompiler], ...]
    why_not: str = ""
    refused: tuple[Remark, ...] = ()

    @classmethod
    def of(cls, cpu: Target, plugins: Plugins, options: Options) -> ExternalCompilers | None:
        """Those for parts on a CPU; None where plugins bring none."""
        found: list[tuple[str, ExternalCompiler]] = []
        remarks: list[Remark] = []
        for candidate, plugin in plugins.used:
            strangers = [c.name for c in plugin.compilers if not isinstance(c, ExternalCompiler)]
            if strangers:
                base = f"{ExternalCompiler.__module__}.ExternalCompiler"
                remarks.append(candidate.refusal(f"its compiler '{strangers[0]}' is no {base}"))
            found += [(plugin.name, c) for c in plugin.compilers if isinstance(c, ExternalCompiler)]
        return cls(cpu, tuple(found), _why_not(cpu, options), tuple(remarks)) if found or remarks else None

    def unasked(self, why: str) -> ExternalCompilers:
        """The same where none is asked for a reason, unless there is another one."""
        return replace(self, why_not=self.why_not or why)

    def find(self, name: str) -> ExternalCompiler | None:
        """The compiler of a name."""
        return next((c for _, c in self.compilers if c.name == name), None)

    def sides(self, module: Module, ours: Set[Op] | None, remarks: list[Remark]) -> Mapping[Op, str]:
        """The sides of operators (`program/split.py`) that compilers are given, of those that the CPU would compute:
        `ours`, or all."""
        if self.why_not or not self.compilers:
            if self.compilers:
                remarks.append(Remark(STAGE, "the model", f"no compiler is asked: {self.why_not}"))
            return {}
        found: dict[Op, str] = {}
        for plugin, compiler in self.compilers:
            ops = [op for op in native_ops(module.main.body) if op not in found and (ours is None or op in ours)]
            taken = self._taken(plugin, compiler, module, ops, remarks)
            for block in dict.fromkeys(map(block_of, taken)):
                for group in connected_parts(block, {op for op in taken if op.parent is block}):
                    side = f"{compiler.name}{NUMBER}{len({*found.values()})}"
                    found |= dict.fromkeys(group, side)
        return found

    def _taken(
        self, plugin: str, compiler: ExternalCompiler, module: Module, ops: Sequence[Op], remarks: list[Remark]
    ) -> list[Op]:
        """The operators that are quicker on the side of a compiler."""
        sizes, times = sizes_of(module.main.args), times_of_blocks(module.main.body)
        link = HostLink(compiler.call, compiler.bus, 1, 1, 1)
        here = [host_seconds(work_of(op, sizes, times[block_of(op)]), self.cpu) for op in ops]
        most = 1e3 * (1 + sum(here))
        refusals: dict[str, None] = {}
        there: list[float | None] = []
        try:
            for k, op in enumerate(ops):
                why = next(filter(None, map(compiler.refuses, map(WholeOperator.of, _with_free(op)))), "")
                refusals |= {f"{op.loc}: {why}": None} if why else {}
                seconds = None if why else compiler.seconds(WholeOperator.of(op))
                there.append(None if why else (seconds or 0.0) * times[block_of(op)])
                if not why and seconds is None:
                    here[k] = most
        except MemoryError:
            raise
        except Exception as error:
            who = f"compiler '{compiler.name}' of plugin '{plugin}'"
            remarks.append(failure("plugins", who, error, "the compiler is not asked any more"))
            return []
        remarks += [Remark(STAGE, f"the compiler '{compiler.name}'", each) for each in refusals]
        moved = [(value, copy_seconds(value, link)) for value in moved_values(module.main.body, ops, sizes, times)]
        return [op for op, away in zip(ops, cheapest_sides(here, there, moved), strict=True) if away]

    def compiled(self, module: Module, remarks: list[Remark]) -> dict[str, bytes]:
        """What compilers make of their parts of a program, by the names of the parts. Parts of which they make nothing
        are ours from now on, and told in `remarks`."""
        made: dict[str, bytes] = {}
        for part in part_functions(module):
            name = part.attrs.get(COMPILER)
            compiler = None if name is None else self.find(name)
            if compiler is None:
                continue
            try:
                graph = alone(part, module)
                graph.main.attrs["inputs"] = part.attrs["inputs"]
                data: object = compiler.compile(ExternalGraph(graph))
                if not isinstance(data, bytes):
                    raise TypeError(f"its 'compile' gave a {type(data).__name__}, and no bytes")
                made[part.name] = data
            except MemoryError:
                raise
            except Exception as error:
                del part.attrs[COMPILER]
                ours = "our own kernels compute its part"
                remarks.append(failure(STAGE, f"the compiler '{compiler.name}'", error, ours))
        return made

    def placed(self, module: Module, known: Sequence[PlacedPart]) -> tuple[PlacedPart, ...]:
        """The parts of a program for a report, of which some may be `known`."""
        by_name = {part.part: part for part in known}
        return tuple(self._placed(part, by_name.get(part.name)) for part in part_functions(module))

    def _placed(self, part: Func, known: PlacedPart | None) -> PlacedPart:
        takes, gives = (bytes_of_all(values) for values in (part.args, part.returns))
        if (name := part.attrs.get(COMPILER)) is None:
            ours = "no compiler takes it, or our own kernels are quicker"
            return known or PlacedPart(part.name, self.cpu.name, (), takes, gives, ours)
        compiler = self.find(name)
        assert compiler is not None
        sizes = sizes_of(part.args)
        ops = list(native_ops(part.body))
        here = sum(host_seconds(work_of(op, sizes), self.cpu) for op in ops)
        there = sum(compiler.seconds(WholeOperator.of(op)) or 0.0 for op in ops)
        told = f"{len(ops)} operators, expected are {time_text(here)} on the CPU"
        told += f" and {time_text(there)} by the compiler" if there else ""
        return PlacedPart(part.name, f"{compiler.name} {compiler.version}", (), takes, gives, told)


def _why_not(cpu: Target, options: Options) -> str:
    """Why the compilers of others are not asked; "" where they are."""
    if not cpu.links_images:
        return f"the code of {cpu.name} is not linked by this compiler"
    given = {
        "guarded=True": options.guarded, "profile=True": options.profile, "validate=": options.validate,
        "max_memory=": options.max_memory is not None, "integer_only=True": options.integer_only,
        "numerics='strict'": options.numerics == "strict",
    }  # fmt: skip
    asked = next((name for name, is_given in given.items() if is_given), "")
    return f"{asked} is for code of ours alone" if asked else ""


def _with_free(op: Op) -> Iterator[Op]:
    """An operator, and those without operands that it has a copy of."""
    yield op
    yield from (v.op for v in op.operands if v.op is not None and v.op.name != "constant" and is_free(v.op))


def connected_parts(block: Block, chosen: Set[Op]) -> list[list[Op]]:
    """The ops of a block that are `chosen`, in the greatest connected parts that may each run at once: no path leaves
    one and comes back, also through other parts."""
    order = {op: k for k, op in enumerate(block.ops)}
    before = _Before(block, order)
    parts: dict[Op, list[Op]] = {}
    for op in block.ops:
        if op not in chosen:
            continue
        own = parts[op] = [op]
        for value in op.operands:
            other = parts.get(value.op) if value.op is not None else None
            if other is not None and other is not own and before.may_join(other, own):
                own = [*other, *own]
                before.join(own)
                for member in own:
                    parts[member] = own
    unique = {id(part): part for part in parts.values()}
    return [sorted(part, key=order.__getitem__) for part in unique.values()]


class _Before:
    """What each op of a block needs, as bits, where the ops of a part run at once."""

    def __init__(self, block: Block, order: Mapping[Op, int]) -> None:
        self.order = order
        self.needs: list[int] = []
        sources: dict[Sym, int] = {}  # of sizes that values decide
        for k, op in enumerate(block.ops):
            inner = [*op.walk()]
            makers = [order[v.op] for each in inner for v in each.operands if v.op in order]  # type: ignore[index]
            makers += [sources[v] for each in inner for v in uses_of(each).variables if v in sources]
            self.needs.append(reduce(or_, (self.needs[number] | 1 << number for number in makers), 0))
            measured = op.attrs["variables"] if op.name == MEASURE else (d for v in op.results for d in own_dims(v))
            if op.name in STAGED:
                sources |= {v: k for v in getattr(measured, "flat", measured) if v not in sources}

    def may_join(self, a: Sequence[Op], b: Sequence[Op]) -> bool:
        """Whether nothing that one of both needs, and is in neither, needs one of them."""
        both, needed = self._bits([*a, *b])
        between = needed & ~both
        while between:
            number = (between & -between).bit_length() - 1
            if self.needs[number] & both:
                return False
            between &= between - 1
        return True

    def join(self, part: Sequence[Op]) -> None:
        """Let each op of a part, and what needs one, need what all of it needs."""
        own, needed = self._bits(part)
        for number, needs in enumerate(self.needs):
            if own >> number & 1 or needs & own:
                self.needs[number] = needs | needed | own
        for op in part:
            self.needs[self.order[op]] &= ~own

    def _bits(self, ops: Sequence[Op]) -> tuple[int, int]:
        """The ops, and all that they need."""
        own = needed = 0
        for op in ops:
            own |= 1 << self.order[op]
            needed |= self.needs[self.order[op]]
        return own, needed
