"""Memory of native steps, as LLVM IR text: blocks that values share, and that their slots use again.

- `ptr tw_take(ptr list, i64 bytes)`: a block that one slot refers to, from a list of free ones where its first is large
  enough; null without memory.
- `void tw_keep(ptr block)`, `void tw_release(ptr block)`: one reference more or less; null does nothing. Without
  references a block goes back to its list.
- `i1 tw_is_only(ptr block)`: does one slot alone refer to a block? False for null.
- `i1 tw_reserve(ptr at, i64 bytes)`: makes the memory whose address and size are at `at` large enough; what was there
  is lost. False without memory.
- `i32 tw_append(ptr rows, ptr row, i64 rank, i64 trip, i64 bytes)`: puts the tensor of slot `row` behind the others in
  `rows`, a slot of one rank more: 0, or the number of an error.
"""

from __future__ import annotations

from tilewright.codegen.cpu.program.pool_platform import clock_ir, has_threads
from tilewright.runtime.staged import frame

HEADER = 64
"""Bytes of a block before its memory, which begins at a cache line."""

MOST_BYTES = 1 << 46
"""More than any machine has."""


def step_memory_ir(triple: str) -> str:
    """The functions above, and `tw_now`, for a target triple. In WebAssembly the library brings what allocates."""
    text = _STEP_MEMORY.replace("CLOCK", clock_ir(triple))
    return text if has_threads(triple) else text.replace("@posix_memalign(", "@tw_memalign(")


