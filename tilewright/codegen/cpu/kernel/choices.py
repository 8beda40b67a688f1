"""Choices among loads whose conditions are the same for all lanes, as those of concatenated tensors: one load from the
place that is chosen, in place of all loads and a choice among their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.codegen.cpu.kernel.indices import Affine, Indices
from tilewright.codegen.cpu.kernel.memory import Buffer, Guard, MemoryAccess, from_memory
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym
from tilewright.loops.analysis.choices import ChoiceTrees, condition_of, defining, parts_of


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one of the loads of a choice reads. `guard` has the conditions that do not follow from its being chosen."""

    op: Op
    buffer: Buffer
    where: Affine
    guard: tuple[Sym, ...]


class ChosenLoads:
    """The choices of a kernel, found where the first of their loads stands, and emitted where the last is made."""

    def __init__(
        self,
        indices: Indices,
        memory: MemoryAccess,
        buffers: Mapping[Value, Buffer],
        address: Callable[[Op], Sym],
    ) -> None:
        self._indices, self._memory = indices, memory
        self._buffers, self._address = buffers, address
        self._trees = ChoiceTrees()
        self._places: dict[Op, dict[Op, _Place] | None] = {}

    def begin(self, load: Op, lanes: int, *, masked: bool) -> bool:
        """Whether a load is left out here, as a choice reads what it would."""
        last = self._trees.last_of(load)
        if last is None:
            return False
        if last not in self._places:
            self._places[last] = None if masked else self._places_of(last, lanes)
        return self._places[last] is not None

    def is_inner(self, op: Op) -> bool:
        """Whether the choice that `op` makes is part of one that is made later."""
        last = self._trees.last_of(op)
        return last is not None and last is not op and self._places.get(last) is not None

    def chosen(self, op: Op, lanes: int) -> Reg | None:
        """The elements that `op`, the last of a choice, chooses; None where it has to choose among values."""
        places = self._places.pop(op, None)
        if places is None:
            return None
        first = next(iter(places.values()))
        dtype = first.buffer.type.dtype
        uniform = first.where.uniform
        shared = all(p.where.uniform == uniform and not p.guard for p in places.values())
        pointer = self._pointer(op, places, lanes, shared)
        if shared:  # what the places have in common moves in inner loops, and the choice then does not
            pointer = self._memory.moved(pointer, dtype, uniform)
        count = lanes if first.where.stride == 1 else 1
        return from_memory(self._memory.plain_load(pointer, dtype, count), dtype)

    def _pointer(self, last: Op, places: Mapping[Op, _Place], lanes: int, shared: bool) -> str:
        found: dict[Op, str] = {}
        for op in reversed([op for op, _ in parts_of(last)]):
            if op.name == "load":
                found[op] = self._place(places[op], lanes, shared)
            else:
                then, otherwise = (found[defining(v)] for v in op.operands[1:])
                flag = self._indices.condition(condition_of(op))
                found[op] = self._memory.text.emit(f"select {flag.typed}, ptr {then}, ptr {otherwise}")
        return found[last]

    def _place(self, place: _Place, lanes: int, shared: bool) -> str:
        uniform = 0 if shared else place.where.uniform
        pointer = self._memory.pointer(place.buffer, place.where.constant, uniform)
        if not place.guard:
            return pointer
        guard = Guard(self._indices.combined(map(self._indices.condition, place.guard)))
        other = place.op.attrs.get("other", 0)
        return self._memory.guarded(pointer, guard, place.buffer.type.dtype, other, lanes)

    def _places_of(self, last: Op, lanes: int) -> dict[Op, _Place] | None:
        """The places that a choice chooses from; None where they are not of one form, or differ between lanes."""
        places: dict[Op, _Place] = {}
        for op, chosen in parts_of(last):
            if op.name != "load":
                continue
            conditions = {*chosen, *op.attrs.get("guard", ())}
            buffer, address = self._buffers[op.operands[0]], self._address(op)
            if any(self._indices.lanes_of(c) > 1 for c in conditions) or not buffer.fixed:
                return None
            where = self._memory.address(buffer, address)
            if where.general is not None or where.stride not in ((0,) if lanes == 1 else (0, 1)):
                return None
            if self._memory.byte_of_table(buffer, address) is not None:
                return None
            guard = tuple(c for c in op.attrs.get("guard", ()) if c not in chosen)
            places[op] = _Place(op, buffer, where, guard)
        kinds = {(p.buffer.type.dtype, p.where.stride) for p in places.values()}
        return places if len(kinds) == 1 else None
