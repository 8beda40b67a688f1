"""Which operators of a model run on a device, and which on the CPU beside it.

A model that a device takes in one piece runs there. What the device lacks is learnt from its code generator: a kernel
that it refuses names its nodes. Then, and where branches, loops or data cut a model into parts anyway, each operator is
placed: by what the device takes, and by the time of both sides and of the copies between them
(`cost/machine/placement.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.cost.machine.placement import (
    Moved,
    cheapest_sides,
    copy_seconds,
    device_seconds,
    host_seconds,
)
from tilewright.ir.core import Block, Builder, Func, Module, Op
from tilewright.ir.diag import Remark, UnsupportedError
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.staged import STAGED
from tilewright.program.split import ON_CPU, part_functions
from tilewright.runtime.report.records import PlacedPart
from tilewright.settings.flow import (
    block_of,
    bytes_of_all,
    moved_values,
    native_ops,
    time_text,
    times_of_blocks,
)
from tilewright.settings.works import elements_of, size_of, sizes_of, work_of
from tilewright.target.machine import HostLink, Machine
from tilewright.target.target import Target

MOST_SHOWN = 3
"""Reasons that a part tells."""


class KernelDoubted(UnsupportedError):
    """A device has code for a kernel that is better computed by the CPU beside it."""


class KernelsRefused(UnsupportedError):
    """A device has no code for kernels of a part: names of the nodes of each, and why."""

    def __init__(self, refused: Sequence[tuple[tuple[str, ...], UnsupportedError]]) -> None:
        first = refused[0][1]
        super().__init__(first.what, where=first.where, hint=first.hint)
        self.refused = tuple(refused)
        self.is_doubt = all(isinstance(reason, KernelDoubted) for _, reason in refused)


@dataclass
class Placing:
    """What one compilation for a device knows of the operators that it lacks. With `wants_device` the CPU computes
    these alone, whatever the time."""

    machine: Machine
    link: HostLink
    cpu: Target
    wants_device: bool = False
    lacks: dict[str, str] = field(default_factory=dict)
    """Names of nodes, and why the device has no kernel for them."""
    trusts: bool = False
    """Whether kernels run on the device that the CPU should compute, as the program cannot be cut into parts."""
    has_hard: bool = False
    """Whether the device has no code for one of `lacks`."""
    general: bool | None = None
    """Whether the general program has a part on the device; None where that is not known yet."""

    def is_lacking(self, op: Op) -> str:
        """Why the device has no kernel for an operator; "" where it may have one."""
        return next((self.lacks[name] for name in names_of(op) if name in self.lacks), "")

    def refuse_all_of(self, module: Module, error: UnsupportedError) -> None:
        """The error, where the device has no code for what there is, and nothing of a model is left for it."""
        ops = [op for op in native_ops(module.main.body) if not OPERATORS[op.name].is_alias]
        if self.has_hard and all(map(self.is_lacking, ops)):
            raise error

    def places(self, module: Module) -> frozenset[Op] | None:
        """The operators of a graph that the CPU computes; None where the device takes the graph whole."""
        ops = list(native_ops(module.main.body))
        is_cut = any(op.name in STAGED for op in module.main.body.walk())
        if not is_cut and not any(map(self.is_lacking, ops)):
            return None
        if not ops:
            return None
        estimate = _Estimate(self, module, ops)
        sides = cheapest_sides(estimate.here, estimate.there, estimate.moved)
        return frozenset(op for op, on_device in zip(ops, sides, strict=True) if not on_device)

    def placed(self, module: Module) -> tuple[PlacedPart, ...]:
        """The parts of a program for a report, which have no kernels yet."""
        found = []
        for part in part_functions(module):
            on_cpu = ON_CPU in part.attrs
            takes, gives = (bytes_of_all(values) for values in (part.args, part.returns))
            machine = self.cpu.name if on_cpu else self.machine.name
            found.append(PlacedPart(part.name, machine, (), takes, gives, self._why(part, on_cpu)))
        return tuple(found)

    def _why(self, part: Func, on_cpu: bool) -> str:
        ops = [op for op in part.body.ops if op.name in OPERATORS]
        if on_cpu and (lacking := dict.fromkeys(filter(None, map(self.is_lacking, ops)))):
            more = len(lacking) - MOST_SHOWN
            shown = "; ".join([*list(lacking)[:MOST_SHOWN], *([f"and {more} more reasons"] if more > 0 else [])])
            return f"{self.machine.name} lacks it: {shown}"
        sizes = sizes_of(part.args)
        works = [work_of(op, sizes) for op in ops]
        here = sum(host_seconds(work, self.cpu, self.link.clock) for work in works)
        there = sum(device_seconds(work, self.link) for work in works)
        moved = [Moved(-1, (), float(size_of(elements_of(v), sizes))) for v in (*part.args, *part.returns)]
        copies = sum(copy_seconds(value, self.link) for value in moved)
        told = f"{time_text(here)} on the CPU, {time_text(there)} on the device and {time_text(copies)} of copies"
        if self.wants_device and not on_cpu:
            return f"asked for; expected are {told}"
        return f"expected are {told}"


def remark_of(part: PlacedPart) -> Remark:
    """What is told of a part among the remarks."""
    kernels = f"{len(part.kernels)} kernel{'s' * (len(part.kernels) != 1)}"
    copied = f"takes {part.takes} bytes and gives {part.gives}"
    return Remark("placement", part.part, f"{kernels} on {part.machine}, {copied}: {part.why}", "applied")


def single_op(op: Op, module: Module) -> Module:
    """A module of one operator of another one, whose constants are those of that."""
    constants = [v.op for v in dict.fromkeys(op.operands) if v.op is not None and v.op.name == "constant"]
    args = [v for v in dict.fromkeys(op.operands) if v.op not in constants or v.op is None]
    body = Block([v.type for v in args], [f"x{k}" for k in range(len(args))])
    values = dict(zip(args, body.args, strict=True))
    for each in (*constants, op):
        body.append(each.clone(values))
    Builder(body).emit("return", [values[v] for v in op.results])
    alone = Module()
    for each in constants:
        alone.constants[each.attrs["name"]] = module.constants.held[each.attrs["name"]]
    alone.add(Func("main", body, "graph", {}))
    return alone


def names_of(op: Op) -> tuple[str, ...]:
    """The nodes that an operator came from, as kernels name them."""
    return tuple(dict.fromkeys(loc.node or loc.op for loc in op.loc.sources if loc.node or loc.op))


class _Estimate:
    """Seconds of operators on both sides, and of the copies of values."""

    def __init__(self, placing: Placing, module: Module, ops: Sequence[Op]) -> None:
        link = placing.link
        sizes, times = sizes_of(module.main.args), times_of_blocks(module.main.body)
        works = [work_of(op, sizes, times[block_of(op)]) for op in ops]
        self.there = [
            None if placing.is_lacking(op) else device_seconds(work, link) for op, work in zip(ops, works, strict=True)
        ]
        self.here = [host_seconds(work, placing.cpu, link.clock) for work in works]
        if placing.wants_device:
            most = 1e3 * (1 + sum(self.here) + sum(filter(None, self.there)))
            self.here = [own if other is None else most for own, other in zip(self.here, self.there, strict=True)]
        moved = moved_values(module.main.body, ops, sizes, times)
        self.moved = [(value, copy_seconds(value, link)) for value in moved]
