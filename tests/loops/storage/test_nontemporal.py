"""Stores past the caches: how they are written, that results stay for any address, and where they are refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.native import run_kernel
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir.core import Func, Op
from tilewright.ir.diag import ScheduleError, VerifyError
from tilewright.ir.sym import le, sym, var
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.loops.storage.nontemporal import nontemporal
from tilewright.ops.define.loop_programs import run_kernel as interpret
from tilewright.target.named import NAMED

LINES = """
kernel @k(x: &f32[n, 20], y: &f32[n, 20]) dims(n) with {outputs=1} {
  for i in 0..n parallel {
    prefetch y[i + 1, 0]
    for j in 0..16 vector {
      y[i, j] = x[i, j] * 2
    }
    for r in 0..4 vector {
      y[i, r + 16] = x[i, r + 16] * 2
    }
  }
  return
}
"""


def read(text: str = LINES) -> Func:
    return parse_kernel(text)


def stores(func: Func) -> list[Op]:
    return [o for o in func.body.walk() if o.name == "store"]


def streamed(least: int = 3) -> Func:
    func = read()
    nontemporal(func, stores(func)[0], le(least, var("n")))
    return func


def test_a_streamed_store_is_written_with_its_condition_and_asked_for_no_more() -> None:
    text = print_func(streamed())
    assert "y[i, j] = x[i, j] * 2 with {nontemporal=`n >= 3`}" in text or "with {nontemporal=`3 <= n`}" in text
    assert "prefetch" not in text
    assert print_func(read(text)) == text
    verify_func(streamed(), LOOPS_SPEC)


@pytest.mark.parametrize("n", [0, 2, 3, 9])
@pytest.mark.parametrize("shift", [0, 1, 12])
def test_results_stay_wherever_lines_begin(n: int, shift: int) -> None:
    # rows of 80 bytes: each begins elsewhere in a cache line
    x = np.random.default_rng(n).standard_normal((n, 20)).astype(np.float32)
    memory = np.full(n * 20 + 64, 7, np.float32)
    start = -memory.ctypes.data // 4 % 16 + shift
    y = memory[start : start + n * 20].reshape(n, 20)
    _, error = run_kernel(streamed(), [x, y], [n], slices=[(0, 1), (1, n)])
    assert not error
    np.testing.assert_array_equal(y, 2 * x)
    assert (memory[:start] == 7).all() and (memory[start + n * 20 :] == 7).all()
    z = np.zeros_like(y)
    interpret(streamed(), [x, z], {"n": n})
    np.testing.assert_array_equal(z, y)


@pytest.mark.parametrize(("name", "count"), [("zen3", 2), ("zen4", 1), ("cascadelake", 1)])
def test_lines_are_stored_by_instructions_that_pass_the_caches(name: str, count: int) -> None:
    text = assembly(kernel_ir(streamed(), NAMED[name]).text, NAMED[name])
    assert text.count("vmovntps") == count
    assert text.count("sfence") == 1  # before the kernel ends, as other threads read what it stored


def test_other_architectures_need_no_fence() -> None:
    text = kernel_ir(streamed(), NAMED["neoverse-n1"]).text
    assert "!nontemporal" in text and "fence" not in text


def test_nothing_is_streamed_where_the_condition_never_holds() -> None:
    func = read()
    nontemporal(func, stores(func)[0], sym(0))
    assert "nontemporal" not in kernel_ir(func, NAMED["zen3"]).text


def refused(text: str, index: int = 0) -> str:
    func = read(text)
    before = print_func(func)
    with pytest.raises(ScheduleError) as caught:
        nontemporal(func, stores(func)[index], sym(1))
    assert print_func(func) == before
    return str(caught.value)


def test_where_it_is_refused() -> None:
    assert refused(LINES, 1).endswith("loop 'r' (0..4, vector) is not a number of whole cache lines")
    assert refused(LINES.replace("16 vector", "16")).endswith("the store is no vector")
    assert refused(LINES.replace("y[i, j] =", "y[i, j if i < 4] =")).endswith("the store has a condition")
    assert refused(LINES.replace("y[i, j] =", "y[i, 15 - j] =")).endswith("are not contiguous")
    assert refused(LINES.replace("y[i, j] =", "y[i, j] +=")).endswith("the kernel reads it")
    local = LINES.replace("  for i", "  alloc t: scratch f32[n, 20]\n  for i", 1).replace(
        "y[i, j]", "t[i, j]"
    )
    assert refused(local).endswith("it is no argument")


def test_the_condition_is_an_expression() -> None:
    func = streamed()
    stores(func)[0].attrs["nontemporal"] = True
    with pytest.raises(VerifyError, match="'nontemporal' is a condition, not True"):
        verify_func(func, LOOPS_SPEC)
