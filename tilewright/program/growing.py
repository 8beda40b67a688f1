"""States that grow: of which a call reads only what this call and those before it have written.

    count' = count + n;   state' = put(state, rows, at=(.., count, ..));   reads of state'[.., 0 : count + n, ..]

Such a state is filled up to the position that another one, its counter, holds. What lies behind has no meaning: it need
not be there, is not copied with the state, and may be forgotten by setting the counter.

Where all reads begin so many rows before the counter or later, as those of attention with a window do, what lies before
these has no meaning any more, either.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.core import Module, Op, Value
from tilewright.ir.sym import Sym, ge0, le, sym
from tilewright.ops.define.symbolic import Values

PUT = "put"
SLICE = "slice"


Growth = tuple[int, str, int]
"""The axis along which a state grows, the name of its counter, and how many rows before it calls read; -1 for all."""


def growing(module: Module, states: Mapping[str, tuple[Value, Value]]) -> dict[str, Growth]:
    """The states that grow, of some by name, each an argument of the main function and what it becomes. A `put` of rows
    writes at the counter, which ends where they end, and all else reads what lies before that end."""
    values = Values(module)
    counts = {name: span for name, pair in states.items() if (span := _counted(values, *pair)) is not None}
    found: dict[str, Growth] = {}
    for name, (state, following) in states.items():
        write = following.op
        if write is None or write.name != PUT or write.operands[0] is not state or state.users != [write]:
            continue
        axis = _axis(write)
        for counter, (start, end) in counts.items():
            if axis is not None and _grows(write, axis, start, end):
                found[name] = (axis, counter, _window(write, axis, start))
    return found


def _counted(values: Values, state: Value, following: Value) -> tuple[Sym, Sym] | None:
    """What a state of one integer holds before and after a call, where both follow from dims and itself."""
    if not state.tensor.is_static or state.tensor.size != 1 or not state.tensor.dtype.is_int:
        return None
    known = [values.of(value) for value in (state, following)]
    found = [k.elements.reshape(-1)[0] for k in known if k is not None and not k.conditions and not k.is_number]
    return (found[0], found[1]) if len(found) == 2 and all(isinstance(x, Sym) for x in found) else None


def _axis(write: Op) -> int | None:
    """The only axis along which the rows that are put are not the whole."""
    whole, part = (value.tensor.shape for value in write.operands)
    differing = [k for k, (d, n) in enumerate(zip(whole, part, strict=True)) if d is not n]
    return differing[0] if len(differing) == 1 else None


def _grows(write: Op, axis: int, start: Sym, end: Sym) -> bool:
    if any(position != (start if k == axis else 0) for k, position in enumerate(write.attrs["at"])):
        return False
    if end != start + write.operands[1].tensor.shape[axis]:
        return False
    readers = _readers(write)
    is_output = len(write.result.users) - len(readers) > 1  # beside what it becomes
    return not is_output and all(_reads_before(user, axis, end) for user in readers)


def _readers(write: Op) -> list[Op]:
    return [user for user in write.result.users if user.name != "return"]


def _reads_before(user: Op, axis: int, end: Sym) -> bool:
    if user.name != SLICE or any(step != 1 for step in user.attrs.get("steps", ())):
        return False
    start, size = (sym(user.attrs[name][axis]) for name in ("starts", "sizes"))
    return _holds(ge0(start)) and _holds(le(start + size, end))


def _window(write: Op, axis: int, counted: Sym) -> int:
    """How many rows before the counter are read at most; -1 where that is not known."""
    widest = 0
    for user in _readers(write):
        start = sym(user.attrs["starts"][axis])
        bounds = [start, *(start.args if start.kind == "max" else ())]  # it is as far as the greatest of these at least
        rows = [(counted - bound).value for bound in bounds if (counted - bound).is_const]
        if not rows:
            return -1
        widest = max(widest, min(rows))
    return widest


def _holds(condition: Sym) -> bool:
    return condition.is_const and condition.value == 1