_STEP_MEMORY = f"""
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
CLOCK
define internal ptr @tw_allocated(i64 %bytes) nounwind {{
entry:
  %at = alloca ptr
  %absurd = icmp ugt i64 %bytes, {MOST_BYTES}
  br i1 %absurd, label %none, label %try
try:
  %code = call i32 @posix_memalign(ptr %at, i64 {HEADER}, i64 %bytes)
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %none, label %done
done:
  %memory = load ptr, ptr %at
  ret ptr %memory
none:
  ret ptr null
}}

define internal ptr @tw_take(ptr %list, i64 %bytes) nounwind {{
entry:
  br label %look
look:
  %dropped = phi i1 [ false, %entry ], [ true, %drop ]
  %first = load ptr, ptr %list
  %empty = icmp eq ptr %first, null
  br i1 %empty, label %make, label %measure
measure:
  %size.at = getelementptr i64, ptr %first, i64 1
  %size = load i64, ptr %size.at
  %next.at = getelementptr i64, ptr %first, i64 3
  %next = load ptr, ptr %next.at
  store ptr %next, ptr %list
  %fits = icmp uge i64 %size, %bytes
  br i1 %fits, label %use, label %drop
use:
  store i64 1, ptr %first
  ret ptr %first
drop:
  call void @free(ptr %first)
  br label %look
make:
  %half = lshr i64 %bytes, 1
  %more = select i1 %dropped, i64 %half, i64 0 ; a value that grows will grow on
  %room = add i64 %bytes, %more
  %all = add i64 %room, {HEADER}
  %made = call ptr @tw_allocated(i64 %all)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %none, label %fill
fill:
  store i64 1, ptr %made
  %room.at = getelementptr i64, ptr %made, i64 1
  store i64 %room, ptr %room.at
  %list.at = getelementptr i64, ptr %made, i64 2
  store ptr %list, ptr %list.at
  ret ptr %made
none:
  ret ptr null
}}

define internal i1 @tw_is_only(ptr %block) nounwind {{
entry:
  %none = icmp eq ptr %block, null
  br i1 %none, label %no, label %count
count:
  %slots = load i64, ptr %block
  %only = icmp eq i64 %slots, 1
  ret i1 %only
no:
  ret i1 false
}}

define internal void @tw_keep(ptr %block) nounwind {{
entry:
  %none = icmp eq ptr %block, null
  br i1 %none, label %done, label %count
count:
  %before = load i64, ptr %block
  %after = add i64 %before, 1
  store i64 %after, ptr %block
  br label %done
done:
  ret void
}}

define internal void @tw_release(ptr %block) nounwind {{
entry:
  %none = icmp eq ptr %block, null
  br i1 %none, label %done, label %count
count:
  %before = load i64, ptr %block
  %after = sub i64 %before, 1
  store i64 %after, ptr %block
  %used = icmp ne i64 %after, 0
  br i1 %used, label %done, label %give
give:
  %list.at = getelementptr i64, ptr %block, i64 2
  %list = load ptr, ptr %list.at
  %first = load ptr, ptr %list
  %next.at = getelementptr i64, ptr %block, i64 3
  store ptr %first, ptr %next.at
  store ptr %block, ptr %list
  br label %done
done:
  ret void
}}

define internal i1 @tw_reserve(ptr %at, i64 %bytes) nounwind {{
entry:
  %size.at = getelementptr i64, ptr %at, i64 1
  %size = load i64, ptr %size.at
  %fits = icmp uge i64 %size, %bytes
  br i1 %fits, label %done, label %renew
renew:
  %old = load ptr, ptr %at
  call void @free(ptr %old)
  store ptr null, ptr %at
  store i64 0, ptr %size.at
  %made = call ptr @tw_allocated(i64 %bytes)
  store ptr %made, ptr %at
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %none, label %keep
keep:
  store i64 %bytes, ptr %size.at
  br label %done
done:
  ret i1 true
none:
  ret i1 false
}}

define internal i32 @tw_append(ptr %rows, ptr %row, i64 %rank, i64 %trip, i64 %bytes) nounwind {{
entry:
  %count.at = getelementptr i64, ptr %rows, i64 {frame.DIMS}
  %is.first = icmp eq i64 %trip, 0
  br label %check
check:
  %axis = phi i64 [ 0, %entry ], [ %axis.next, %same ]
  %over = icmp eq i64 %axis, %rank
  br i1 %over, label %room, label %axis.of
axis.of:
  %word = add i64 %axis, {frame.DIMS}
  %dim.at = getelementptr i64, ptr %row, i64 %word
  %dim = load i64, ptr %dim.at
  %word.of.rows = add i64 %word, 1
  %dim.of.rows.at = getelementptr i64, ptr %rows, i64 %word.of.rows
  br i1 %is.first, label %set, label %compare
set:
  store i64 %dim, ptr %dim.of.rows.at
  br label %same
compare:
  %expected = load i64, ptr %dim.of.rows.at
  %equal = icmp eq i64 %dim, %expected
  br i1 %equal, label %same, label %differ
same:
  %axis.next = add i64 %axis, 1
  br label %check
differ:
  ret i32 {frame.ROWS_DIFFER}
room:
  %count = add i64 %trip, 1
  %product = call {{ i64, i1 }} @llvm.umul.with.overflow.i64(i64 %count, i64 %bytes)
  %needed = extractvalue {{ i64, i1 }} %product, 0
  %absurd = extractvalue {{ i64, i1 }} %product, 1
  br i1 %absurd, label %none, label %block.of
block.of:
  %block.at = getelementptr i64, ptr %rows, i64 {frame.BLOCK}
  %block = load ptr, ptr %block.at
  %no.block = icmp eq ptr %block, null
  br i1 %no.block, label %grow, label %measure
measure:
  %size.at = getelementptr i64, ptr %block, i64 1
  %size = load i64, ptr %size.at
  %fits = icmp uge i64 %size, %needed
  br i1 %fits, label %put, label %grow
grow:
  %list = getelementptr i64, ptr %rows, i64 {frame.FREE}
  %double = shl i64 %needed, 1
  %larger = call ptr @tw_take(ptr %list, i64 %double)
  %failed = icmp eq ptr %larger, null
  br i1 %failed, label %none, label %move
move:
  %old = load ptr, ptr %rows
  %memory = getelementptr i8, ptr %larger, i64 {HEADER}
  %present = mul i64 %trip, %bytes
  call void @llvm.memcpy.p0.p0.i64(ptr %memory, ptr %old, i64 %present, i1 false)
  call void @tw_release(ptr %block)
  store ptr %larger, ptr %block.at
  store ptr %memory, ptr %rows
  br label %put
put:
  %begin = load ptr, ptr %rows
  %skip = mul i64 %trip, %bytes
  %place = getelementptr i8, ptr %begin, i64 %skip
  %source = load ptr, ptr %row
  call void @llvm.memcpy.p0.p0.i64(ptr %place, ptr %source, i64 %bytes, i1 false)
  store i64 %count, ptr %count.at
  ret i32 {frame.DONE}
none:
  ret i32 {frame.NO_MEMORY}
}}
"""
