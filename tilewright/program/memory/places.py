"""Where the values of a planned program lie: annotations of its calls, and what must hold of them.

A call says with `at` where each of its results lies; all else follows. The main function says how many bytes its arena
has, and which inputs may share the memory of an output (`overwrites`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from types import MappingProxyType

from tilewright.ir.core import Func, Module, Op, Value
from tilewright.ir.sym import ZERO, Sym
from tilewright.ir.text import line_of
from tilewright.ir.types import BufferType
from tilewright.loops.kernel_info import kernel_info
from tilewright.program.memory.storage import Place, Storage
from tilewright.program.memory.views import bytes_of, is_view, part_offsets, parts_of

ARENA, UNSHARED, OVERWRITES = "arena", "unshared", "overwrites"
SCRATCH, OF_THREAD, THREADS = "scratch", "of_thread", "threads"
"""Of a call, where its scratch memory begins in the arena, and the bytes of a thread; of a program whose arena has that
of one thread, the bytes that it takes more for each other one; and of how many threads the arena has it where there is
no room for more."""

Numbers = Callable[[Sym], int | None]
"""Gives what a number of bytes is, or None where it depends on a size that is not known."""

NO_SIZES: Mapping[str, int] = MappingProxyType({})

ZONES = "zones"
"""Of a program with guard zones between the tensors of its arena: the name, the offset and the bytes of each."""


def annotate(main: Func, storage: Storage) -> None:
    """Write down where the planner has put values."""
    for op in main.body.ops:
        if op.name == "call":
            op.attrs["at"] = tuple(storage.places[v] for v in op.results)
            op.attrs.pop(SCRATCH, None)
            if storage.scratch is not None and op in storage.scratch:
                op.attrs[SCRATCH] = storage.scratch[op]
    for name in (OF_THREAD, THREADS):  # of a plan before this one
        main.attrs.pop(name, None)
    main.attrs |= {ARENA: storage.arena.total, UNSHARED: storage.arena.unshared, OVERWRITES: storage.overwrites}
    if storage.scratch is not None:
        main.attrs[OF_THREAD] = storage.of_thread
    if storage.threads:
        main.attrs[THREADS] = storage.threads
    if storage.zones is not None:
        main.attrs[ZONES] = storage.zones


def arena_of(main: Func) -> Sym:
    """The bytes of intermediate results of a planned program, with scratch memory of one thread where that is among
    them."""
    found = main.attrs[ARENA]
    assert isinstance(found, Sym)
    return found


def of_thread(main: Func) -> Sym:
    """The bytes of scratch memory that each thread takes, those of one of which `arena_of` counts."""
    found = main.attrs.get(OF_THREAD, ZERO)
    assert isinstance(found, Sym)
    return found


def is_planned(main: Func) -> bool:
    """Whether the values of a program have places."""
    return ARENA in main.attrs


def places_of(main: Func) -> dict[Value, Place]:
    """The places of all values of a planned program of kernels."""
    found = {a: Place("input", k) for k, a in enumerate(main.args)}
    states = 0
    for op in main.body.ops:
        match op.name:
            case "state":
                found[op.result] = Place("state", states)
                states += 1
            case "read":
                found[op.result] = found[op.operands[0]]
            case "constant":
                found[op.result] = Place("constant", constant=op.attrs["name"])
            case "call":
                found |= zip(op.results, op.attrs["at"], strict=True)
            case _ if is_view(op):
                part, at = parts_of(op)[0]
                found[op.result] = found[part if at.root is op.result else at.root].beyond(at.offset)
    return found


def broken_plan(module: Module, sizes: Mapping[str, int] = NO_SIZES) -> tuple[str, Op] | None:
    """The first call of a planned program that writes over something that is still needed, if only by a call at the
    same time, or beyond the arena; None where there is none, or where offsets depend on sizes that are not known.
    `sizes` are those of dims by name."""
    main = module.main
    number = cache(partial(_number, sizes))
    total = number(main.attrs[ARENA])
    at = places_of(main)
    last: dict[Value, int] = {}
    for op, n in zip(main.body.ops, _ends(main), strict=True):
        last |= dict.fromkeys((*op.operands, *op.results), n)
    last |= {v: -1 for v in last if isinstance(v.type, BufferType)}  # a state itself; what is read of it counts
    live: dict[Value, None] = {}
    for n, op in enumerate(main.body.ops):
        if op.name != "call":
            if op.results and len(op.operands) > 1 and (wrong := _apart(op, at)):
                return wrong, op
        else:
            for k, result in enumerate(op.results):
                if _is_beyond(at[result], result, total, number):
                    return f"writes {_named(result)} beyond the arena", op
                for value in live:
                    needed = last[value] > n or (value in op.operands and not _may_share(op, value, k, at, module))
                    if needed and _overlap(at[result], result, at[value], value, number):
                        wrong = f"writes {_named(result)} over {_named(value)}, which is still needed"
                        return f"{wrong}{_reader(main, value, n)}", op
            needed_now = [v for v in live if last[v] > n or v in op.operands]
            if name := _in_scratch(op, [*needed_now, *op.results], at, main.attrs.get(THREADS, 0), number):
                return f"has scratch memory over {name}, which is needed", op
        live |= dict.fromkeys(op.results)
        live = {v: None for v in live if last[v] > n}
    return None


def _reader(main: Func, value: Value, after: int) -> str:
    """Where a value is read last, if that is behind an op."""
    reader = next((op for op in reversed(main.body.ops[after + 1 :]) if value in op.operands), None)
    if reader is None:
        return ""
    number, line = line_of(main, reader)
    return f": line {number} has `{line}`"


def _ends(main: Func) -> list[int]:
    """For each op its number; for one of several calls at the same time one behind the last of them."""
    ends: list[int] = []
    end, after = 0, None
    for n, op in reversed([*enumerate(main.body.ops)]):
        together = op.attrs.get("concurrent")
        if op.name == "call":
            end, after = (end if together is not None and together == after else n + 1), together
        ends.append(end if op.name == "call" and together is not None else n)
    return ends[::-1]


def _may_share(call: Op, value: Value, result: int, at: Mapping[Value, Place], module: Module) -> bool:
    """Whether a kernel may write its result where it reads a value, which begins there."""
    pairs = kernel_info(module.funcs[call.attrs["kernel"]]).inplace
    slots = [k for k, v in enumerate(call.operands) if v is value]
    return at[value] == at[call.results[result]] and all((k, len(call.operands) + result) in pairs for k in slots)


def _in_scratch(
    call: Op, values: Iterable[Value], at: Mapping[Value, Place], threads: int, number: Numbers
) -> str:  # fmt: skip
    """A value of the arena that does not lie below the scratch memory of a call, nor above that of so many threads
    (0: of any number)."""
    if SCRATCH not in call.attrs:
        return ""
    start, bytes = map(number, call.attrs[SCRATCH])
    for value in values:
        ends = _ends_of(at[value], value, number)
        if at[value].base != "arena" or ends is None or start is None or bytes is None:
            continue
        begin, end = ends
        is_above = threads and begin >= start + threads * bytes
        if end > start and not is_above and end > begin:
            return _named(value)
    return ""


def _named(value: Value) -> str:
    return f"'{value.name}'" if value.name else "a value"


def _number(sizes: Mapping[str, int], e: Sym) -> int | None:
    """A number of bytes; None where it depends on a size that is not known, or is none at these sizes."""
    if e.is_const:
        return e.value
    try:
        return e.evaluate(sizes) if all(v.name in sizes for v in e.vars) else None
    except ZeroDivisionError:
        return None


def _ends_of(place: Place, value: Value, number: Numbers) -> tuple[int, int] | None:
    """The bytes at which a value begins and ends."""
    begin, bytes = number(place.offset), number(bytes_of(value))
    return None if begin is None or bytes is None else (begin, begin + bytes)


def _is_beyond(place: Place, value: Value, total: int | None, number: Numbers) -> bool:
    ends = _ends_of(place, value, number) if place.base == "arena" and total is not None else None
    return ends is not None and total is not None and ends[0] < ends[1] and not 0 <= ends[0] < ends[1] <= total


def _apart(op: Op, at: Mapping[Value, Place]) -> str:
    """What is wrong with the places of the operands of a concat, which follow each other."""
    start = at[op.operands[0]]
    for value, offset in zip(op.operands, part_offsets(op), strict=True):
        if at[value] != start.beyond(offset):
            return f"joins '{value.name}', which does not lie where its part of the result is"
    return ""


def _overlap(one: Place, value: Value, other: Place, of: Value, number: Numbers) -> bool:
    if (one.base, one.index) != (other.base, other.index) or one.base == "constant":
        return False
    first, second = _ends_of(one, value, number), _ends_of(other, of, number)
    if first is None or second is None:
        return False
    (a, b), (c, d) = first, second
    return a < d and c < b and a < b and c < d
