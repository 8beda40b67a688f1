"""Storage: for every value of a program of kernel calls, the memory it lives in.

A program here is a graph-level Func that holds only `constant`, `reshape` (of dense tensors: an alias), `call` and
`return`. Graph outputs are written straight into the caller's arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.memory.plan import ArenaPlan, Lifetime, plan_arena

ALIASES = frozenset({"reshape"})
"""Ops whose result is their operand's memory under another shape."""


@dataclass(frozen=True)
class Place:
    """Memory of a value: `base` is "input", "output", "constant" or "arena"; `index` numbers inputs and outputs,
    `offset` is in bytes (of the arena; 0 elsewhere), `constant` the name of the array."""

    base: Literal["input", "output", "constant", "arena"]
    index: int = 0
    offset: Sym = sym(0)
    constant: str = ""


@dataclass(frozen=True)
class Storage:
    """Where each value lives, and the arena that holds the intermediates."""

    places: dict[Value, Place]
    arena: ArenaPlan


def bytes_of(type: TensorType) -> Sym:
    return type.size * type.dtype.bytes


def assign_storage(func: Func) -> Storage:
    """Places for all values of `func`.

    Every returned value must be the result of a call (see `needs_copy`), so that it can be written in place.
    """
    roots = _alias_roots(func)
    places: dict[Value, Place] = {}
    for k, arg in enumerate(func.args):
        places[arg] = Place("input", k)
    for k, value in enumerate(func.returns):
        places.setdefault(roots[value], Place("output", k))
    steps = {id(op): n for n, op in enumerate(func.body.ops)}
    lifetimes: list[Lifetime] = []
    by_key: dict[int, Value] = {}
    for n, op in enumerate(func.body.ops):
        for value in op.results:
            if op.name == "constant":
                places[value] = Place("constant", constant=op.attrs["name"])
            elif roots[value] is value and value not in places:
                last = _last_use(value, steps)
                by_key[len(lifetimes)] = value
                assert isinstance(value.type, TensorType)
                lifetimes.append(Lifetime(len(lifetimes), bytes_of(value.type), n, max(n, last)))
    arena = plan_arena(lifetimes)
    for key, value in by_key.items():
        places[value] = Place("arena", offset=arena.offsets[key])
    for value, root in roots.items():
        places[value] = places[root]
    return Storage(places, arena)


def _alias_roots(func: Func) -> dict[Value, Value]:
    roots: dict[Value, Value] = {a: a for a in func.args}
    for op in func.body.ops:
        for value in op.results:
            roots[value] = roots[op.operands[0]] if op.name in ALIASES else value
    return roots


def _last_use(value: Value, steps: dict[int, int]) -> int:
    """The last step that reads the value, through aliases."""
    last = -1
    for user in value.users:
        last = max(last, steps[id(user)])
        if user.name in ALIASES:
            last = max(last, _last_use(user.result, steps))
    return last


def needs_copy(func: Func, returned: Sequence[Value]) -> list[int]:
    """Numbers of the returned values that no kernel writes first: inputs, constants, and repeated outputs."""
    roots = _alias_roots(func)
    seen: set[Value] = set()
    found: list[int] = []
    for k, value in enumerate(returned):
        root = roots[value]
        op: Op | None = root.op
        if root in seen or op is None or op.name == "constant":
            found.append(k)
        seen.add(root)
    return found


