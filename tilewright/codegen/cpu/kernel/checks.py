"""Run-time errors that a kernel can report: numbered in the kernel, renumbered when a program uses it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.codegen.cpu.kernel.text import Text
from tilewright.codegen.program import Check

DIVISION_BY_ZERO = "integer division by zero"

REPORT = """\
define internal void @tw_report(ptr %state, i32 %local) noinline cold nounwind {
entry:
  %seen = load atomic i32, ptr %state monotonic, align 4
  %is_first = icmp eq i32 %seen, 0
  br i1 %is_first, label %write, label %end
write:
  %base_at = getelementptr i32, ptr %state, i64 1
  %base = load i32, ptr %base_at, align 4
  %code = add i32 %base, %local
  store atomic i32 %code, ptr %state monotonic, align 4
  br label %end
end:
  ret void
}
"""
"""`state` points to {i32 error, i32 base}: the first error becomes base + its number in the kernel (from
1)."""


@dataclass(eq=False)
class KernelChecks:
    """The checks of one kernel, each once, numbered from 1 in order of first use."""

    found: list[Check] = field(default_factory=list)

    def number(self, check: Check) -> int:
        if check not in self.found:
            self.found.append(check)
        return self.found.index(check) + 1


def report_where(text: Text, failed: str, number: int) -> None:
    """Report check `number` where the i1 operand `failed` holds, and go on."""
    text.functions["tw_report"] = REPORT
    bad, good = text.label("bad"), text.label("good")
    text.branch(failed, bad, good)
    text.start(bad)
    text.line(f"call void @tw_report(ptr %state, i32 {number})")
    text.jump(good)
    text.start(good)
