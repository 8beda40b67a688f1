"""Images for other machines: what the linker writes, run by an emulator (qemu-user)."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tilewright.codegen.cpu.linking.link import link
from tilewright.runtime.storage.image import Image

BASE, UNIT = 0x10000000, 0x10000

PROGRAM = """
@table = private constant [4 x i32] [i32 10, i32 20, i32 30, i32 40], align 64
@bytes = private constant [4 x i8] c"\\01\\02\\03\\04"
@halves = private constant [4 x i16] [i16 5, i16 6, i16 7, i16 8]
@words = private constant [4 x i64] [i64 100, i64 200, i64 300, i64 400]
@vector = private constant <4 x i32> <i32 1, i32 2, i32 3, i32 4>
@pointers = private constant [2 x ptr] [ptr @first, ptr @second], align 16
@count = internal global i32 0, align 4
declare i32 @second(i32)
declare i32 @outside(i32)
define i32 @first(i32 %k) noinline {
  %i = zext i32 %k to i64
  %at = getelementptr [4 x i32], ptr @table, i64 0, i64 %i
  %found = load volatile i32, ptr %at
  %v = load volatile <4 x i32>, ptr @vector
  %e = extractelement <4 x i32> %v, i32 2
  %b.at = getelementptr [4 x i8], ptr @bytes, i64 0, i64 1
  %b = load volatile i8, ptr %b.at
  %h.at = getelementptr [4 x i16], ptr @halves, i64 0, i64 1
  %h = load volatile i16, ptr %h.at
  %w.at = getelementptr [4 x i64], ptr @words, i64 0, i64 1
  %w = load volatile i64, ptr %w.at
  %b32 = zext i8 %b to i32
  %h32 = zext i16 %h to i32
  %w32 = trunc i64 %w to i32
  %s1 = add i32 %found, %e
  %s2 = add i32 %s1, %b32
  %s3 = add i32 %s2, %h32
  %s4 = add i32 %s3, %w32
  ret i32 %s4
}
define ptr @address_of_second() noinline {
  ret ptr @second
}
define i32 @call(i32 %which, i32 %k) noinline {
  %i = zext i32 %which to i64
  %at = getelementptr [2 x ptr], ptr @pointers, i64 0, i64 %i
  %function = load volatile ptr, ptr %at
  %found = call i32 %function(i32 %k)
  ret i32 %found
}
define i32 @program() {
  %a = call i32 @call(i32 0, i32 1)
  %b = call i32 @call(i32 1, i32 1)
  %f = call ptr @address_of_second()
  %c = call i32 %f(i32 2)
  %d = call i32 @second(i32 3)
  %o = call i32 @outside(i32 40)
  %old = load volatile i32, ptr @count
  %s1 = add i32 %a, %b
  %s2 = add i32 %s1, %c
  %s3 = add i32 %s2, %d
  %s4 = add i32 %s3, %old
  store volatile i32 %s4, ptr @count
  %new = load volatile i32, ptr @count
  %right = icmp eq i32 %new, 3237
  %code = select i1 %right, i32 %o, i32 1
  ret i32 %code
}
"""
"""The sum: 20 + 3 + 2 + 6 + 200, 1001, 1002, 1003; the exit code is 40 + 2."""
SECOND = "define i32 @second(i32 %k) {\n  %next = add i32 %k, 1000\n  ret i32 %next\n}\n"
OUTSIDE = "define i32 @outside(i32 %k) {\n  %more = add i32 %k, 2\n  ret i32 %more\n}\n"


@dataclass(frozen=True)
class Emulated:
    """A machine: the emulator, LLVM's triple and features, the number and flags of ELF files, code that calls a
    function so many bytes away and ends the process with its result, and the byte order."""

    command: tuple[str, ...]
    triple: str
    features: str
    machine: int
    flags: int
    start: Callable[[int], bytes]
    order: str = "<"


def _aarch64(distance: int) -> bytes:
    """bl function; mov x8, #93; svc #0"""
    return struct.pack("<III", 0x94000000 | (distance >> 2 & 0x3FFFFFF), 0xD2800BA8, 0xD4000001)


