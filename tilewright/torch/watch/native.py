"""Digests of memory, at the speed of memory, and the look at pages that were written to: one native call for all.

The code is made once in a process, when first asked for, in a few milliseconds; it belongs to no artefact.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

ROW = 3
"""Words of a row: an address, a number of bytes, and their digest."""
SCAN = 12
"""Words of `struct pm_scan_arg` of linux/fs.h."""
PAGEMAP_SCAN = 0xC0606610
"""The request of that struct: _IOWR('f', 16, 96 bytes)."""

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64


class Call(ctypes.Structure):
    """What `unchanged` reads: rows, and scans of a file descriptor of /proc/self/pagemap."""

    _fields_ = (
        ("rows", _POINTER),
        ("row_count", _COUNT),
        ("scans", _POINTER),
        ("scan_count", _COUNT),
        ("pagemap", ctypes.c_int64),
    )


@dataclass(frozen=True)
class NativeWatch:
    """`fill(rows, count)` writes the digests of rows; `unchanged(call)` is 1 where no scan finds a page and all digests
    are those of the rows. The functions release the interpreter's lock."""

    fill: Any
    unchanged: Any
    engine: Any


@lru_cache(maxsize=1)
def native_watch() -> NativeWatch:
    """The functions, for this machine."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3
    )
    module = binding.parse_assembly(_TEXT + (_SCANS if sys.platform == "linux" else _NO_SCANS))
    engine = binding.create_mcjit_compiler(module, machine, use_lmm=True)  # all of it in one block of memory
    engine.finalize_object()
    fill = ctypes.CFUNCTYPE(None, _POINTER, _COUNT)(engine.get_function_address("tw_fill_digests"))
    unchanged = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER)(engine.get_function_address("tw_unchanged"))
    return NativeWatch(fill, unchanged, engine)


# A step takes a word into a state: (state ^ word) turned by 29 bits, times an odd number. For a given rest of the
# words it is one-to-one in each, so that a change of one word is always seen; the turn carries the upper bits, which
# the product alone would leave where they are (signs that flip in pairs), to the lower ones. Four states of 8 words
# hide what a product takes.
_VECTOR = "<8 x i64>"
_FACTOR = -7046029254386353131  # odd, without pattern: 2^64 divided by the golden ratio
_FACTORS = f"<{', '.join([f'i64 {_FACTOR}'] * 8)}>"
_TURNS = f"<{', '.join(['i64 29'] * 8)}>"
_STATES = range(4)


def _seed(k: int) -> str:
    return f"<{', '.join(f'i64 {1000003 * (8 * k + lane) + 12345}' for lane in range(8))}>"


_TEXT = f"""
declare i64 @llvm.fshl.i64(i64, i64, i64)
declare {_VECTOR} @llvm.fshl.v8i64({_VECTOR}, {_VECTOR}, {_VECTOR})

define internal i64 @step(i64 %state, i64 %word) alwaysinline nounwind {{
  %mixed = xor i64 %state, %word
  %turned = call i64 @llvm.fshl.i64(i64 %mixed, i64 %mixed, i64 29)
  %next = mul i64 %turned, {_FACTOR}
  ret i64 %next
}}

define internal {_VECTOR} @steps({_VECTOR} %state, {_VECTOR} %words) alwaysinline nounwind {{
  %mixed = xor {_VECTOR} %state, %words
  %turned = call {_VECTOR} @llvm.fshl.v8i64({_VECTOR} %mixed, {_VECTOR} %mixed, {_VECTOR} {_TURNS})
  %next = mul {_VECTOR} %turned, {_FACTORS}
  ret {_VECTOR} %next
}}

