"""What operators of a graph do, by which their time on a machine is expected."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.cost.machine.placement import OpWork, device_seconds, host_seconds
from tilewright.cost.typical import TypicalSizes, typical_sizes
from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.target.machine import Machine
from tilewright.target.target import Target


def seconds_on(op: Op, machine: Machine, sizes: TypicalSizes) -> float | None:
    """Expected of a kernel of ours for an operator; None for machines of which that is not known."""
    if isinstance(machine, Target):
        return host_seconds(work_of(op, sizes), machine)
    return None if machine.link is None else device_seconds(work_of(op, sizes), machine.link)


def work_of(op: Op, sizes: TypicalSizes, times: int = 1) -> OpWork:
    """What an operator does, with sizes of dims as they are expected."""
    moved = sum(size_of(elements_of(v), sizes) for v in (*op.operands, *op.results))
    operator = OPERATORS[op.name]
    if operator.kind == "irregular":
        return OpWork(operations=8 * moved, bytes=moved, serial=True, times=times)
    if operator.kind == "composite":
        block = Block([v.type for v in op.operands])
        with Builder(block, Module()):
            operator.expand(block.args, op.attrs)
        parts = [work_of(inner, sizes) for inner in block.ops if inner.name in OPERATORS]
        serial = any(part.serial for part in parts)
        return OpWork(
            sum(part.products for part in parts), sum(part.operations for part in parts), moved, serial, times
        )
    compute = operator.compute([v.tensor for v in op.operands], op.attrs)
    elements = size_of([*compute.shape, *(extent for _, extent in compute.reduce)], sizes)
    if compute.reduce and compute.combine == "add" and len(op.operands) > 1:
        return OpWork(products=elements, bytes=moved, times=times)
    return OpWork(operations=elements * max(1, len(compute.body.ops)), bytes=moved, times=times)


def elements_of(value: Value) -> Sequence[Sym | int]:
    """Factors of the bytes of a value; of what is no tensor one."""
    type = value.type
    return (*type.shape, type.dtype.storage.itemsize) if isinstance(type, TensorType) else (1,)


def size_of(factors: Sequence[Sym | int], sizes: TypicalSizes) -> float:
    """Their product, with sizes of dims as they are expected."""
    found = 1.0
    known = sizes.medium([f for f in factors if isinstance(f, Sym)])
    for n in (*known, *(f for f in factors if not isinstance(f, Sym))):
        found *= n
    return found


def sizes_of(args: Sequence[Value]) -> TypicalSizes:
    """The sizes that are expected of the dims of some values."""
    return typical_sizes(a.type for a in args if isinstance(a.type, TensorType))
