"""Where the buffers of a kernel lie in the memories of a machine, and whether they fit.

A buffer is there from its `alloc` to the end of its block. Buffers of a memory follow each other, each aligned; where
threads of a level below that of the memory allocate, each of them has its own. Of a memory that has room for all, those
of unknown size have no place before the sizes of a call are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir.core import Block, Func, Op
from tilewright.ir.sym import Sym, maximum, sym, upper
from tilewright.loops.edit import buffer_type, extent_of, ranges_at
from tilewright.target.machine import Machine, Memory


@dataclass(frozen=True, eq=False)
class Slot:
    """Where a buffer lies: bytes from the start of its memory, and how many it takes with the copies of the threads
    that share the memory."""

    alloc: Op
    start: int
    size: int


class _TooLarge(Exception):
    """A memory that overflows: the alloc that does not fit, and what is wrong."""


def slots_of(func: Func, machine: Machine) -> dict[Op, Slot] | tuple[str, Op]:
    """The place of each buffer that `func` allocates, or what does not fit and its alloc."""
    found: dict[Op, Slot] = {}
    try:
        _place(func.body, machine, {}, found)
    except _TooLarge as problem:
        message, alloc = problem.args
        return message, alloc
    return found


def _place(block: Block, machine: Machine, live: dict[str, list[Slot]], found: dict[Op, Slot]) -> None:
    here = {name: list(slots) for name, slots in live.items()}
    for op in block.ops:
        if op.name == "alloc":
            space = buffer_type(op.result).space  # the rule of alloc has looked at that
            memory = next(m for m in machine.buffer_memories if m.name == space)
            if memory.bytes is None and not buffer_type(op.result).size.is_const:
                continue
            slots = here.setdefault(memory.name, [])
            found[op] = _slot(op, memory, machine, slots)
            slots.append(found[op])
        for inner in op.blocks:
            _place(inner, machine, here, found)


def _slot(alloc: Op, memory: Memory, machine: Machine, before: list[Slot]) -> Slot:
    type = buffer_type(alloc.result)
    elements = type.size.value if type.size.is_const else _most(alloc)
    one = _aligned(elements * type.dtype.bytes, memory.align)
    start = before[-1].start + before[-1].size if before else 0
    slot = Slot(alloc, start, one * _copies(alloc, memory, machine))
    if memory.bytes is not None and start + slot.size > memory.bytes:
        listed = "; ".join(map(_told, [*before, slot]))
        message = (
            f"memory '{memory.name}' has {memory.bytes} bytes, and {start + slot.size} are needed here: {listed}; "
            "use smaller tiles, or allocate in inner loops what is not needed at the same time"
        )
        raise _TooLarge(message, alloc)
    return slot


def _copies(alloc: Op, memory: Memory, machine: Machine) -> int:
    """How many threads share an instance of the memory and allocate this buffer at the same time."""
    depth = -1 if not memory.level else machine.level(memory.level)
    assert depth is not None
    below = {level.name: level.count for level in machine.levels[depth + 1 :]}
    around = ranges_at(alloc)
    counts = []
    holder = alloc.parent.parent if alloc.parent else None
    while isinstance(holder, Op):
        level = holder.attrs.get("level") if holder.name == "for" else None
        if level in below:
            extent = extent_of(holder)
            counts.append(min(below[level], extent.value) if extent.is_const else below[level])
        holder = holder.parent.parent if holder.parent else None
    return prod(counts) if around else 1


def _most(alloc: Op) -> int:
    """The largest number of elements; `_TooLarge` where it has no bound."""
    type = buffer_type(alloc.result)
    total = 1
    for size in type.shape:
        bound: Sym | None = upper(size, ranges_at(alloc))
        limit = maximum(sym(0), bound).bounds[1] if bound is not None else None
        if limit is None:
            message = f"the size of buffer '{alloc.result.name}' ({type}) has no bound; tile the loops around it"
            raise _TooLarge(message, alloc)
        total *= limit
    return total


def _aligned(size: int, align: int) -> int:
    return -(-size // align) * align


def _told(slot: Slot) -> str:
    value = slot.alloc.result
    return f"'{value.name or '?'}' ({value.type}) takes {slot.size}"
