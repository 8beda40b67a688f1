"""What operators of a graph do, by which their time on a machine is expected."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.cost.machine.placement import OpWork, device_seconds, host_seconds
from tilewright.cost.typical import TypicalSizes, typical_sizes
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.traits.work import computation_of, parts_of, terms_of
from tilewright.target.machine import Machine
from tilewright.target.target import Target


def seconds_on(op: Op, machine: Machine, sizes: TypicalSizes) -> float | None:
    """Expected of a kernel of ours for an operator; None for machines of which that is not known."""
    if isinstance(machine, Target):
        return host_seconds(work_of(op, sizes), machine)
    return None if machine.link is None else device_seconds(work_of(op, sizes), machine.link)


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
    elements = size_of((*computation.shape, *terms_of(op)), sizes)
    if computation.reduce and computation.combine == "add" and len(op.operands) > 1:
        return OpWork(products=elements)
    return OpWork(operations=elements * max(1, len(computation.body.ops)))


def _moved(op: Op, sizes: TypicalSizes) -> float:
    """Bytes that are read and written."""
    return sum(size_of(elements_of(v), sizes) for v in (*op.operands, *op.results))


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
