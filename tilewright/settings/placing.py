"""Which operators of a model run on a device, and which on the CPU beside it.

A model that a device takes in one piece runs there. What the device lacks is learnt from its code generator: a kernel
that it refuses names its nodes. Then, and where branches, loops or data cut a model into parts anyway, each operator is
placed: by what the device takes, and by the time of both sides and of the copies between them
(`cost/machine/placement.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilewright.cost.machine.placement import (
    Held,
    Moved,
    cheapest_sides,
    cheapest_within,
    copy_seconds,
    device_seconds,
    host_seconds,
)
from tilewright.ir.core import Block, Builder, Func, Module, Op
from tilewright.ir.diag import Loc, Remark, UnsupportedError
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.staged import STAGED
from tilewright.program.split import ON_CPU, part_functions
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.devices.executor import device_bytes
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


Form = tuple[str, tuple[str, ...]]
"""Of the operators of a node: a name, and the types of elements that go in and come out."""
WHOLE: Form = ("", ())
"""All operators of a node."""
Lacking = tuple[Loc, Form]
"""Operators of a node. Places tell nodes without names from each other, and forms the operators of one: of a Resize the
positions are of float64, and what is read there is not."""


class KernelDoubted(UnsupportedError):
    """A device has code for a kernel that is better computed by the CPU beside it."""


class KernelsRefused(UnsupportedError):
    """A device has no code for kernels of a part: names of the nodes of each, and why."""

    def __init__(self, refused: Sequence[tuple[tuple[str, ...], UnsupportedError]]) -> None:
        names, first = refused[0]
        super().__init__(first.what, where=first.where or f"in {', '.join(names[:MOST_SHOWN])}", hint=first.hint)
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
    lacks: dict[Lacking, str] = field(default_factory=dict)
    """What the device has no kernel for, and why."""
    trusts: bool = False
    """Whether kernels run on the device that the CPU should compute, as the program cannot be cut into parts."""
    has_hard: bool = False
    """Whether the device has no code for one of `lacks`."""
    too_much: int = 0
    """Bytes of the model's weights, where there is a number of them that the device holds."""
    packed: int = 0
    """Bytes by which what the device was given took more than it holds, as weights are packed: left for that."""
    general: bool | None = None
    """Whether the general program has a part on the device; None where that is not known yet."""

    def is_lacking(self, op: Op) -> str:
        """Why the device has no kernel for an operator; "" where it may have one."""
        all_of = ((loc, form) for loc in op.loc.sources for form in (form_of(op), WHOLE))
        return next((self.lacks[found] for found in all_of if found in self.lacks), "")

    def learn(self, op: Op, names: Sequence[str], why: str, form: Form | None = None) -> bool:
        """Note that the device has no kernel for an operator of nodes with these names; whether that is new."""
        found = [(loc, form_of(op) if form is None else form) for loc in nodes_of(op, names)]
        is_new = any(key not in self.lacks for key in found)
        for key in found:
            self.lacks.setdefault(key, why)
        return is_new

    def why_none(self, module: Module) -> str:
        """What keeps operators of a model from the device, of which nothing is there."""
        lacking = dict.fromkeys(filter(None, map(self.is_lacking, native_ops(module.main.body))))
        why = f", which lacks some ({'; '.join(list(lacking)[:MOST_SHOWN])})" if lacking else ""
        return why + (f", {too_large}" if (too_large := self._too_large()) else "")

    def _too_large(self) -> str:
        """That the device does not hold all weights; "" where it does."""
        capacity = self.link.capacity
        if capacity is None or self.too_much + self.packed <= capacity:
            return ""
        packed = f", {self.packed} more as they are packed" if self.packed else ""
        return f"{self.machine.name} holds {capacity} bytes of weights, and the model has {self.too_much}{packed}"

    def refuse_all_of(self, module: Module, error: UnsupportedError) -> None:
        """The error, where the device has no code for what there is, and nothing of a model is left for it."""
        ops = [op for op in native_ops(module.main.body) if not OPERATORS[op.name].is_alias]
        if self.has_hard and all(map(self.is_lacking, ops)):
            raise error

    def places(self, module: Module) -> frozenset[Op] | None:
        """The operators of a graph that the CPU computes; None where the device takes the graph whole."""
        ops = list(native_ops(module.main.body))
        is_cut = any(op.name in STAGED for op in module.main.body.walk())
        held = constants_of(ops)
        capacity = None if self.link.capacity is None else max(0, self.link.capacity - self.packed)
        self.too_much = sum(each.bytes for each in held) if capacity is not None else 0
        is_too_large = capacity is not None and self.too_much > capacity
        if not ops or not (is_cut or is_too_large or any(map(self.is_lacking, ops))):
            return None
        estimate = _Estimate(self, module, ops, is_too_large)
        if is_too_large and capacity is not None:
            sides = cheapest_within(estimate.here, estimate.there, estimate.moved, held, capacity)
        else:
            sides = cheapest_sides(estimate.here, estimate.there, estimate.moved)
        return frozenset(op for op, on_device in zip(ops, sides, strict=True) if not on_device)

    def fits(self, artifact: Artifact) -> bool:
        """Whether the device holds the weights of its programs; where it does not, how much has to be left is noted."""
        capacity = self.link.capacity
        programs = (part for program in artifact.programs for part in program.parts or (program,))
        held = sum(device_bytes(part.constant_table) for part in programs if part.target.kind == self.machine.kind)
        if capacity is None or held <= capacity:
            return True
        self.packed += held - capacity
        return False

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
        if on_cpu and (too_large := self._too_large()) and constants_of(ops):
            return too_large
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


