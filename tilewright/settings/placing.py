"""Which operators of a model run on a device, and which on the CPU beside it.

A model that a device takes in one piece runs there. What the device lacks is learnt from its code generator: a kernel
that it refuses names its nodes. Then, and where branches, loops or data cut a model into parts anyway, each operator is
placed: by what the device takes, and by the time of both sides and of the copies between them
(`cost/machine/placement.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tilewright.cost.machine.placement import (
    TRIPS,
    Moved,
    OpWork,
    cheapest_sides,
    copy_seconds,
    device_seconds,
    host_seconds,
)
from tilewright.cost.typical import TypicalSizes, typical_sizes
from tilewright.ir.core import Block, Builder, Func, Module, Op, Value
from tilewright.ir.diag import Remark, UnsupportedError
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.staged import LOOP, STAGED
from tilewright.ops.traits.work import computation_of, parts_of, terms_of
from tilewright.program.split import ON_CPU, is_free, part_functions
from tilewright.runtime.report.records import PlacedPart
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
            takes, gives = (_bytes(values) for values in (part.args, part.returns))
            machine = self.cpu.name if on_cpu else self.machine.name
            found.append(PlacedPart(part.name, machine, (), takes, gives, self._why(part, on_cpu)))
        return tuple(found)

    def _why(self, part: Func, on_cpu: bool) -> str:
        ops = [op for op in part.body.ops if op.name in OPERATORS]
        if on_cpu and (lacking := dict.fromkeys(filter(None, map(self.is_lacking, ops)))):
            more = len(lacking) - MOST_SHOWN
            shown = "; ".join([*list(lacking)[:MOST_SHOWN], *([f"and {more} more reasons"] if more > 0 else [])])
            return f"{self.machine.name} lacks it: {shown}"
        sizes = _sizes_of(part.args)
        works = [work_of(op, sizes) for op in ops]
        here = sum(host_seconds(work, self.cpu, self.link) for work in works)
        there = sum(device_seconds(work, self.link) for work in works)
        moved = [Moved(-1, (), float(_product(_elements(v), sizes))) for v in (*part.args, *part.returns)]
        copies = sum(copy_seconds(value, self.link) for value in moved)
        told = f"{_time(here)} on the CPU, {_time(there)} on the device and {_time(copies)} of copies"
        if self.wants_device and not on_cpu:
            return f"asked for; expected are {told}"
        return f"expected are {told}"


def remark_of(part: PlacedPart) -> Remark:
    """What is told of a part among the remarks."""
    kernels = f"{len(part.kernels)} kernel{'s' * (len(part.kernels) != 1)}"
    copied = f"takes {part.takes} bytes and gives {part.gives}"
    return Remark("placement", part.part, f"{kernels} on {part.machine}, {copied}: {part.why}", "applied")


def native_ops(block: Block) -> Iterator[Op]:
    """The operators of a graph that kernels compute, also those of branches and loops."""
    for op in block.ops:
        if op.name in OPERATORS and not is_free(op):
            yield op
        for inner in op.blocks:
            yield from native_ops(inner)


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
        self.numbers = {op: k for k, op in enumerate(ops)}
        self.sizes = _sizes_of(module.main.args)
        self.times: dict[Block, int] = {}
        self._count(module.main.body, 1)
        works = [work_of(op, self.sizes, self.times[_block(op)]) for op in ops]
        self.there = [
            None if placing.is_lacking(op) else device_seconds(work, link) for op, work in zip(ops, works, strict=True)
        ]
        self.here = [host_seconds(work, placing.cpu, link) for work in works]
        if placing.wants_device:
            most = 1e3 * (1 + sum(self.here) + sum(filter(None, self.there)))
            self.here = [own if other is None else most for own, other in zip(self.here, self.there, strict=True)]
        self.moved = [(value, copy_seconds(value, link)) for value in self._values(module.main.body)]

    def _count(self, block: Block, times: int) -> None:
        self.times[block] = times
        for op in block.ops:
            for inner in op.blocks:
                self._count(inner, times * (TRIPS if op.name == LOOP else 1))

    def _values(self, block: Block) -> Iterator[Moved]:
        """What operators of a block, and of those in it, make and read. Blocks hand values on through the CPU."""
        times = self.times[block]
        made = [value for op in block.ops if op.operands or op.blocks for value in op.results]
        for value in (*block.args, *made):
            maker = -1 if value.op is None else self.numbers.get(value.op, -1)
            size = float(_product(_elements(value), self.sizes))
            own: list[int] = []
            others: list[int] = []
            for user in value.users:
                number = self.numbers.get(user, -1)
                (own if user.parent is block else others).append(number)
                if user.parent is not block:
                    yield Moved(-1, (number,), size, self.times[_block(user)])
            readers = tuple(dict.fromkeys([*own, *([-1] if others else [])]))
            if any(reader != maker for reader in readers):
                yield Moved(maker, readers, size, times)
        for op in block.ops:
            for inner in op.blocks:
                yield from self._values(inner)


def work_of(op: Op, sizes: TypicalSizes, times: int = 1) -> OpWork:
    """What an operator does, with sizes of dims as they are expected."""
    parts = [_part_work(part, sizes) for part in parts_of(op)]
    products, operations = (sum(amounts) for amounts in ([p.products for p in parts], [p.operations for p in parts]))
    return OpWork(products, operations, _moved(op, sizes), any(part.serial for part in parts), times)


def _part_work(op: Op, sizes: TypicalSizes) -> OpWork:
    """The same of a primitive, or of an operator with loops of its own."""
    computation = computation_of(op)
    if computation is None:
        return OpWork(operations=8 * _moved(op, sizes), serial=True)
    elements = _product((*computation.shape, *terms_of(op)), sizes)
    if computation.reduce and computation.combine == "add" and len(op.operands) > 1:
        return OpWork(products=elements)
    return OpWork(operations=elements * max(1, len(computation.body.ops)))


def _moved(op: Op, sizes: TypicalSizes) -> float:
    """Bytes that are read and written."""
    return sum(_product(_elements(v), sizes) for v in (*op.operands, *op.results))


def _block(op: Op) -> Block:
    assert isinstance(op.parent, Block)
    return op.parent


def _elements(value: Value) -> Sequence[Sym | int]:
    """Factors of the bytes of a value; of what is no tensor one."""
    type = value.type
    return (*type.shape, type.dtype.storage.itemsize) if isinstance(type, TensorType) else (1,)


def _product(factors: Sequence[Sym | int], sizes: TypicalSizes) -> float:
    found = 1.0
    known = sizes.medium([f for f in factors if isinstance(f, Sym)])
    for n in (*known, *(f for f in factors if not isinstance(f, Sym))):
        found *= n
    return found


def _sizes_of(args: Sequence[Value]) -> TypicalSizes:
    return typical_sizes(a.type for a in args if isinstance(a.type, TensorType))


def _bytes(values: Sequence[Value]) -> str:
    """Bytes of tensors, as an expression of dims."""
    total: Sym | int = 0
    for value in values:
        if isinstance(value.type, TensorType):
            total = value.type.size * value.type.dtype.storage.itemsize + total
    return str(total)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