define internal i64 @digest(i64 %address, i64 %bytes) nounwind {{
entry:
  %data = inttoptr i64 %address to ptr
  %start = call i64 @step(i64 7, i64 %bytes)
  %wide.end = and i64 %bytes, -256
  %has.wide = icmp ne i64 %wide.end, 0
  br i1 %has.wide, label %wide, label %words.begin
wide:
  %at = phi i64 [ 0, %entry ], [ %at.next, %wide ]
{
    "".join(
        f"  %state{k} = phi {_VECTOR} [ {_seed(k)}, %entry ], [ %next{k}, %wide ]{chr(10)}" for k in _STATES
    )
}
{
    "".join(
        f'''  %at{k} = add i64 %at, {64 * k}
  %from{k} = getelementptr i8, ptr %data, i64 %at{k}
  %read{k} = load {_VECTOR}, ptr %from{k}, align 1
  %next{k} = call {_VECTOR} @steps({_VECTOR} %state{k}, {_VECTOR} %read{k})
'''
        for k in _STATES
    )
}
  %at.next = add i64 %at, 256
  %wide.done = icmp eq i64 %at.next, %wide.end
  br i1 %wide.done, label %fold, label %wide
fold:
  %two = call {_VECTOR} @steps({_VECTOR} %next0, {_VECTOR} %next1)
  %three = call {_VECTOR} @steps({_VECTOR} %two, {_VECTOR} %next2)
  %four = call {_VECTOR} @steps({_VECTOR} %three, {_VECTOR} %next3)
{
    "".join(
        f'''  %lane{k} = extractelement {_VECTOR} %four, i64 {k}
  %folded{k} = call i64 @step(i64 {f"%folded{k - 1}" if k else "%start"}, i64 %lane{k})
'''
        for k in range(8)
    )
}
  br label %words.begin
words.begin:
  %before.words = phi i64 [ %start, %entry ], [ %folded7, %fold ]
  %words.end = and i64 %bytes, -8
  br label %words
words:
  %word.at = phi i64 [ %wide.end, %words.begin ], [ %word.next, %word ]
  %by.words = phi i64 [ %before.words, %words.begin ], [ %with.word, %word ]
  %words.done = icmp eq i64 %word.at, %words.end
  br i1 %words.done, label %bytes.loop, label %word
word:
  %word.from = getelementptr i8, ptr %data, i64 %word.at
  %word.read = load i64, ptr %word.from, align 1
  %with.word = call i64 @step(i64 %by.words, i64 %word.read)
  %word.next = add i64 %word.at, 8
  br label %words
bytes.loop:
  %byte.at = phi i64 [ %words.end, %words ], [ %byte.next, %byte ]
  %by.bytes = phi i64 [ %by.words, %words ], [ %with.byte, %byte ]
  %bytes.done = icmp eq i64 %byte.at, %bytes
  br i1 %bytes.done, label %end, label %byte
byte:
  %byte.from = getelementptr i8, ptr %data, i64 %byte.at
  %byte.read = load i8, ptr %byte.from
  %byte.word = zext i8 %byte.read to i64
  %with.byte = call i64 @step(i64 %by.bytes, i64 %byte.word)
  %byte.next = add i64 %byte.at, 1
  br label %bytes.loop
end:
  %upper = lshr i64 %by.bytes, 32
  %found = call i64 @step(i64 %by.bytes, i64 %upper)
  ret i64 %found
}}

define void @tw_fill_digests(ptr %rows, i64 %count) nounwind {{
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %body ]
  %done = icmp eq i64 %k, %count
  br i1 %done, label %end, label %body
body:
  %row = getelementptr [{ROW} x i64], ptr %rows, i64 %k
  %bytes.at = getelementptr i64, ptr %row, i64 1
  %digest.at = getelementptr i64, ptr %row, i64 2
  %address = load i64, ptr %row
  %bytes = load i64, ptr %bytes.at
  %found = call i64 @digest(i64 %address, i64 %bytes)
  store i64 %found, ptr %digest.at
  %k.next = add i64 %k, 1
  br label %head
end:
  ret void
}}

define i32 @tw_unchanged(ptr %call) nounwind {{
entry:
  %rows = load ptr, ptr %call
  %count.at = getelementptr i64, ptr %call, i64 1
  %count = load i64, ptr %count.at
  %scans.at = getelementptr i64, ptr %call, i64 2
  %scans = load ptr, ptr %scans.at
  %scan.count.at = getelementptr i64, ptr %call, i64 3
  %scan.count = load i64, ptr %scan.count.at
  %pagemap.at = getelementptr i64, ptr %call, i64 4
  %pagemap = load i64, ptr %pagemap.at
  br label %pages
pages:
  %p = phi i64 [ 0, %entry ], [ %p.next, %page ]
  %pages.done = icmp eq i64 %p, %scan.count
  br i1 %pages.done, label %head, label %page
page:
  %scan = getelementptr [{SCAN} x i64], ptr %scans, i64 %p
  %written = call i32 @scanned(i64 %pagemap, ptr %scan)
  %is.clean = icmp eq i32 %written, 0
  %p.next = add i64 %p, 1
  br i1 %is.clean, label %pages, label %differs
head:
  %k = phi i64 [ 0, %pages ], [ %k.next, %body ]
  %done = icmp eq i64 %k, %count
  br i1 %done, label %same, label %body
body:
  %row = getelementptr [{ROW} x i64], ptr %rows, i64 %k
  %bytes.at = getelementptr i64, ptr %row, i64 1
  %digest.at = getelementptr i64, ptr %row, i64 2
  %address = load i64, ptr %row
  %bytes = load i64, ptr %bytes.at
  %expected = load i64, ptr %digest.at
  %found = call i64 @digest(i64 %address, i64 %bytes)
  %is.same = icmp eq i64 %found, %expected
  %k.next = add i64 %k, 1
  br i1 %is.same, label %head, label %differs
same:
  ret i32 1
differs:
  ret i32 0
}}
"""

_SCANS = f"""
declare i32 @ioctl(i32, i64, ...)

define internal i32 @scanned(i64 %pagemap, ptr %scan) nounwind {{
  %file = trunc i64 %pagemap to i32
  %found = call i32 (i32, i64, ...) @ioctl(i32 %file, i64 {PAGEMAP_SCAN}, ptr %scan)
  ret i32 %found
}}
"""

_NO_SCANS = """
define internal i32 @scanned(i64 %pagemap, ptr %scan) nounwind {
  ret i32 1
}
"""
