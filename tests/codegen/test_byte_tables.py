"""Elements of tables of bytes by the machine's instructions: their meaning, machine code, and how many there are."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.codegen import native
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.byte_tables import SIZE, level_of, looked_up
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.codegen.cpu.kernel.text import Text
from tilewright.ir import dtype as dt
from tilewright.ir.types import buffer
from tilewright.target.byte_tables import PSHUFB, PSHUFB_128, PSHUFB_512, TBL, VPERMI2B, ByteTable
from tilewright.target.host import host_target
from tilewright.target.named import parse_target

RNG = np.random.default_rng(3)
TABLE = RNG.permutation(SIZE).astype(np.uint8)
_TYPED = re.compile(r"<(\d+) x i(\d+)> (%\w+|splat \([^)]*\)|zeroinitializer)")


class Interpreted(Text):
    """Text whose instructions are executed as they are written, on vectors of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Any] = {"%table": 0}

    def emit(self, instruction: str) -> str:
        name = super().emit(instruction)
        self.found[name] = self._execute(instruction)
        return name

    def _execute(self, instruction: str) -> Any:
        opcode = instruction.split()[0]
        operands = [self._operand(*m.groups()) for m in _TYPED.finditer(instruction)]
        match opcode:
            case "getelementptr":
                base, offset = re.fullmatch(r"getelementptr i8, ptr (%\w+), i64 (\d+)", instruction).groups()  # type: ignore[union-attr]
                return self.found[base] + int(offset)
            case "load":
                count, base = re.fullmatch(r"load <(\d+) x i8>, ptr (%\w+), align 1", instruction).groups()  # type: ignore[union-attr]
                return TABLE[self.found[base] :][: int(count)]
            case "and" | "sub" | "add" | "shl":
                left = operands[0]
                right = self._second(instruction, left)
                ufunc = {"and": np.bitwise_and, "sub": np.subtract, "add": np.add, "shl": np.left_shift}[opcode]
                return ufunc(left, right.astype(left.dtype))
            case "bitcast":
                return operands[0].view(np.uint16 if instruction.endswith("i16>") else np.uint8)
            case "icmp":
                return operands[0].view(np.int8) < 0
            case "select":
                return np.where(self.found[instruction.split()[4].strip(",")], operands[-2], operands[-1])
            case "shufflevector":
                picks = [int(p) if p != "poison" else 0 for p in re.findall(r"i32 (\w+)", instruction.split("<")[-1])]
                return np.concatenate([operands[0], operands[-1]])[picks]
            case "call" if "tbl1" in instruction or "pshuf" in instruction:
                table = np.array([int(n) % 256 for n in re.findall(r"i8 (-?\d+)", instruction)], np.uint8)
                table = operands[0] if len(operands) > 1 else table
                return _pshufb(table, operands[-1])
            case "call":
                return _INTRINSICS[re.search(r"@([\w.]+)", instruction)[1]](*operands[0:])  # type: ignore[index]
        raise AssertionError(instruction)

    def _second(self, instruction: str, like: np.ndarray) -> np.ndarray:
        text = instruction.split("> ", 1)[1].split(", ", 1)[1]
        return self._operand(str(like.size), str(8 * like.itemsize), text)

    def _operand(self, count: str, bits: str, text: str) -> np.ndarray:
        if text.startswith("%"):
            return self.found[text]
        number = re.search(r"i\d+ (-?\d+)", text)
        value = 0 if number is None else int(number[1])
        return np.full(int(count), value % (1 << int(bits)), f"u{int(bits) // 8}")


def _pshufb(table: np.ndarray, at: np.ndarray) -> np.ndarray:
    own = np.arange(at.size) // 16 * 16
    return np.where(at & 0x80, 0, table[own + (at & 15)]).astype(np.uint8)


