"""Blocks that native code allocates by itself lie between guard zones."""

from __future__ import annotations

import ctypes

import pytest

from tests.codegen.native import Native
from tests.runtime.native import compile_ir
from tests.zones.turned_on import findings_are_errors
from tilewright.runtime.errors import BeyondBufferError
from tilewright.runtime.guarded.pages import IS_AVAILABLE

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="there are zones on Linux for x86-64 only")

TOUCH = """
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)

define i32 @touch(i64 %bytes, i64 %first, i64 %last) {
entry:
  %at = alloca ptr
  %code = call i32 @posix_memalign(ptr %at, i64 64, i64 %bytes)
  %memory = load ptr, ptr %at
  br label %loop
loop:
  %k = phi i64 [ %first, %entry ], [ %next, %loop ]
  %byte = getelementptr i8, ptr %memory, i64 %k
  store volatile i8 1, ptr %byte
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %last
  br i1 %more, label %loop, label %done
done:
  call void @free(ptr %memory)
  ret i32 %code
}
"""


def touch(nbytes: int, first: int, last: int) -> int:
    native = Native(compile_ir(TOUCH))
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 3)(native.address("touch"))
    return int(function(nbytes, first, last))


@pytest.mark.parametrize("nbytes", [1, 64, 100, 4096, 5000])
def test_blocks_can_be_written_whole(nbytes: int) -> None:
    assert touch(nbytes, 0, nbytes) == 0


@pytest.mark.parametrize(
    ("nbytes", "first", "last", "found"),
    [
        (128, 128, 129, r"block of native code \(128 bytes\): a store 0 bytes after its end"),
        (100, 99, 103, r"block of native code \(100 bytes\): 3 bytes changed, from 0 bytes after its end"),
        (64, -2, 1, r"block of native code \(64 bytes\): 2 bytes changed, from 1 bytes before its start"),
    ],
)
def test_stores_beside_a_block(nbytes: int, first: int, last: int, found: str) -> None:
    with pytest.raises(BeyondBufferError, match=found), findings_are_errors():
        touch(nbytes, first, last)
