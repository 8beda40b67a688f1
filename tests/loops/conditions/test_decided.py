"""What conditions that are decided select and check."""

from __future__ import annotations

import pytest

from tilewright.loops.conditions import simplify as module
from tilewright.loops.conditions.simplify import simplify
from tilewright.loops.edit import find_loop, loops_in
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


def _many_loops(count: int) -> str:
    loop = "  for iK <= 49 in 0..50 { if iK >= 0 { y[iK] = select(index.bool(iK < 60), x[iK], y[iK]) } }\n"
    loops = "".join(loop.replace("K", str(k)) for k in range(count))
    return f"kernel @many(x: &i32[100], y: &i32[100]) dims() with {{outputs=1}} {{\n{loops}  return\n}}"


def test_a_loop_is_simplified_without_going_through_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strategies simplify each of the many loops that they cut a concatenation into."""

    def blocks_looked_at(count: int) -> int:
        kernel, looked_at = parse_kernel(_many_loops(count)), []
        erase_dead = module.erase_dead
        with monkeypatch.context() as patched:
            patched.setattr(module, "erase_dead", lambda *given: looked_at.append(given) or erase_dead(*given))
            simplify(kernel, find_loop(kernel, "i1"))
        left = [sum(op.name == "select" for op in loop.walk()) for loop in loops_in(kernel.body)[:3]]
        assert left == [1, 0, 1]
        return len(looked_at)

    assert blocks_looked_at(4) == blocks_looked_at(40)


SCRATCH = """
kernel @writes(x: &i32[100], y: &i32[100]) dims() with {outputs=1} {
  alloc t: scratch i32[50]
  for i <= 49 in 0..50 { t[i] = x[i] }
  for j <= 49 in 0..50 { y[j] = select(index.bool(j < 60), x[j], t[j]) }
  return
}
"""


def test_what_only_a_simplified_loop_has_read_goes_with_the_loops_that_write_it() -> None:
    kernel = parse_kernel(SCRATCH)
    assert any(op.name == "alloc" for op in kernel.body.walk())
    simplify(kernel, find_loop(kernel, "j"))
    assert [loop.attrs["var"].name for loop in loops_in(kernel.body)] == ["j"]
    assert not any(op.name == "alloc" for op in kernel.body.walk())


def test_a_loop_that_does_nothing_goes_with_the_loops_around() -> None:
    loops = "for i <= 8 in 0..9 { for j <= 3 in 0..4 { if j >= 9 { x[i] = i32(1) } } }"
    kernel = parse_kernel(f"kernel @n(x: &i32[9]) dims() with {{outputs=1}} {{ {loops} return }}")
    assert loops_in(kernel.body)
    simplify(kernel, find_loop(kernel, "j"))
    assert not loops_in(kernel.body)
