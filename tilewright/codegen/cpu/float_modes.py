"""The floating-point modes of a thread (rounding, denormals), as LLVM IR text for each architecture."""

from __future__ import annotations

from tilewright.target.target import arch_of

FLUSH_DENORMALS = {"x86_64": 0x8040, "aarch64": 1 << 24}
"""Bits of the modes that take denormal operands as zero and give zero for denormal results; others have none."""


def float_modes(triple: str) -> str:
    """Definitions of `i64 tw_get_float()` and `void tw_set_float(i64)`, internal to the module they are put in."""
    return {"x86_64": _X86, "aarch64": _AARCH64}.get(arch_of(triple), _NO_MODES)


_X86 = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal i64 @tw_get_float() alwaysinline nounwind {
  %slot = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %slot)
  %word = load i32, ptr %slot
  ; without the sticky exception flags
  %modes = and i32 %word, 65472
  %wide = zext i32 %modes to i64
  ret i64 %wide
}
define internal void @tw_set_float(i64 %modes) alwaysinline nounwind {
  %slot = alloca i32
  %word = trunc i64 %modes to i32
  store i32 %word, ptr %slot
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  ret void
}
"""

_AARCH64 = """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define internal i64 @tw_get_float() alwaysinline nounwind {
  %modes = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %modes
}
define internal void @tw_set_float(i64 %modes) alwaysinline nounwind {
  call void @llvm.aarch64.set.fpcr(i64 %modes)
  ret void
}
"""

# Nobody changes the rounding mode of the others.
_NO_MODES = """
define internal i64 @tw_get_float() alwaysinline nounwind {
  ret i64 0
}
define internal void @tw_set_float(i64 %modes) alwaysinline nounwind {
  ret void
}
"""
