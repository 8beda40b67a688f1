"""What conditions that are decided select and check."""

from __future__ import annotations

import pytest

from tilewright.loops.conditions.simplify import simplify
from tilewright.loops.kernel_info import parse_kernel

TEXT = """
kernel @picks(x: &i32[100], y: &i32[100], z: &i32[100]) dims() with {outputs=1} {
  for i <= 49 in 0..50 {
    v0: bool = i32(7) != i32(ZERO)
    check v0 else ExecutionError("integer division by zero")
    z[i] = select(v0, select(index.bool(i < LIMIT), x[i], y[i]), select(i32(7) == i32(-1), x[i], y[i]))
  }
  return
}
"""


@pytest.mark.parametrize(
    ("zero", "limit", "left"),
    [
        (0, 50, (["x"], False)),
        (0, 0, (["y"], False)),
        (0, 20, (["x", "y"], False)),
        (7, 50, (["y"], True)),
    ],
)
def test_what_is_decided_goes(zero: int, limit: int, left: tuple[list[str], bool]) -> None:
    kernel = parse_kernel(TEXT.replace("ZERO", str(zero)).replace("LIMIT", str(limit)))
    simplify(kernel)
    ops = list(kernel.body.walk())
    read = sorted({op.operands[0].name for op in ops if op.name == "load"})
    assert (read, any(op.name == "check" for op in ops)) == left
    assert any(op.name == "select" for op in ops) == (len(read) > 1)
