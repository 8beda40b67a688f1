"""How many words of one bank of shared memory threads need at once, counted from loop text: 32 banks of 4 bytes, of
which each gives one word at a time, to all threads that ask for it (CUDA C++ programming guide, shared memory).

Threads of a warp are served together, as many as ask for 128 bytes: 32 with 4 bytes each or less, 8 with 16 bytes each.
What is counted is the first iteration of all loops that are none of threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from tilewright.codegen.ptx.warps import MEMBER, pieces_of
from tilewright.ir.core import Func, Op
from tilewright.ir.sym import affine_in
from tilewright.loops.edit import (
    address_of,
    body_of,
    buffer_type,
    enclosing_loops,
    extent_of,
    is_in_run,
    is_loop,
    kind_of,
    loop_var,
)
from tilewright.loops.machine.copies import copy_in
from tilewright.target.gpu.tensor_cores import WARP, WARP_ROW
from tilewright.target.gpu.webgpu import ROW, SHARED, THREAD
from tilewright.target.machine import COPY

LANES, BANKS, WORD, PIECE = 32, 32, 4, 16
_LEVELS = (THREAD, ROW, WARP, WARP_ROW)
"""Of threads in a group, those first whose threads follow each other."""


def words_of_one_bank(func: Func) -> list[tuple[str, int]]:
    """For each access to shared memory, what it is and the most words of one bank that it needs at once; 1 is none too
    many."""
    threads = _threads(func)
    return [(_name(op), max(map(_most, _served(op, threads)))) for op in func.body.walk() if _is_shared(op)]


def _is_shared(op: Op) -> bool:
    if op.name == "run":
        return any(map(_touches, op.walk()))
    return _touches(op) and not is_in_run(op) and any("level" in o.attrs for o in _inner(op))


def _touches(op: Op) -> bool:
    return op.name in ("load", "store") and buffer_type(op.operands[-1]).space == SHARED


def _inner(op: Op) -> list[Op]:
    return [o for o in enclosing_loops(op) if o.attrs.get("level", THREAD) in _LEVELS]


def _name(op: Op) -> str:
    if op.name == "run":
        touched = next(o.operands[-1] for o in op.walk() if _touches(o))
        return f"{op.attrs['intrinsic']} {buffer_type(touched).shape}"
    return f"{op.name} {op.operands[-1].buffer}"


def _threads(func: Func) -> Mapping[str, int]:
    """Threads of a group along each level."""
    found = dict.fromkeys(_LEVELS, 1)
    for op in func.body.walk():
        if is_loop(op) and op.attrs.get("level") in _LEVELS:
            found[op.attrs["level"]] = max(found[op.attrs["level"]], extent_of(op).value)
    return found


def _served(op: Op, threads: Mapping[str, int]) -> Iterator[list[int]]:
    """The bytes at which threads that are served together begin, with all that each of them asks for."""
    if op.name != "run":
        yield from _of_elements(op, threads)
    elif op.attrs["intrinsic"] == COPY:
        yield from _of_copy(op, prod(threads.values()))
    else:
        yield from _of_matrices(op)


def _of_elements(op: Op, threads: Mapping[str, int]) -> Iterator[list[int]]:
    size, run = buffer_type(op.operands[-1]).dtype.bytes, 1
    for loop in reversed(_inner(op)):  # elements that follow each other are read at a time
        moves = affine_in(address_of(op), loop_var(loop))
        if kind_of(loop) == "unroll" and moves is not None and moves[0] == run and size * run * 4 <= PIECE * 4:
            run *= extent_of(loop).value
    each = min(PIECE, size * run)
    lanes = []
    for lane in range(min(LANES, prod(threads.values()))):
        places, rest = {}, lane
        for level in _LEVELS:
            places[level], rest = rest % threads[level], rest // threads[level]
        env = {loop_var(o).name: places.get(o.attrs.get("level", ""), 0) for o in enclosing_loops(op)}
        lanes.append(size * address_of(op).evaluate(env) // each * each)
    yield from _phases(lanes, each)


def _of_copy(run: Op, threads: int) -> Iterator[list[int]]:
    copy = copy_in(body_of(run).ops)
    assert not isinstance(copy, str)
    around = {loop_var(o).name: 0 for o in enclosing_loops(copy.store)}
    size = buffer_type(copy.target).dtype.bytes
    places, _ = next(iter(pieces_of(copy, threads)))
    at = address_of(copy.store).subs(places)
    yield from _phases([size * at.evaluate(around | {MEMBER.name: m}) for m in range(min(LANES, threads))], PIECE)


def _of_matrices(run: Op) -> Iterator[list[int]]:
    """Rows of 16 bytes, eight at a time."""
    load = next(op for op in run.walk() if op.name == "load")
    size, loops = buffer_type(load.operands[0]).dtype.bytes, [o for o in run.walk() if is_loop(o)]
    around = {loop_var(o).name: 0 for o in enclosing_loops(load)}
    (along,) = [o for o in loops if affine_in(address_of(load), loop_var(o))[0] == 1]  # type: ignore[index]
    (rows,) = [o for o in loops if o is not along]
    for first in range(0, extent_of(rows).value, 8):
        places = [around | {loop_var(rows).name: first + k} for k in range(8)]
        yield [b for p in places for b in _bytes(size * address_of(load).evaluate(p), PIECE)]


def _phases(starts: Sequence[int], each: int) -> Iterator[list[int]]:
    count = min(LANES, LANES * WORD // max(each, WORD))
    for first in range(0, len(starts), count):
        yield [b for start in starts[first : first + count] for b in _bytes(start, each)]


def _bytes(start: int, each: int) -> Iterable[int]:
    return range(start, start + each, WORD) if each >= WORD else (start,)


def _most(at: Iterable[int]) -> int:
    words: dict[int, set[int]] = defaultdict(set)
    for byte in at:
        words[byte // WORD % BANKS].add(byte // WORD)
    return max(map(len, words.values()))
