"""Storage: for every value of a program of kernel calls, the memory it lives in.

A program here is a graph-level Func that holds only `constant`, `call`, `return` and the views of `views.py`,
which need no code. Graph outputs are written straight into the caller's arrays. A result takes the place of an
argument of its kernel that is not needed any more, where the kernel allows it. Scratch memory of kernels lies in the
arena, too, as long as they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.sym import Sym, maximum, sym
from tilewright.ops.traits.derive import is_alias
from tilewright.program.memory.effort import FAST, PlanEffort
from tilewright.program.memory.plan import (
    ArenaPlan,
    Lifetime,
    aligned,
    bytes_needed,
    plan_apart,
    plan_arena,
    plan_for_threads,
    typical,
    unshared_bytes,
)
from tilewright.program.memory.views import Location, bytes_of, locate

Pairs = Sequence[tuple[int, int]]
"""Positions of an operand and of a result, counted through both, that may lie in the same memory."""

Plan = Callable[[Sequence[Lifetime]], ArenaPlan]

NONE_INPLACE: Mapping[str, Pairs] = MappingProxyType({})
NO_PLAN: Mapping[Value, Location] = MappingProxyType({})
NO_SCRATCH: Mapping[Op, Sym] = MappingProxyType({})


@dataclass(frozen=True)
class Place:
    """Memory of a value: `base` is "input", "output", "constant" or "arena", "state" for what a state holds, and "next"
    for memory beside it that becomes the state's after the call; `index` numbers inputs, outputs and states, `offset`
    is in bytes, `constant` the name of the array."""

    base: Literal["input", "output", "constant", "arena", "state", "next"]
    index: int = 0
    offset: Sym = sym(0)
    constant: str = ""

    def beyond(self, bytes: Sym) -> Place:
        """So many bytes behind this place."""
        return replace(self, offset=self.offset + bytes)


@dataclass(frozen=True)
class Storage:
    """Where each value lives, and the arena that holds the intermediates. `overwrites` are numbers of inputs that are
    right in the memory of an output, and of these: whoever needs such an input no longer may give the same memory for
    both. Of a plan with guard zones, `zones` are the name, the offset and the bytes of each tensor between them. Where
    scratch memory lies in the arena, `scratch` has its offset in it and the bytes of a thread for the calls that have
    some, and `of_thread` is what a call takes more for each thread but the first; where there is room for so many
    `threads` and no more (0: any number), nothing."""

    places: dict[Value, Place]
    arena: ArenaPlan
    overwrites: tuple[tuple[int, int], ...] = ()
    zones: tuple[tuple[str, Sym, Sym], ...] | None = None
    scratch: dict[Op, tuple[Sym, Sym]] | None = None
    of_thread: Sym = sym(0)
    threads: int = 0


def assign_storage(
    func: Func, inplace: Mapping[str, Pairs] = NONE_INPLACE, *, plan: Plan | None = None, effort: PlanEffort = FAST,
    apart: bool = False, scratch: Mapping[Op, Sym] = NO_SCRATCH, threads: int = 0,
) -> Storage:  # fmt: skip
    """Places for all values of `func`.

    Every returned value must be the result of a call (see `needs_copy`), so that it can be written in place.
    `inplace` tells by names of kernels which results may lie where an operand does. A simpler `plan` has results
    nowhere but in memory of their own. With `apart` no tensor shares memory with another one, and guard zones lie
    between those of the arena. `scratch` are the bytes of scratch memory of one thread in calls, which is in the arena
    then, if there is neither: above all tensors of its step, or of so many `threads` wherever it fits.
    """
    assignment = Assignment(func, inplace, scratch=scratch)
    if apart:
        return assignment.apart()
    return assignment.run(effort, threads) if plan is None else assignment.planned(plan)


def _maker(value: Value) -> str:
    return f"a result of {value.op.loc}" if value.op is not None else "a value"


def planned_bytes(func: Func, planned: Mapping[Value, Location] = NO_PLAN) -> int:
    """The most bytes that are needed at once for typical dims, before results take the place of arguments; for
    `planned` see `locate`."""
    return bytes_needed(Assignment(func, NONE_INPLACE, planned).lifetimes({}).values())


def lifetimes_of(func: Func) -> tuple[tuple[Lifetime, ...], dict[int, Op]]:
    """The tensors that need memory of the arena where each has memory of its own, and an op of each step."""
    assignment = Assignment(func, NONE_INPLACE)
    return tuple(assignment.lifetimes({}).values()), dict(assignment.numbered())


class Assignment:
    """Roots of values, and the steps between which they are needed; a root is a value with memory of its own."""

    def __init__(
        self, func: Func, inplace: Mapping[str, Pairs], planned: Mapping[Value, Location] = NO_PLAN,
        scratch: Mapping[Op, Sym] = NO_SCRATCH,
    ) -> None:  # fmt: skip
        self.func = func
        self.inplace = inplace
        self.locations = locate(func, planned)
        self.first: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        for n, op in self.numbered():
            for value in (*op.operands, *op.results):
                root = self.locations[value].root
                self.first.setdefault(root, n)
                self.last[root] = n
        self.scratch = scratch
        self.fixed = self._fixed_places()

    def numbered(self) -> Iterator[tuple[int, Op]]:
        """The ops with their steps; calls that run at the same time have one step."""
        step, before = -1, None
        for op in self.func.body.ops:
            concurrent = op.attrs.get("concurrent")
            step += concurrent is None or concurrent != before
            before = concurrent
            yield step, op

    def run(self, effort: PlanEffort, threads: int = 0) -> Storage:
        """The plan with results in the place of arguments, unless it needs more memory: a tensor that lives longer
        can be harder to pack."""
        apart, homes = self.lifetimes({}), self.overwrites()
        chosen, scratch = self.lifetimes(homes), self.scratch_at_steps()
        counted = {step: size * (threads or 1) for step, size in scratch.items()}

        def planned(lifetimes: Mapping[Value, Lifetime]) -> ArenaPlan:
            held = tuple(lifetimes.values())
            return plan_for_threads(held, effort, scratch, threads) if threads else plan_arena(held, effort, scratch)

        arena = planned(chosen)
        if homes and typical(arena.total) > bytes_needed(apart.values(), counted):
            other = planned(apart)
            if typical(other.total) < typical(arena.total):
                arena, chosen, homes = other, apart, {}
        unshared = unshared_bytes(apart.values()) + maximum(0, *dict.fromkeys(counted.values()))
        found = self._storage(replace(arena, unshared=unshared), chosen, homes)
        if not scratch:  # of nobody, or not told: then it lies behind the arena
            return found
        places = {op: (arena.scratch[n], scratch[n]) for n, op in self.numbered() if op in self.scratch}
        of_thread = sym(0) if threads else maximum(0, *dict.fromkeys(scratch.values()))
        return replace(found, scratch=places, of_thread=of_thread, threads=threads if places else 0)

    def scratch_at_steps(self) -> dict[int, Sym]:
        """Bytes of scratch memory of one thread at the steps that need some; of calls at the same time the most."""
        found: dict[int, Sym] = {}
        for n, op in self.numbered():
            if (size := self.scratch.get(op)) is not None:
                found[n] = maximum(found.get(n, sym(0)), aligned(size))
        return found

    def planned(self, plan: Plan) -> Storage:
        """As a plan has it."""
        lifetimes = self.lifetimes({})
        return self._storage(plan(tuple(lifetimes.values())), lifetimes, {})

    def apart(self) -> Storage:
        """With guard zones between the tensors of the arena."""
        storage = self.planned(plan_apart)
        held = ((root.name or _maker(root), lifetime) for root, lifetime in self.lifetimes({}).items())
        return replace(storage, zones=tuple((name, storage.arena.offsets[t.key], t.size) for name, t in held))

    def _storage(
        self, arena: ArenaPlan, chosen: Mapping[Value, Lifetime], homes: Mapping[Value, Value]
    ) -> Storage:
        places: dict[Value, Place] = {}
        for value, at in self.locations.items():
            base = self.fixed.get(at.root)
            if base is None:
                base = Place("arena", offset=arena.offsets[chosen[homes.get(at.root, at.root)].key])
            places[value] = base.beyond(at.offset)
        return Storage(places, arena, self._overwritten_inputs())

    def _overwritten_inputs(self) -> tuple[tuple[int, int], ...]:
        """Inputs of which a call that writes an output is the last to read anything; each input and each output
        once."""
        found: dict[int, int] = {}
        for n, op in self.numbered():
            for i, o in self.inplace.get(op.attrs["kernel"], ()) if op.name == "call" else ():
                source, result = op.operands[i], op.results[o - len(op.operands)]
                root = self.locations[source].root
                place, target = self.fixed.get(root), self.fixed.get(result)
                if place is None or place.base != "input" or target is None or target.base != "output":
                    continue
                is_free = place.index not in found and target.index not in found.values()
                if is_free and self._is_last(op, n, source, result):
                    found[place.index] = target.index
        return tuple(found.items())

    def _fixed_places(self) -> dict[Value, Place]:
        """Places outside of the arena."""
        places: dict[Value, Place] = {a: Place("input", k) for k, a in enumerate(self.func.args)}
        for op in self.func.body.ops:
            if op.name == "constant":
                places[op.result] = Place("constant", constant=op.attrs["name"])
        for k, value in enumerate(self.func.returns):
            places.setdefault(self.locations[value].root, Place("output", k))
        return places | self._places_of_states(places)

    def _places_of_states(self, others: Mapping[Value, Place]) -> dict[Value, Place]:
        """States are where they are; what updates one is written into it by its kernel, or into memory beside it."""
        places: dict[Value, Place] = {}
        numbers: dict[Value, int] = {}
        for op in self.func.body.ops:
            if op.name == "state":
                numbers[op.result] = len(numbers)
                places[op.result] = Place("state", numbers[op.result])
            elif op.name == "read":
                places[op.result] = places[op.operands[0]]
        for op in self.func.body.ops:
            if op.name == "update":
                state, value = op.operands
                root = self.locations[value].root
                assert root not in others, "the outputs of a graph are copies of their own (`needs_copy`)"
                where: Literal["state", "next"] = "state" if self._may_update(state, root) else "next"
                places.setdefault(root, Place(where, numbers[state]))
        return places

    def _may_update(self, state: Value, value: Value) -> bool:
        """Whether the kernel of a value may write it where the state lies: nobody needs the state afterwards."""
        reads = [op.result for op in state.users if op.name == "read"]
        step = self.first[value]
        if all(self.last[read] < step for read in reads):
            return True
        call = value.op
        if len(reads) != 1 or call is None or call.name != "call":
            return False
        return any(
            self.locations[call.operands[i]].root is reads[0]
            and call.results[o - len(call.operands)] is value
            and self._is_last(call, step, call.operands[i], value)
            for i, o in self.inplace.get(call.attrs["kernel"], ())
        )

    def lifetimes(self, homes: Mapping[Value, Value]) -> dict[Value, Lifetime]:
        """When the roots without a fixed place are needed; `homes` lie in the memory of an earlier one."""
        found: dict[Value, Lifetime] = {}
        for root, first in self.first.items():
            if root in self.fixed:
                continue
            home, last = homes.get(root, root), self.last[root]
            known = found.get(home)
            if known is None:
                found[home] = Lifetime(len(found), bytes_of(home), first, last)
            else:
                found[home] = replace(known, first=min(known.first, first), last=max(known.last, last))
        return found

    # Results in the place of arguments

    def overwrites(self) -> dict[Value, Value]:
        """Results that take the place of an argument, and the first of the roots that had that memory."""
        homes: dict[Value, Value] = {}
        replaced: set[Value] = set()
        for n, op in self.numbered():
            for i, o in self.inplace.get(op.attrs["kernel"], ()) if op.name == "call" else ():
                source, result = op.operands[i], op.results[o - len(op.operands)]
                root = self.locations[source].root
                if (
                    root not in replaced
                    and result not in homes
                    and self._may_overwrite(op, n, source, result)
                ):
                    replaced.add(root)
                    homes[result] = homes.get(root, root)
        return homes

    def reusable(self, op: Op) -> Iterator[tuple[Value, Value]]:
        """Pairs of a tensor that `op` reads and one that may take its memory, where nobody needs the former later."""
        if op.name != "call" or "concurrent" in op.attrs:
            return
        for i, o in self.inplace.get(op.attrs["kernel"], ()):
            source, result = op.operands[i], op.results[o - len(op.operands)]
            root = self.locations[source].root
            if root not in self.fixed and result not in self.fixed and self._is_whole(op, source, result):
                yield root, result

    def _may_overwrite(self, call: Op, step: int, source: Value, result: Value) -> bool:
        """Whether both are whole tensors of the arena, and the call is the last to need the argument."""
        root = self.locations[source].root
        return root not in self.fixed and result not in self.fixed and self._is_last(call, step, source, result)

    def _is_last(self, call: Op, step: int, source: Value, result: Value) -> bool:
        """Whether both are whole tensors, the call is the last to need the argument, and reads it under no other name.
        Of calls at the same time none is the last."""
        if "concurrent" in call.attrs:
            return False
        return self.last[self.locations[source].root] == step and self._is_whole(call, source, result)

    def _is_whole(self, call: Op, source: Value, result: Value) -> bool:
        """Whether both are whole tensors of the same bytes, and the call reads the argument under no other name."""
        root = self.locations[source].root
        if self.locations[result] != Location(result) or bytes_of(root) != bytes_of(result):
            return False
        return sum(self.locations[v].root is root for v in call.operands) == 1


def needs_copy(func: Func, returned: Sequence[Value]) -> list[int]:
    """Numbers of the returned values that no kernel writes first: inputs, constants, and repeated outputs.

    `func` need not be fused yet: only reshapes are taken for views.
    """
    seen: set[Value] = set()
    found: list[int] = []
    for k, value in enumerate(returned):
        root = value
        while root.op is not None and is_alias(root.op):
            root = root.op.operands[0]
        if root in seen or root.op is None or root.op.name == "constant":
            found.append(k)
        seen.add(root)
    return found
