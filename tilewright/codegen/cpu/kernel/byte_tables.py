"""Elements of tables of 256 bytes, by the instructions that look up bytes in registers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.codegen.cpu.kernel.text import Reg, Text
from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType
from tilewright.target.byte_tables import ByteTable

SIZE = 256


def looked_up(how: ByteTable, pointer: str, dtype: DType, at: Reg) -> Reg:
    """The elements of `dtype` (a byte) at `at` (u8) of the table at `pointer`."""
    find = _by_parts if how.adds else _by_bits
    parts: list[Reg] = []
    first = 0
    while first < at.lanes:
        left = at.lanes - first
        lanes, name = next((c for c in how.calls if c[0] <= left), how.calls[-1])
        taken = min(left, lanes)
        some = _widened(at.part(first, taken), lanes)
        parts.append(find(how, name, partial(_load, at.text, pointer, lanes), some).part(0, taken))
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