def _riscv64(distance: int) -> bytes:
    """auipc ra, upper; jalr lower(ra); li a7, 93; ecall"""
    upper, lower = distance + 0x800 & 0xFFFFF000, distance & 0xFFF
    return struct.pack("<IIII", 0x97 | upper, 0x80E7 | lower << 20, 0x05D00893, 0x73)


def _s390x(distance: int) -> bytes:
    """aghi %r15, -160; brasl %r14, function; lghi %r1, 1; svc 0"""
    return struct.pack(">IHiIH", 0xA7FBFF60, 0xC0E5, (distance - 4) // 2, 0xA7190001, 0x0A00)


_RISCV = ("qemu-riscv64", "riscv64-unknown-linux-gnu")
MACHINES = {
    "aarch64": Emulated(("qemu-aarch64",), "aarch64-unknown-linux-gnu", "", 183, 0, _aarch64),
    "riscv64": Emulated(_RISCV[:1], _RISCV[1], "+m,+a,+f,+d,+c", 243, 5, _riscv64),
    "s390x": Emulated(("qemu-s390x",), "s390x-unknown-linux-gnu", "", 22, 0, _s390x, ">"),
    "riscv64 that relaxes": Emulated(_RISCV[:1], _RISCV[1], "+m,+a,+f,+d,+c,+relax", 243, 5, _riscv64),
}


def linked(machine: Emulated, texts: Sequence[str], level: int) -> Image:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(machine.triple).create_target_machine(
        reloc="pic", codemodel="small", opt=level, features=machine.features
    )
    return link([target.emit_object(llvm.parse_assembly(text)) for text in texts])


def executable(machine: Emulated, image: Image, outside: Image) -> bytes:
    """An ELF program that runs `program` of an image, loaded as the loader does, with a function of another one."""
    memory, order = bytearray(image.text) + image.data, machine.order
    other = -(-len(memory) // UNIT) * UNIT
    assert image.layout.imports == ("outside",)
    struct.pack_into(f"{order}q", memory, image.layout.table, BASE + other + outside.layout.symbols["outside"])
    for at, count in image.layout.based:
        for place in range(at, at + 8 * count, 8):
            struct.pack_into(f"{order}q", memory, place, BASE + struct.unpack_from(f"{order}q", memory, place)[0])
    memory = memory.ljust(other, b"\0") + outside.text
    entry = -(-len(memory) // UNIT) * UNIT
    memory = memory.ljust(entry, b"\0") + machine.start(image.layout.symbols["program"] - entry)
    size = len(memory)
    head = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02") + b"\x01" + bytes(9) + struct.pack(
        f"{order}HHIQQQIHHHHHH", 2, machine.machine, 1, BASE + entry, 64, 0, machine.flags, 64, 56, 1, 0, 0, 0
    )
    head += struct.pack(f"{order}IIQQQQQQ", 1, 7, UNIT, BASE, BASE, size, size, UNIT)
    return head.ljust(UNIT, b"\0") + memory


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("name", MACHINES)
def test_images_run_on_other_machines(name: str, level: int, tmp_path: Path) -> None:
    machine = MACHINES[name]
    image, outside = linked(machine, [PROGRAM, SECOND], level), linked(machine, [OUTSIDE], level)
    (tmp_path / "program").write_bytes(executable(machine, image, outside))
    (tmp_path / "program").chmod(0o755)
    if shutil.which(machine.command[0]) is None:
        pytest.skip(f"there is no {machine.command[0]}")
    done = subprocess.run([*machine.command, tmp_path / "program"], timeout=60, check=False, capture_output=True)
    assert done.returncode == 42, done.stderr
