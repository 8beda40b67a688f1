"""Objects become one image: what is in it, that it runs wherever it lies, and what is refused."""

from __future__ import annotations

import ctypes
import struct
import subprocess
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.runtime.native import compile_ir
from tilewright.codegen.cpu.linking.elf import read_elf
from tilewright.codegen.cpu.linking.link import link
from tilewright.ir.diag import InternalError
from tilewright.runtime.storage.image import Image
from tilewright.runtime.storage.loader import LoadedImage, code_of

pytestmark = pytest.mark.skipif("x86_64" not in llvm.get_process_triple(), reason="has functions of x86-64")

NUMBERS = """
@table = private constant [4 x i32] [i32 10, i32 20, i32 30, i32 40], align 64
@pointers = private constant [2 x ptr] [ptr @first, ptr @second], align 16
declare i32 @second(i32)
declare double @cos(double)
define i32 @first(i32 %k) {
  %at = getelementptr [4 x i32], ptr @table, i32 0, i32 %k
  %found = load i32, ptr %at
  ret i32 %found
}
define i32 @call(i32 %which, i32 %k) {
  %at = getelementptr [2 x ptr], ptr @pointers, i32 0, i32 %which
  %function = load ptr, ptr %at
  %found = call i32 %function(i32 %k)
  ret i32 %found
}
define ptr @address_of_second() {
  ret ptr @second
}
define double @cosine(double %x) {
  %found = call double @cos(double %x)
  ret double %found
}
"""
SECOND = """
@count = internal global i32 0, align 4
@room = internal global [100 x i32] zeroinitializer, align 64
define i32 @second(i32 %k) {
  %more = load i32, ptr @count
  %next = add i32 %more, %k
  store i32 %next, ptr @count
  %at = getelementptr [100 x i32], ptr @room, i32 0, i32 7
  store i32 %next, ptr %at
  ret i32 %next
}
"""
CONSTANT_SECOND = "define i32 @second(i32 %k) {\n  %next = add i32 %k, 1000\n  ret i32 %next\n}\n"


def function(loaded: LoadedImage, name: str, result: type, *arguments: type):
    return ctypes.CFUNCTYPE(result, *arguments)(loaded.address(name))


def linked(second: str = CONSTANT_SECOND) -> Image:
    return link([compile_ir(NUMBERS), compile_ir(second)], ["numbers", "second"])


def test_functions_tables_and_the_math_library_are_found() -> None:
    loaded = LoadedImage(linked())
    call = function(loaded, "call", ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)
    assert [call(0, k) for k in range(4)] == [10, 20, 30, 40]
    assert [call(1, k) for k in range(3)] == [1000, 1001, 1002]
    assert function(loaded, "cosine", ctypes.c_double, ctypes.c_double)(0.5) == pytest.approx(np.cos(0.5))
    assert function(loaded, "address_of_second", ctypes.c_void_p)() == loaded.address("second")
    assert loaded.address("cos") == loaded.address("nowhere") == 0


def test_what_an_image_is() -> None:
    layout = linked().layout
    assert layout.imports == ("cos",) and not layout.weak and not layout.writes
    assert {"first", "second", "call", "cosine", "address_of_second"} == layout.symbols.keys()
    assert layout.text % 4096 == 0 and layout.based  # the table of pointers, and the address of `second`
    assert linked() == linked()  # bytes and all


def test_nothing_of_the_code_differs_between_two_addresses() -> None:
    image = linked()
    one, other = LoadedImage(image), LoadedImage(image)
    starts = [loaded.address("first") - image.layout.symbols["first"] for loaded in (one, other)]
    assert starts[0] != starts[1]
    texts = [ctypes.string_at(start, image.layout.text) for start in starts]
    assert texts[0] == texts[1] == image.text
    assert ctypes.string_at(starts[0] + image.layout.text, image.layout.data) != image.data


def rights_at(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(n, 16) for n in line.split()[0].split("-"))
        if begin <= address < end:
            return line.split()[1]
    raise AssertionError("nothing is there")


@pytest.mark.parametrize(("second", "data"), [(CONSTANT_SECOND, "r--p"), (SECOND, "rw-p")])
def test_no_page_is_both_written_and_run(second: str, data: str) -> None:
    image = linked(second)
    loaded = LoadedImage(image)
    start = loaded.address("first") - image.layout.symbols["first"]
    assert rights_at(start) == rights_at(start + image.layout.text - 1) == "r-xp"
    assert rights_at(start + image.layout.text) == data


def test_users_share_code_and_not_what_it_writes() -> None:
    image = linked()
    assert code_of(image) is code_of(image)
    counting = linked(SECOND)
    assert counting.layout.writes
    kept = [code_of(counting), code_of(counting)]
    first, other = (function(one, "call", ctypes.c_int32, ctypes.c_int32, ctypes.c_int32) for one in kept)
    assert [first(1, 1), first(1, 1), other(1, 1)] == [1, 2, 1]


