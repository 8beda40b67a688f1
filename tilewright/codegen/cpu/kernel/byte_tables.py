"""Elements of tables of 256 bytes, or of 16, by the instructions that look up bytes in registers; of other tables from
memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256

from tilewright.codegen.cpu.kernel.lanes import literal, register_type, vector
from tilewright.codegen.cpu.kernel.text import Reg, Text
from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType
from tilewright.target.byte_tables import ByteTable, LevelTable

SIZE = 256


def looked_up(how: ByteTable, pointer: str, dtype: DType, at: Reg) -> Reg:
    """The elements of `dtype` (a byte) at `at` (u8) of the table at `pointer`."""
    find = _by_parts if how.adds else _by_bits

    def some(name: str, at: Reg) -> Reg:
        return find(how, name, partial(_load, at.text, pointer, at.lanes), at)

    return _in_pieces(how.calls, some, dtype, at)


def level_of(how: LevelTable | None, at: Reg, levels: Sequence[float], dtype: DType) -> Reg:
    """Of 16 levels of `dtype` those of codes `at` (u4)."""
    if how is None or dtype.bits != 8 or not dtype.is_int or at.lanes == 1:
        digest = sha256(repr(levels).encode()).hexdigest()[:16]
        return gathered(f"tw_levels_{dtype.name}_{digest}", levels, dtype, at)

    def some(name: str, at: Reg) -> Reg:
        items = ", ".join(f"i8 {int(levels[k % len(levels)])}" for k in range(at.lanes))
        return at.text.call(dt.u8, at.lanes, name, at.text.named(f"<{items}>", dt.u8, at.lanes), at)

    return _in_pieces(how.calls, some, dtype, at)


def gathered(name: str, numbers: Sequence[float], dtype: DType, at: Reg) -> Reg:
    """Elements of a table in memory, whose contents its name tells, by the bits of `at`."""
    text, n, element = at.text, at.lanes, register_type(dtype)
    items = ", ".join(f"{element} {literal(dtype, v)}" for v in numbers)
    size = f"[{len(numbers)} x {element}]"
    text.globals[name] = f"@{name} = internal unnamed_addr constant {size} [{items}], align 64"
    index = text.emit(f"zext {at.typed} to {vector('i64', n)}")
    table = text.emit(f"getelementptr {element}, ptr @{name}, {vector('i64', n)} {index}")
    if n == 1:
        return text.reg(dtype, 1, f"load {element}, ptr {table}, align {dtype.bytes}")
    kind = "f" if dtype.is_float else "i"
    call = f"call <{n} x {element}> @llvm.masked.gather.v{n}{kind}{8 * dtype.bytes}.v{n}p0(<{n} x ptr> "
    return text.reg(
        dtype, n, f"{call}align {dtype.bytes} {table}, <{n} x i1> splat (i1 true), <{n} x {element}> poison)"
    )


def _in_pieces(
    calls: Sequence[tuple[int, str]], find: Callable[[str, Reg], Reg], dtype: DType, at: Reg
) -> Reg:
    """What `find` makes of all lanes of `at`, by instructions for pieces of it."""
    parts: list[Reg] = []
    first = 0
    while first < at.lanes:
        left = at.lanes - first
        lanes, name = next((c for c in calls if c[0] <= left), calls[-1])
        taken = min(left, lanes)
        parts.append(find(name, _widened(at.part(first, taken), lanes)).part(0, taken))
        first += taken
    while len(parts) > 1:
        both = range(2 * parts[0].lanes)
        parts = [a.shuffled(b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return at.text.named(parts[0].name, dtype, at.lanes)


def _by_bits(how: ByteTable, name: str, load: Callable[[int, int], Reg], at: Reg) -> Reg:
    """All parts of the table, of which the upper bits choose: bit 7 last."""
    if how.reached == 2 * at.lanes:  # of two registers, by all of the index but bit 7
        found = [
            at.text.call(dt.u8, at.lanes, name, load(first, at.lanes), at, load(first + at.lanes, at.lanes))
            for first in range(0, SIZE, how.reached)
        ]
    else:
        low = at & how.reached - 1
        found = [
            at.text.call(dt.u8, at.lanes, name, load(first, how.reached), low)
            for first in range(0, SIZE, how.reached)
        ]
    bit = 8 - (len(found).bit_length() - 1)
    while len(found) > 1:
        is_set = _sign_from(at, bit)
        found = [is_set.select(b, a) for a, b in zip(found[::2], found[1::2], strict=True)]
        bit += 1
    return found[0]


def _sign_from(at: Reg, bit: int) -> Reg:
    """Whether a bit is set: it is moved to where instructions look for the sign. There is no shift of bytes; what comes
    from a neighbour stays below the sign."""
    words, both = f"<{at.lanes // 2} x i16>", 7 - bit
    if not both:
        return at.test("icmp slt", 0)
    text = at.text
    wide = text.emit(f"bitcast {at.typed} to {words}")
    moved = text.emit(f"shl {words} {wide}, splat (i16 {both})")
    return text.reg(dt.u8, at.lanes, f"bitcast {words} {moved} to {at.type}").test("icmp slt", 0)


def _by_parts(how: ByteTable, name: str, load: Callable[[int, int], Reg], at: Reg) -> Reg:
    """Parts of four registers; each instruction leaves what is beyond its part as it was."""
    found = at.text.constant(dt.u8, 0, at.lanes)
    for first in range(0, SIZE, how.reached):
        registers = [load(k, at.lanes) for k in range(first, first + how.reached, at.lanes)]
        found = at.text.call(dt.u8, at.lanes, name, found, *registers, at - first if first else at)
    return found


def _load(text: Text, pointer: str, lanes: int, first: int, count: int) -> Reg:
    """`count` elements of the table from `first` on, repeated in all lanes."""
    address = text.emit(f"getelementptr i8, ptr {pointer}, i64 {first}") if first else pointer
    found = text.reg(dt.u8, count, f"load <{count} x i8>, ptr {address}, align 1")
    return found if count == lanes else found.shuffled(None, [k % count for k in range(lanes)])


def _widened(x: Reg, lanes: int) -> Reg:
    """x, with lanes behind it of which nobody reads the values."""
    if x.lanes == lanes:
        return x
    x = x.splat(lanes) if x.lanes == 1 else x
    return x if x.lanes == lanes else x.shuffled(None, [*range(x.lanes), *[-1] * (lanes - x.lanes)])
