"""Loads and stores of buffers: how a lane's address moves decides between vectors, shuffles, gathers and
scatters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tilewright.codegen.cpu.kernel.byte_tables import SIZE as TABLE_SIZE
from tilewright.codegen.cpu.kernel.byte_tables import looked_up
from tilewright.codegen.cpu.kernel.convert import wrap
from tilewright.codegen.cpu.kernel.dots import groups_of
from tilewright.codegen.cpu.kernel.functions import any_lane
from tilewright.codegen.cpu.kernel.indices import Affine, Indices, Number
from tilewright.codegen.cpu.kernel.lanes import literal, memory_type, vector
from tilewright.codegen.cpu.kernel.text import Reg, Text
from tilewright.codegen.cpu.kernel.transpose import interleaved, transposed_column
from tilewright.ir import dtype as dt
from tilewright.ir.diag import InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym
from tilewright.ir.types import BufferType
from tilewright.target.target import LINE_BYTES, Target

_SHUFFLED_STRIDES = (2, 3, 4)
"""Strides for which whole vectors are loaded and the wanted lanes picked."""

_WORDS: Mapping[int, DType] = MappingProxyType({2: dt.u16, 4: dt.u32, 8: dt.u64})
"""Integers by their bytes: groups of smaller ones are moved as one."""

_SIGNED: Mapping[int, DType] = MappingProxyType({1: dt.i8, 2: dt.i16, 4: dt.i32, 8: dt.i64})
_LEAST_MASKED_BYTES = 16
"""Bytes of the smallest register that instructions under a mask take."""
_MOVED_LANES = 8
"""The fewest lanes of a mask that an instruction moves between registers."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer's memory: `pointer` to its first element. With `private` > 1 lanes, each element is a vector
    that holds one value for each lane of the vector loop that allocated the buffer. Nobody writes to one that is
    `fixed` while the kernel runs: what was read of it stays right."""

    pointer: str
    type: BufferType
    private: int = 1
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """When an access happens: `uniform` is a flag for all lanes, `lanes` a mask; None where it always does."""

    uniform: Reg | None = None
    lanes: Reg | None = None

    @property
    def never(self) -> bool:
        """Whether it is known not to happen."""
        return self.uniform is not None and self.uniform.known is False


@dataclass(frozen=True, slots=True)
class _Streamed:
    """Stores that go past the caches together: `line` is equal for addresses that are whole cache lines apart, `parts`
    has pointers and values, and `past` is the condition."""

    line: tuple[str, Number, int]
    dtype: DType
    past: Reg
    parts: list[tuple[str, Reg]]


class MemoryAccess:
    """Emits accesses through an address that is an expression in elements."""

    def __init__(self, text: Text, indices: Indices, target: Target) -> None:
        self.text = text
        self.indices = indices
        self.register_bytes = target.vector_bits // 8
        self.masked_memory = target.masked_memory
        self.has_mask_registers = target.has_mask_registers
        self.byte_table = target.byte_table
        self.streamed = False  # whether a store went past the caches
        self._together: _Streamed | None = None

    def address(self, buffer: Buffer, e: Sym) -> Affine:
        """The address `e` as it moves over the lanes."""
        found = self.indices.affine(e)
        if buffer.private == 1:
            return found
        lanes = buffer.private
        scale = self.indices.multiply
        general = None if found.general is None else scale(found.general, lanes)
        stride = self.indices.add(scale(found.stride, lanes), 1)
        return Affine(found.constant * lanes, scale(found.uniform, lanes), stride, general)

    # Loads

    def load(self, buffer: Buffer, e: Sym, lanes: int, guard: Guard, other: float | int = 0) -> Reg:
        """The elements at address `e`, `other` where the guard does not hold; one lane when all read the
        same."""
        dtype = buffer.type.dtype
        byte = self.byte_of_table(buffer, e)
        if byte is not None and self.byte_table is not None:
            found = looked_up(self.byte_table, buffer.pointer, stored_as(dtype), byte)
            return self._chosen(found, guard, dtype, other)
        where = self.address(buffer, e)
        if not buffer.fixed:
            return self._loaded(buffer, e, where, lanes, guard, other)
        key = ("load", buffer.pointer, where, lanes, guard, other)
        return self.indices.once(key, lambda: self._loaded(buffer, e, where, lanes, guard, other))

    def _loaded(
        self, buffer: Buffer, e: Sym, where: Affine, lanes: int, guard: Guard, other: float | int
    ) -> Reg:
        """What stands at address `e`, which moves over the lanes like this."""
        dtype = buffer.type.dtype
        if _in_registers(buffer, where, lanes):
            return self._load_register(buffer, where, lanes, guard, other)
        if _is_register_column(buffer, where, lanes):
            return self._chosen(self._load_column(buffer, where, lanes), guard, dtype, other)
        if where.general is None and where.stride == 0:
            return from_memory(self._load_one(buffer, where, guard, other, lanes), dtype)
        if where.general is None and where.stride in (1, -1):
            raw = self._load_run(buffer, where, lanes, guard, other)
        elif where.general is None and self._is_shuffled(where, guard):
            raw = self._load_strided(buffer, where, lanes, guard, other)
        elif where.general is not None and (starts := self._starts_of_runs(buffer, e, lanes)):
            raw = self._load_interleaved(buffer, starts, lanes, guard, other)
        elif where.general is not None and (found := self._one_or_run(buffer, e, lanes, guard, other)):
            raw = found
        else:
            raw = self._gather(buffer, where, lanes, guard, other)
        return from_memory(raw, dtype)

    def byte_of_table(self, buffer: Buffer, e: Sym) -> Reg | None:
        """The byte that is the address, where it reaches all of the buffer, which then has 256 bytes."""
        byte = self.indices.byte(e)
        type = buffer.type
        is_table = byte is not None and byte.lanes > 1 and buffer.private == 1 and type.dtype.is_int
        if not is_table or type.dtype.bits != 8 or type.shape != (TABLE_SIZE,) or type.space == "reg":
            return None
        return byte

    def load_groups(
        self, buffer: Buffer, e: Sym, group: int, step: int, lanes: int, guard: Guard, other: float | int = 0
    ) -> Reg | None:
        """For each lane `group` elements from address `e` on, `step` apart, all in one register: consecutive ones where
        all lanes read the same group or each the next one, or those of consecutive vectors. None for other accesses."""
        where = self.address(buffer, e)
        if where.general is not None or buffer.private != 1:
            return None
        if step == lanes != 1 and where.stride == 1:
            return groups_of(self._load_run(buffer, where, lanes * group, guard, other), group)
        if step != 1 or where.stride not in (0, group):
            return None
        run = where._replace(stride=1)
        if where.stride == group:
            return self._load_run(buffer, run, lanes * group, guard, other)
        dtype = buffer.type.dtype
        one = self._load_run(buffer, run, group, guard, other)
        word = _WORDS.get(group * dtype.bytes)
        if word is None:
            return None
        same = self.text.reg(word, 1, f"bitcast {one.typed} to {memory_type(word)}").splat(lanes)
        count = lanes * group
        return self.text.reg(dtype, count, f"bitcast {same.typed} to {vector(memory_type(dtype), count)}")

    def prefetch(self, buffer: Buffer, e: Sym, *, nearest: bool) -> None:
        """Prefetch the cache line of address `e`, into the `nearest` cache (L1) or L2."""
        where = self.address(buffer, e)
        pointer = self.pointer(buffer, where.constant, where.uniform)
        locality = 3 if nearest else 2
        self.text.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 {locality}, i32 1)")

    def _load_register(
        self, buffer: Buffer, where: Affine, lanes: int, guard: Guard, other: float | int
    ) -> Reg:
        """An element (or a run of them) of a register array: read whatever the guard says, then chosen."""
        dtype = buffer.type.dtype
        count = lanes if where.stride == 1 else 1
        found = from_memory(
            self.plain_load(self.pointer(buffer, where.constant, 0), dtype, count), dtype
        )
        return self._chosen(found, guard, dtype, other)

    def _load_column(self, buffer: Buffer, where: Affine, lanes: int) -> Reg:
        """One column of a tile in registers, from its rows; LLVM merges what columns have in common."""
        dtype = buffer.type.dtype
        assert isinstance(where.stride, int)
        column = where.constant % where.stride % lanes
        first = where.constant - column
        rows = [
            self.plain_load(self.pointer(buffer, first + k * where.stride, 0), dtype, lanes)
            for k in range(lanes)
        ]
        return from_memory(transposed_column(rows, column, dtype.bytes), dtype)

    def _chosen(self, found: Reg, guard: Guard, dtype: DType, other: float | int) -> Reg:
        """What was read anyway where the guard holds, and `other` elsewhere."""
        for flag in (guard.lanes, guard.uniform):
            if flag is not None:
                n = max(found.lanes, flag.lanes)
                otherwise = self.text.named(literal(dtype, other), dtype).splat(n)
                found = flag.splat(n).select(found.splat(n), otherwise)
        return found

    def _load_one(self, buffer: Buffer, where: Affine, guard: Guard, other: float | int, lanes: int) -> Reg:
        """One element for all lanes. Where no lane wants it, memory is not touched."""
        dtype = buffer.type.dtype
        pointer = self.pointer(buffer, where.constant, where.uniform)
        if guard.lanes is None:
            return self.plain_load(self.guarded(pointer, guard, dtype, other, 1), dtype, 1)
        mask = guard.lanes
        wanted = any_lane(mask)
        if guard.uniform is not None:
            wanted = wanted & guard.uniform
        pointer = self.guarded(pointer, Guard(wanted), dtype, other, 1)
        one = self.plain_load(pointer, dtype, 1).splat(lanes)
        return mask.select(one, self._other(dtype, other, lanes))

    def _load_run(self, buffer: Buffer, where: Affine, lanes: int, guard: Guard, other: float | int) -> Reg:
        """Consecutive elements, ascending or descending."""
        dtype = buffer.type.dtype
        forward = where.stride == 1
        start = where.constant if forward else where.constant - (lanes - 1)
        pointer = self.guarded(self.pointer(buffer, start, where.uniform), guard, dtype, other, lanes)
        if guard.lanes is None:
            found = self.plain_load(pointer, dtype, lanes)
        else:
            mask = guard.lanes if forward else _reversed(guard.lanes)
            found = self._masked_load(pointer, dtype, mask, other)
        return found if forward else _reversed(found)

    def _masked_load(self, pointer: str, dtype: DType, mask: Reg, other: float | int) -> Reg:
        wide = self._whole_mask(mask, dtype)
        element, n = memory_type(dtype), wide.lanes
        type = vector(element, n)
        otherwise = self._other(dtype, other, n)
        call = f"call {type} @llvm.masked.load.{_suffix(element, n)}.p0(ptr align {dtype.bytes} {pointer}, "
        found = self.text.reg(stored_as(dtype), n, f"{call}{wide.typed}, {type} {otherwise.name})")
        return found.part(0, mask.lanes)

    def _is_shuffled(self, where: Affine, guard: Guard) -> bool:
        """Whether whole vectors are to be loaded, of which the lanes are picked."""
        return where.stride in _SHUFFLED_STRIDES and (guard.lanes is None or self.masked_memory)

    def _load_strided(
        self, buffer: Buffer, where: Affine, lanes: int, guard: Guard, other: float | int
    ) -> Reg:
        """Every second (third, fourth) element: loads of whole vectors that stay within the elements wanted, and
        touch just these where a mask says so."""
        dtype = buffer.type.dtype
        assert isinstance(where.stride, int)
        stride = where.stride
        last = stride * (lanes - 1)
        starts = [min(k * lanes, last - (lanes - 1)) for k in range(stride)]
        base = self.guarded(
            self.pointer(buffer, where.constant, where.uniform), guard, dtype, other, stride * lanes
        )
        parts = [
            self._load_part(self._offset(base, dtype, start), dtype, lanes, start, stride, guard.lanes, other)
            for start in starts
        ]
        merged = parts[0]
        for start, part in zip(starts[1:], parts[1:], strict=True):
            positions = [stride * lane - start for lane in range(lanes)]
            picks = [lanes + at if 0 <= at < lanes else lane for lane, at in enumerate(positions)]
            if part is parts[1]:  # until now `merged` is the first load, not yet picked from
                picks = [
                    pick if pick >= lanes else stride * lane if stride * lane < lanes else -1
                    for lane, pick in enumerate(picks)
                ]
            merged = merged.shuffled(part, picks)
        return merged

    def _load_part(
        self,
        pointer: str,
        dtype: DType,
        lanes: int,
        start: int,
        stride: int,
        mask: Reg | None,
        other: float | int,
    ) -> Reg:
        """The vector from element `start` on, of which every `stride`-th element of all is wanted, by lanes that are on
        in the mask; `other` elsewhere."""
        if mask is None:
            return self.plain_load(pointer, dtype, lanes)
        none = mask.like(False)
        picks = [at // stride if at % stride == 0 else lanes for at in range(start, start + lanes)]
        return self._masked_load(pointer, dtype, mask.shuffled(none, picks), other)

    def _starts_of_runs(self, buffer: Buffer, e: Sym, lanes: int) -> list[Affine]:
        """Where runs of consecutive elements begin, of which the lanes are in turns; [] where they are not."""
        if buffer.private != 1 or not self.masked_memory:
            return []
        starts = [self.indices.affine(start) for start in self.indices.interleaved(e, lanes)]
        return [start._replace(stride=1) for start in starts]

    def _load_interleaved(
        self, buffer: Buffer, starts: list[Affine], lanes: int, guard: Guard, other: float | int
    ) -> Reg:
        """Lanes in turns from several runs, which are loaded whole."""
        runs = []
        for k, start in enumerate(starts):
            mask = None if guard.lanes is None else guard.lanes.shuffled(None, range(k, lanes, len(starts)))
            own = replace(guard, lanes=mask)
            runs.append(self._load_run(buffer, start, lanes // len(starts), own, other))
        return interleaved(runs)

    def _one_or_run(
        self, buffer: Buffer, e: Sym, lanes: int, guard: Guard, other: float | int
    ) -> Reg | None:
        """One element for all lanes, or consecutive ones, as a condition says that all lanes share; None where the
        address is another one."""
        either = self.indices.either(e)
        if either is None or buffer.private != 1 or (guard.lanes is not None and not self.masked_memory):
            return None
        condition, *addresses = either
        one, run = (self.indices.affine(address) for address in addresses)
        flag = self.indices.condition(condition)
        if run.stride == 0:
            one, run, flag = run, one, ~flag
        if one.general is not None or run.general is not None or (one.stride, run.stride) != (0, 1):
            return None
        alone, together = (flag, ~flag) if guard.uniform is None else (flag & guard.uniform, ~flag & guard.uniform)
        single = self._load_one(buffer, one, Guard(alone, guard.lanes), other, lanes)
        several = self._load_run(buffer, run, lanes, Guard(together, guard.lanes), other)
        return flag.splat(lanes).select(single.splat(lanes), several)

    def _gather(self, buffer: Buffer, where: Affine, lanes: int, guard: Guard, other: float | int) -> Reg:
        dtype = buffer.type.dtype
        element = memory_type(dtype)
        base = self.guarded(self.pointer(buffer, where.constant, where.uniform), guard, dtype, other, 1)
        steps: Number = self._lane_offsets(where, lanes)
        if guard.uniform is not None:
            steps = self.indices.choose(guard.uniform, steps, self.indices.in_lanes(0, lanes))
        pointers = self._lane_pointers(base, element, steps, lanes)
        mask = guard.lanes or self.text.constant(dt.bool_, True, lanes)
        type, otherwise = vector(element, lanes), self._other(dtype, other, lanes)
        name = f"llvm.masked.gather.{_suffix(element, lanes)}.v{lanes}p0"
        operands = f"<{lanes} x ptr> align {dtype.bytes} {pointers}, {mask.typed}, {type} {otherwise.name}"
        return self.text.reg(stored_as(dtype), lanes, f"call {type} @{name}({operands})")

    # Stores

    def store(
        self, buffer: Buffer, e: Sym, value: Reg, lanes: int, guard: Guard, past: Reg | None = None
    ) -> None:
        """Write at address `e` where the lane mask of `guard` holds; a uniform guard is the caller's branch. A run that
        begins with a cache line goes past the caches where `past` holds."""
        where = self.address(buffer, e)
        dtype = buffer.type.dtype
        if guard.lanes is not None and where.stride == 1 and _in_registers(buffer, where, lanes):
            # Not a masked store: LLVM would keep the array in memory.
            old = self._load_register(buffer, where, lanes, Guard(), 0)
            value = guard.lanes.select(value.splat(lanes), old)
            guard = Guard()
        is_run = where.general is None and where.stride in (1, -1)
        if buffer.type.space == "global" and (past is None or guard.lanes is not None or not is_run):
            self.text.finish()  # stores of a buffer are in order
        if where.general is None and where.stride == 0:
            if value.lanes > 1 or guard.lanes is not None:
                raise InternalError("a vector loop writes one element from several lanes")
            pointer = self.pointer(buffer, where.constant, where.uniform)
            self.text.line(f"store {_to_memory(value).typed}, ptr {pointer}, align {dtype.bytes}")
            return
        wide = _to_memory(value.splat(lanes))
        if is_run:
            self._store_run(buffer, where, wide, guard, past)
            return
        element = memory_type(dtype)
        base = self.pointer(buffer, where.constant, where.uniform)
        pointers = self._lane_pointers(base, element, self._lane_offsets(where, lanes), lanes)
        mask = guard.lanes or self.text.constant(dt.bool_, True, lanes)
        self.text.line(
            f"call void @llvm.masked.scatter.{_suffix(element, lanes)}.v{lanes}p0({wide.typed}, "
            f"<{lanes} x ptr> align {dtype.bytes} {pointers}, {mask.typed})"
        )

    def _store_run(self, buffer: Buffer, where: Affine, value: Reg, guard: Guard, past: Reg | None) -> None:
        dtype = buffer.type.dtype
        forward = where.stride == 1
        start = where.constant if forward else where.constant - (value.lanes - 1)
        pointer = self.pointer(buffer, start, where.uniform)
        value = value if forward else _reversed(value)
        if guard.lanes is None:
            parts = [(self._offset(pointer, dtype, n), p) for n, p in self._register_parts(buffer, value)]
            if past is not None and past.known is not False:
                line = (buffer.pointer, where.uniform, start * dtype.bytes % LINE_BYTES)
                self._store_past_caches(_Streamed(line, dtype, past, parts))
                return
            for at, part in parts:
                self.text.line(f"store {part.typed}, ptr {at}, align {dtype.bytes}")
            return
        mask = self._whole_mask(guard.lanes if forward else _reversed(guard.lanes), dtype)
        if mask.lanes > value.lanes:
            value = value.shuffled(None, [lane if lane < value.lanes else -1 for lane in range(mask.lanes)])
        self.text.line(
            f"call void @llvm.masked.store.{_suffix(memory_type(dtype), value.lanes)}.p0({value.typed}, "
            f"ptr align {dtype.bytes} {pointer}, {mask.typed})"
        )

    def _store_past_caches(self, new: _Streamed) -> None:
        """Store the parts past the caches where the condition holds and the first begins with a cache line, as a part
        of a line costs more there than in a cache.

        That is put off until the block ends: parts whose addresses are whole lines apart go together, as each branch
        takes LLVM as long as a dozen instructions.
        """
        before = self._together
        if self.text.unfinished is not None and before is not None and _go_together(before, new):
            before.parts.extend(new.parts)
            return
        self.text.finish()
        self._together = new
        self.text.unfinished = self._stream

    def _stream(self) -> None:
        found = self._together
        assert found is not None
        self.streamed = True
        self.text.globals["nontemporal"] = "!0 = !{i32 1}"
        number = self.text.emit(f"ptrtoint ptr {found.parts[0][0]} to i64")
        low = self.text.emit(f"and i64 {number}, {LINE_BYTES - 1}")
        whole = self.text.emit(f"icmp eq i64 {low}, 0")
        if found.past.known is None:
            whole = self.text.emit(f"and i1 {whole}, {found.past.name}")
        then, otherwise, after = (self.text.label(hint) for hint in ("past", "cached", "after"))
        self.text.branch(whole, then, otherwise)
        for label, align, hint in ((then, LINE_BYTES, ", !nontemporal !0"), (otherwise, found.dtype.bytes, "")):
            self.text.start(label)
            for at, part in found.parts:
                aligned = min(align, self.register_bytes) if hint else align
                self.text.line(f"store {part.typed}, ptr {at}, align {aligned}{hint}")
            self.text.jump(after)
        self.text.start(after)

    # Pieces

    def _whole_mask(self, mask: Reg, dtype: DType) -> Reg:
        """The mask of an access to elements of `dtype`, with lanes that are off after its own where LLVM would move it
        into a register of more lanes: those of a whole one.

        LLVM 22 loses the instruction that turns such lanes off (`kmovb` from a register to another of AVX-512) when it
        keeps the mask on the stack, and the access goes beyond the buffer (decision 53). A comparison of vectors turns
        them off here, which nothing takes for a copy. Masks of fewer lanes are shifted, which is kept.
        """
        count = max(1 << (mask.lanes - 1).bit_length(), _LEAST_MASKED_BYTES // dtype.bytes)
        if not self.has_mask_registers or mask.lanes < _MOVED_LANES or count == mask.lanes:
            return mask
        flags = mask.convert("sext", _SIGNED[dtype.bytes])
        return flags.shuffled(flags.like(0), [min(k, mask.lanes) for k in range(count)]).differs(0)

    def _register_parts(self, buffer: Buffer, value: Reg) -> list[tuple[int, Reg]]:
        """The lanes in pieces of one register, from the lowest address up, each with its first lane.

        LLVM stores the upper half of what it splits itself first. Where vectors cross cache lines, stores that come
        down through memory take up to twice the time of those that go up.
        """
        count = self.register_bytes // buffer.type.dtype.bytes
        if buffer.type.space == "reg" or value.lanes <= count or value.lanes % count:
            return [(0, value)]
        return [
            (first, value.shuffled(value, range(first, first + count)))
            for first in range(0, value.lanes, count)
        ]

    def plain_load(self, pointer: str, dtype: DType, lanes: int) -> Reg:
        """Consecutive elements, as they lie in memory."""
        return self.text.reg(
            stored_as(dtype),
            lanes,
            f"load {vector(memory_type(dtype), lanes)}, ptr {pointer}, align {dtype.bytes}",
        )

    def pointer(self, buffer: Buffer, constant: int, uniform: Number) -> str:
        """To the element that is so far from the first of a buffer."""
        if isinstance(uniform, int):
            return self._offset(buffer.pointer, buffer.type.dtype, constant + uniform)
        return self._offset(self.moved(buffer.pointer, buffer.type.dtype, uniform), buffer.type.dtype, constant)

    def moved(self, base: str, dtype: DType, uniform: Number) -> str:
        """The pointer to the element that is so far from that of `base`."""
        if isinstance(uniform, int):
            return self._offset(base, dtype, uniform)
        key = ("pointer", base, uniform.name)
        found = self.indices.cached(key)
        if found is None:
            found = self.text.emit(f"getelementptr {memory_type(dtype)}, ptr {base}, i64 {uniform.name}")
            self.indices.remember_here(key, found)
        return str(found)

    def _offset(self, base: str, dtype: DType, constant: int) -> str:
        if constant == 0:
            return base
        key = ("pointer", base, constant, memory_type(dtype))
        found = self.indices.cached(key)
        if found is None:
            found = self.text.emit(f"getelementptr {memory_type(dtype)}, ptr {base}, i64 {constant}")
            self.indices.remember_here(key, found)
        return str(found)

    def _lane_offsets(self, where: Affine, lanes: int) -> Number:
        """Elements from the base, for each lane."""
        steps = self.indices.multiply(where.stride, self.indices.iota(lanes))
        return steps if where.general is None else self.indices.add(steps, where.general)

    def _lane_pointers(self, base: str, element: str, steps: Number, lanes: int) -> str:
        return self.text.emit(
            f"getelementptr {element}, ptr {base}, <{lanes} x i64> {self.indices.in_lanes(steps, lanes).name}"
        )

    def guarded(self, pointer: str, guard: Guard, dtype: DType, other: float | int, count: int) -> str:
        """The pointer, or one to `count` elements `other` where the uniform guard does not hold: no
        branch."""
        if guard.uniform is None:
            return pointer
        element = memory_type(dtype)
        value = self._other(dtype, other, 1).name
        name = f"tw_other{len(self.text.globals)}_{element}"
        items = ", ".join([f"{element} {value}"] * count)
        found = next((n for n, g in self.text.globals.items() if g.endswith(f"[{items}], align 64")), None)
        if found is None:
            found = name
            self.text.globals[name] = f"@{name} = private constant [{count} x {element}] [{items}], align 64"
        return self.text.emit(f"select {guard.uniform.typed}, ptr {pointer}, ptr @{found}")

    def _other(self, dtype: DType, other: float | int, lanes: int) -> Reg:
        stored = stored_as(dtype)
        value = literal(stored, int(bool(other)) if dtype.kind == "bool" else other)
        return self.text.named(value, stored).splat(lanes)


def _go_together(a: _Streamed, b: _Streamed) -> bool:
    return a.line == b.line and a.past.name == b.past.name


def _reversed(x: Reg) -> Reg:
    return x.shuffled(None, range(x.lanes)[::-1])


def from_memory(raw: Reg, dtype: DType) -> Reg:
    """Booleans are bytes in memory; elements of fewer bits are bytes whose upper bits say nothing."""
    if dtype.kind == "bool":
        return raw.differs(0)
    return wrap(raw, dtype)


def _to_memory(value: Reg) -> Reg:
    return value.convert("zext", dt.u8) if value.dtype.kind == "bool" else value


def _in_registers(buffer: Buffer, where: Affine, lanes: int) -> bool:
    """Whether the access is to known elements of a register array, one for all lanes or one after the
    other."""
    if (
        buffer.type.space != "reg"
        or where.general is not None
        or where.uniform != 0
        or where.stride not in (0, 1)
    ):
        return False
    last = where.constant + (lanes - 1 if where.stride == 1 else 0)
    return where.constant >= 0 and last < buffer.type.size.value * buffer.private


def _is_register_column(buffer: Buffer, where: Affine, lanes: int) -> bool:
    """Whether the lanes read one below the other in a register array, whose rows can be read whole."""
    if buffer.type.space != "reg" or buffer.private != 1 or where.general is not None or where.uniform != 0:
        return False
    if not isinstance(where.stride, int) or where.stride < lanes or lanes & (lanes - 1) or lanes < 4:
        return False
    if where.constant < 0:
        return False
    column = where.constant % where.stride % lanes
    last = where.constant - column + (lanes - 1) * where.stride + lanes
    return where.constant % where.stride - column + lanes <= where.stride and last <= buffer.type.size.value


def stored_as(dtype: DType) -> DType:
    """How elements of `dtype` lie in memory: booleans as bytes."""
    return dt.u8 if dtype.kind == "bool" else dtype


def _suffix(element: str, lanes: int) -> str:
    return f"v{lanes}" + {"half": "f16", "float": "f32", "double": "f64"}.get(element, element)