def test_weak_definitions_give_way_and_weak_names_may_be_missing() -> None:
    weak = "define weak i32 @second(i32 %k) {\n  ret i32 5\n}\n"
    image = link([compile_ir(weak), compile_ir(NUMBERS), compile_ir(CONSTANT_SECOND)])
    loaded = LoadedImage(image)
    assert function(loaded, "call", ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)(1, 1) == 1001
    maybe = "@tw_maybe = extern_weak global i8\ndefine ptr @maybe() {\n  ret ptr @tw_maybe\n}\n"
    image = link([compile_ir(maybe)])
    loaded = LoadedImage(image)
    assert image.layout.imports == image.layout.weak == ("tw_maybe",)
    assert function(loaded, "maybe", ctypes.c_void_p)() is None


def test_no_objects_make_an_empty_image() -> None:
    layout = link([]).layout
    assert layout.size == 0 and not layout.symbols
    assert LoadedImage(link([])).address("f") == 0


def changed(blob: bytes, section: bytes, offset: int, value: bytes) -> bytes:
    """An object with other bytes in the header of a section."""
    data = bytearray(blob)
    table, _, count, names = struct.unpack_from("<40xQ10xHHH", blob)
    (names_at,) = struct.unpack_from("<24xQ", blob, table + 64 * names)
    for k in range(count):
        (name,) = struct.unpack_from("<I", blob, table + 64 * k)
        if blob[names_at + name :].startswith(section + b"\0"):
            data[table + 64 * k + offset : table + 64 * k + offset + len(value)] = value
    return bytes(data)


def with_kind(kind: int) -> bytes:
    """An object whose first relocation is of another kind."""
    blob = bytearray(compile_ir(NUMBERS))
    found = read_elf(bytes(blob), "numbers").relocations[0]
    entry = struct.pack("<QQ", int(found.offset[0]), int(found.symbol[0]) << 32 | int(found.kind[0]))
    at = bytes(blob).index(entry)
    struct.pack_into("<Q", blob, at + 8, int(found.symbol[0]) << 32 | kind)
    return bytes(blob)


TLS = "@here = thread_local global i32 5\ndefine ptr @f() {\n  ret ptr @here\n}\n"
STARTS = (
    "@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 1, ptr @f, ptr null }]\n"
    "define void @f() {\n  ret void\n}\n"
)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"no object code", "object 0 cannot be linked: it is no ELF file of 64 bits"),
        (compile_ir(NUMBERS)[:40], "its headers are malformed"),
        (changed(compile_ir(NUMBERS), b".text", 24, b"\xff" * 8), "section 2 ends behind the file"),
        (with_kind(250), "it has a relocation of the type 250 of x86_64"),
        (with_kind(1), "code, or what is only read, holds an address"),
        (compile_ir(TLS), r"the section \.t\w+ is of type"),
        (compile_ir(STARTS), r"the section \.ctors[.\d]* is of type"),
        (compile_ir("@fixed = alias i8, inttoptr (i64 5 to ptr)\n"), "the same address wherever it lies"),
        (compile_ir("")[:18] + b"\xf3\x01" + compile_ir("")[20:], "it is for the machine 499, and known are"),
    ],
)  # fmt: skip
def test_what_cannot_be_linked_is_told_by_name(blob: bytes, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        link([blob] if b"second" not in blob[64:] else [blob, compile_ir(CONSTANT_SECOND)])


def test_a_symbol_has_one_definition() -> None:
    with pytest.raises(InternalError, match="second cannot be linked: the symbol 'second' is defined a second time"):
        link([compile_ir(CONSTANT_SECOND)] * 2, ["first", "second"])


def test_a_distance_that_does_not_fit() -> None:
    blob = bytearray(compile_ir(NUMBERS))
    found = read_elf(bytes(blob), "numbers").relocations[0]
    entry = struct.pack("<QQ", int(found.offset[0]), int(found.symbol[0]) << 32 | int(found.kind[0]))
    struct.pack_into("<q", blob, bytes(blob).index(entry) + 16, 1 << 40)
    with pytest.raises(InternalError, match=r"numbers cannot be linked: R_X86_64_\w+ is \d+ bytes away"):
        link([bytes(blob), compile_ir(CONSTANT_SECOND)], ["numbers"])


def test_the_linker_of_the_system_agrees(tmp_path: Path) -> None:
    """Code and constants are the same, byte by byte, where a shared library of the same objects has them."""
    try:
        subprocess.run(["ld", "--version"], capture_output=True, check=True)
    except OSError:
        pytest.skip("this system has no linker")
    source = (
        "@table = private constant [4 x i32] [i32 10, i32 20, i32 30, i32 40], align 64\n"
        "define i32 @f(i32 %k) {\n  %at = getelementptr [4 x i32], ptr @table, i32 0, i32 %k\n"
        "  %x = load i32, ptr %at\n  %y = call i32 @g(i32 %x)\n  ret i32 %y\n}\n"
        "define internal i32 @g(i32 %k) noinline {\n  %x = mul i32 %k, 3\n  ret i32 %x\n}\n"
    )
    (tmp_path / "a.o").write_bytes(compile_ir(source))
    subprocess.run(["ld", "-shared", "-o", "a.so", "a.o"], cwd=tmp_path, check=True)
    theirs = ctypes.CDLL(str(tmp_path / "a.so"))
    loaded = LoadedImage(link([compile_ir(source)]))
    ours = function(loaded, "f", ctypes.c_int32, ctypes.c_int32)
    assert [ours(k) for k in range(4)] == [theirs.f(k) for k in range(4)] == [30, 60, 90, 120]