def form_of(op: Op) -> Form:
    """What tells operators of one node from each other, also where the graph is made anew."""
    types = [v.type for v in (*op.operands, *op.results)]
    return op.name, tuple(str(type.dtype) if isinstance(type, TensorType) else "" for type in types)


def nodes_of(op: Op, names: Iterable[str]) -> list[Loc]:
    """The nodes that an operator came from, of those that a kernel names."""
    return [loc for loc in op.loc.sources if (loc.node or loc.op) in names]


def constants_of(ops: Sequence[Op]) -> list[Held]:
    """The constants that operators read, each once, with the numbers of its readers."""
    readers: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for k, op in enumerate(ops):
        for value in dict.fromkeys(op.operands):
            if value.op is not None and value.op.name == "constant":
                name = value.op.attrs["name"]
                readers.setdefault(name, []).append(k)
                sizes[name] = value.tensor.size.value * value.tensor.dtype.storage.itemsize
    return [Held(tuple(numbers), sizes[name]) for name, numbers in readers.items()]


class _Estimate:
    """Seconds of operators on both sides, and of the copies of values."""

    def __init__(self, placing: Placing, module: Module, ops: Sequence[Op], is_too_large: bool) -> None:
        link = placing.link
        sizes, times = sizes_of(module.main.args), times_of_blocks(module.main.body)
        works = [work_of(op, sizes, times[block_of(op)]) for op in ops]
        self.there = [
            None if placing.is_lacking(op) else device_seconds(work, link) for op, work in zip(ops, works, strict=True)
        ]
        self.here = [host_seconds(work, placing.cpu, link.clock) for work in works]
        if placing.wants_device and is_too_large:  # what is not there takes as long as it takes
            self.here = [own if other is None else 1e3 * own for own, other in zip(self.here, self.there, strict=True)]
        elif placing.wants_device:
            most = 1e3 * (1 + sum(self.here) + sum(filter(None, self.there)))
            self.here = [own if other is None else most for own, other in zip(self.here, self.there, strict=True)]
        moved = moved_values(module.main.body, ops, sizes, times)
        self.moved = [(value, copy_seconds(value, link)) for value in moved]
