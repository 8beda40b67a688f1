"""The memory that a call of a planned program takes, all but weights and code."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.core import Func, Module, Value
from tilewright.ir.sym import Sym, maximum, sym
from tilewright.program.memory.places import OF_THREAD, THREADS, arena_of, places_of
from tilewright.program.memory.scratch import scratch_of_calls
from tilewright.program.memory.views import bytes_of


def bytes_of_call(module: Module, threads: int) -> Sym:
    """Bytes of the inputs, the outputs, the arena, the scratch memory of so many threads, and the states (twice, where
    the next one is written beside it)."""
    return given_bytes(module.main) + arena_of(module.main) + _of_thread(module) * (threads - _counted(module))


def most_threads(module: Module, most: int) -> int:
    """How many threads, whose scratch memory counts, a call may have that takes `most` bytes; 0 for any number."""
    if found := room_for(module.main):
        return found
    scratch = _of_thread(module).value
    return (most - bytes_of_call(module, 0).value) // scratch if scratch else 0


def room_for(main: Func) -> int:
    """For the scratch memory of how many threads there is room; 0 for any number."""
    found = main.attrs.get(THREADS, 0)
    assert isinstance(found, int)
    return found


def _counted(module: Module) -> int:
    """Of how many threads scratch memory is in the arena."""
    return room_for(module.main) or int(OF_THREAD in module.main.attrs)


def _of_thread(module: Module) -> Sym:
    """Bytes of scratch memory that each further thread takes."""
    found = module.main.attrs.get(OF_THREAD)
    return found if isinstance(found, Sym) else maximum(0, *dict.fromkeys(scratch_of_calls(module).values()))


def given_bytes(main: Func) -> Sym:
    """Bytes of what callers see: the inputs, the outputs and the states of a program."""
    states = [op.result for op in main.body.ops if op.name == "state"]
    beside = {p.index for p in places_of(main).values() if p.base == "next"}
    swapped = [state for k, state in enumerate(states) if k in beside]
    return _total((*main.args, *main.returns, *states, *swapped))


def _total(values: Iterable[Value]) -> Sym:
    return sum(map(bytes_of, values), sym(0))