def _vpermi2b(first: np.ndarray, at: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.concatenate([first, second])[at & 0x7F]


def _tbx4(before: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    *registers, at = rest
    table = np.concatenate(registers)
    return np.where(at < table.size, table[at % table.size], before)


_INTRINSICS = {
    **dict.fromkeys([name for how in (PSHUFB, PSHUFB_512) for _, name in how.calls], _pshufb),
    VPERMI2B.calls[0][1]: _vpermi2b,
    TBL.calls[0][1]: _tbx4,
}


@pytest.mark.parametrize("lanes", (2, 4, 8, 16, 32, 64))
@pytest.mark.parametrize(
    "how", (PSHUFB_128, PSHUFB, PSHUFB_512, VPERMI2B, TBL), ids=("ssse3", "avx2", "avx512bw", "vbmi", "neon")
)
def test_instructions_find_every_element(how: ByteTable, lanes: int) -> None:
    everything = RNG.permutation(SIZE).astype(np.uint8)
    for first in range(0, SIZE, lanes):
        text = Interpreted()
        text.found["%at"] = everything[first : first + lanes]
        found = looked_up(how, "%table", dt.i8, text.named("%at", dt.u8, lanes))
        assert (found.dtype, found.lanes) == (dt.i8, lanes)
        np.testing.assert_array_equal(text.found[found.name], TABLE[text.found["%at"]])


LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@pytest.mark.parametrize("machine", ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64-neon"))
@pytest.mark.parametrize("lanes", (2, 4, 8, 16, 32, 64))
def test_levels_of_codes(lanes: int, machine: str) -> None:
    text = Interpreted()
    text.found["%at"] = RNG.integers(0, 16, lanes).astype(np.uint8)
    how = parse_target(machine).level_table
    assert how is not None
    found = level_of(how, text.named("%at", dt.u4, lanes), LEVELS, dt.i8)
    assert (found.dtype, found.lanes) == (dt.i8, lanes)
    np.testing.assert_array_equal(text.found[found.name].view(np.int8), np.array(LEVELS, np.int8)[text.found["%at"]])


@pytest.mark.parametrize("dtype", (dt.i8, dt.u8, dt.i16, dt.f32, dt.f64), ids=str)
@pytest.mark.parametrize("count", (1, 3, 16, 64))
def test_levels_in_machine_code(count: int, dtype: dt.DType) -> None:
    levels = tuple(abs(n) if dtype is dt.u8 else n / 8 if dtype.is_float else n for n in LEVELS)
    codes = RNG.integers(0, 16, count).astype(dt.u4.storage)

    def body(t: Any, arrays: Any) -> None:
        x, y = arrays
        with t.loop(count) as i:
            y.store((i,), t.level(x[i], levels, dtype))

    func = native.kernel([buffer(dt.u4, (count,)), buffer(dtype, (count,))], body)
    next(op for op in func.body.walk() if op.name == "for").attrs["kind"] = "vector"
    found = np.zeros(count, dtype.storage)
    native.run_kernel(func, [codes, found])
    np.testing.assert_array_equal(found, np.array(levels).astype(dtype.storage)[codes.astype(int)])


def looking_up(count: int, dtype: dt.DType = dt.u8, element: dt.DType = dt.u8) -> Any:
    types = [buffer(dtype, (count,)), buffer(element, (SIZE,)), buffer(element, (count,))]

    def body(t: Any, arrays: Any) -> None:
        x, table, y = arrays
        with t.loop(count) as i:
            y.store((i,), table[t.bind(t.bitcast(x[i], dt.u8), "byte", 0, 255)])

    func = native.kernel(types, body)
    next(op for op in func.body.walk() if op.name == "for").attrs["kind"] = "vector"
    return func


@pytest.mark.parametrize("dtype", (np.uint8, np.int8))
@pytest.mark.parametrize("element", (np.uint8, np.int8, np.float32))
@pytest.mark.parametrize("count", (1, 3, 16, 31, 64, 200))
def test_machine_code(count: int, dtype: Any, element: Any) -> None:
    x = RNG.integers(0, 256, count).astype(np.uint8)
    x[:2] = (0, 255)[: min(count, 2)]
    table = TABLE.view(element) if element != np.float32 else TABLE.astype(np.float32)
    func = looking_up(count, dt.from_numpy(np.dtype(dtype)), dt.from_numpy(np.dtype(element)))
    found = np.zeros(count, element)
    native.run_kernel(func, [x.view(dtype), table, found])
    np.testing.assert_array_equal(found, table[x])


@pytest.mark.parametrize(
    ("machine", "wanted", "at_most"),
    [
        ("x86-64-v2", "pshufb", 64),
        ("zen3", "vpshufb", 32),
        ("cascadelake", "vpshufb", 16),
        ("zen4", "vperm[it]2b", 2),
        ("neoverse-n1", "tb", 16),
    ],
)
def test_what_machines_do(machine: str, wanted: str, at_most: int) -> None:
    target = parse_target(machine)
    lines = assembly(kernel_ir(looking_up(64), target).text, target).splitlines()
    found = [line for line in lines if re.match(rf"\s+{wanted}", line)]
    assert 0 < len(found) <= at_most
    assert not [line for line in lines if "pinsrb" in line]
    assert host_target().byte_table is None or host_target().byte_table.instructions > 0
