"""One copy of a constant for all that read it: kernels that pick few elements of one, as a lookup of tokens does of the
matrix that is also the last product's, read it as other kernels want it packed.

Who reads all of a constant says how it lies, since that is what takes time; for who picks rows it is an index like any
other. Regions that pick are therefore scheduled behind all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilewright.cost.data_movement import LEAST_SHARED, are_picked
from tilewright.cost.typical import typical_sizes
from tilewright.ir.core import Func, Op, Value, substitute
from tilewright.ir.diag import Remark, ScheduleError
from tilewright.ir.sym import ZERO, Sym, maximum
from tilewright.ir.types import TensorType
from tilewright.loops.analysis.deps import accesses
from tilewright.loops.counts import executions
from tilewright.loops.kernel_info import operands_of
from tilewright.loops.lower import lower_region
from tilewright.loops.storage.pack import pack_argument
from tilewright.loops.storage.packing import Packing
from tilewright.schedule.inlining import plan_of
from tilewright.schedule.sharing.regions import Canonical


def picking_regions(main: Func, regions: Mapping[Op, Canonical]) -> dict[Op, tuple[int, ...]]:
    """The regions that pick a few elements of large constants which others read as well, in program order, with the
    operands that these are."""
    readers: dict[Value, list[Op]] = {}
    for op in main.body.ops:
        for v in dict.fromkeys(op.operands):
            if is_large(v):
                readers.setdefault(v, []).append(op)
    shared = {v for v, ops in readers.items() if len(ops) > 1}
    if not shared:
        return {}
    sizes = typical_sizes(arg.type for arg in main.args if isinstance(arg.type, TensorType))
    counts: dict[Any, list[Sym]] = {}
    found: dict[Op, tuple[int, ...]] = {}
    for region, form in regions.items():
        if shared.isdisjoint(region.operands):
            continue
        if form.key not in counts:
            counts[form.key] = elements_read(form.detached())
        operands = tuple(k for k, v in enumerate(region.operands) if v in shared)
        read = sizes.medium(substitute(counts[form.key][k], form.actual()) for k in operands)
        if are_picked(sum(read), sum(_bytes(region.operands[k]) for k in operands)):
            found[region] = operands
    return found


def is_large(value: Value) -> bool:
    """Whether it is a constant of which a second copy would matter."""
    return value.op is not None and value.op.name == "constant" and _bytes(value) >= LEAST_SHARED


def elements_read(region: Op) -> list[Sym]:
    """How many elements a region reads of each operand by the most frequent of its loads; others mostly read the same
    ones again, which are in a cache then."""
    func = lower_region(region, "counted", plan_of(region)).func
    times = executions(func)
    found: dict[Value, Sym] = {}
    for access in accesses(func.body):
        found[access.buffer] = maximum(found.get(access.buffer, ZERO), times[access.op])
    return [found.get(v, ZERO) for v in operands_of(func)]


def chosen_packings(
    region: Op, picked: Sequence[int], packed: Iterable[tuple[str, Packing]], readers: Mapping[str, int]
) -> dict[int, Packing]:
    """How the operands that a region picks from lie for others, where nothing else reads these constants as they were;
    `readers` has how often they are still read so, by regions that pick."""
    chosen: dict[str, Packing] = {}
    for name, packing in packed:
        chosen.setdefault(name, packing)
    names = {k: v.op.attrs["name"] for k, v in enumerate(region.operands) if k in picked and v.op is not None}
    return {k: chosen[name] for k, name in names.items() if name in chosen and not readers.get(name)}


def expect_packed(func: Func, packings: Mapping[int, Packing], remarks: list[Remark]) -> None:
    """Let a kernel that was just lowered read operands as they lie for others; one that it cannot read so, it reads as
    it was, and `remarks` say why there are two copies."""
    operands = operands_of(func)
    for k, packing in packings.items():
        try:
            pack_argument(func, operands[k], packing)
        except ScheduleError as error:
            remarks.append(Remark("one-copy", func.name, f"it reads a copy of its own: {error}"))


def _bytes(value: Value) -> int:
    type = value.type
    if not isinstance(type, TensorType) or not type.is_static:
        return 0
    return int(type.size.value) * type.dtype.bytes
