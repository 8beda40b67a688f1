"""Constants of less than a byte, which are fields of words."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.native import run_kernel as run_natively
from tests.loops.storage.test_halves import runs_here
from tilewright.codegen.cpu.assemble import Unit, assembly, compile_all
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.conditions.simplify import simplify
from tilewright.loops.edit import buffer_type, find_loop
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.lanes.unroll import unroll
from tilewright.loops.lanes.vectorize import vectorize
from tilewright.loops.machine.rules import spec_of
from tilewright.loops.order.split import split
from tilewright.loops.storage.pack import pack_argument
from tilewright.loops.storage.packing import PackedArray, Packing, apply_packing
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.target.named import parse_target
from tilewright.target.target import Target

BITS = {"bool": 1, "i2": 2, "u2": 2, "i4": 4, "u4": 4}
ROWS = 64


def packing(bits: int) -> Packing:
    """Panels of 16 columns, in which words have elements of one column."""
    found = Packing(((), (16,)), (1, 0, 2)).in_words(0, bits)
    assert found is not None
    return found


def elements(dtype: str, columns: int, seed: int = 0) -> np.ndarray:
    low = -(1 << BITS[dtype] - 1) if dtype.startswith("i") else 0
    found = np.random.default_rng(seed).integers(low, low + (1 << BITS[dtype]), (ROWS, columns))
    return found.astype(dt.BY_NAME[dtype].storage)


def kernel(dtype: str, columns: int = 20) -> Func:
    return parse_kernel(f"""
kernel @k(w: &{dtype}[{ROWS}, {columns}], y: &f32[{ROWS}, {columns}]) dims() with {{outputs=1, constants=(0,)}} {{
  for i in 0..{ROWS} {{
    for j in 0..{columns} {{
      y[i, j] = f32(w[i, j])
    }}
  }}
  return
}}
""")


def planes(high: str, low: str, columns: int) -> Func:
    return parse_kernel(f"""
kernel @k(h: &{high}[{ROWS}, {columns}], l: &{low}[{ROWS}, {columns}], y: &f32[{ROWS}, {columns}])
    dims() with {{outputs=1, constants=(0, 1)}} {{
  for i in 0..{ROWS} {{
    for j in 0..{columns} {{
      y[i, j] = f32(i8(h[i, j]) * {1 << BITS[low]} + i8(l[i, j]))
    }}
  }}
  return
}}
""")


def check(func: Func, arrays: list[np.ndarray], wanted: np.ndarray, target: str = "") -> None:
    """In the interpreter and as native code of a target."""
    y = np.zeros(wanted.shape, np.float32)
    run_kernel(func, [*arrays, y])
    np.testing.assert_array_equal(y, wanted)
    if not target:
        return
    machine, native = parse_target(target), np.zeros_like(y)
    assert isinstance(machine, Target)
    if runs_here(machine):
        run_natively(func, [*arrays, native], target=machine)
        np.testing.assert_array_equal(native, wanted)
    else:
        compile_all([Unit(kernel_ir(func, machine).text)], machine, 1)


@pytest.mark.parametrize("dtype", BITS)
def test_words_mean_the_same_and_hold_no_more_bits(dtype: str) -> None:
    func, array = kernel(dtype, 32), elements(dtype, 32)
    pack_argument(func, func.args[0], packing(BITS[dtype]))
    assert buffer_type(func.args[0]).dtype is dt.u32
    stored = apply_packing(array, packing(BITS[dtype]))
    assert stored.nbytes == array.size * BITS[dtype] // 8
    text = print_func(func)
    assert print_func(parse_kernel(text)) == text
    verify_func(func, spec_of(parse_target("x86-64-v3")))
    check(func, [stored], array.astype(np.float32))


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64-neon"])
@pytest.mark.parametrize("columns", [20, 48])
def test_machine_code_takes_all_bytes_of_a_word(dtype: str, target: str, columns: int) -> None:
    func, array = kernel(dtype, columns), elements(dtype, columns)
    rows = split(func, find_loop(func, "i"), 4)
    vectorize(func, find_loop(func, "j"), 16)
    unroll(func, rows.inner)
    pack_argument(func, func.args[0], packing(BITS[dtype]))
    check(func, [apply_packing(array, packing(BITS[dtype]))], array.astype(np.float32), target)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("high", "low"), [("i2", "bool"), ("u2", "bool"), ("i4", "bool"), ("u4", "bool"), ("i4", "u2"), ("u4", "u2")]
)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64-neon"])
@pytest.mark.parametrize("together", [4, 8, 0])
def test_planes_are_joined(high: str, low: str, target: str, together: int) -> None:
    """Four rows of a word in an iteration, eight, which have places that are known, and one, whose byte is not."""
    func, above, below = planes(high, low, 48), elements(high, 48), elements(low, 48, 1)
    if together:
        unroll(func, split(func, find_loop(func, "i"), together).inner)
    vectorize(func, find_loop(func, "j"), 16)
    for arg, name in zip(func.args[:2], (high, low), strict=True):
        pack_argument(func, arg, packing(BITS[name]))
    arrays = [apply_packing(a, packing(BITS[name])) for a, name in ((above, high), (below, low))]
    wanted = above.astype(np.float32) * (1 << BITS[low]) + below.astype(np.float32)
    check(func, arrays, wanted, target)


def test_fields_of_four_bytes_are_brought_together_once() -> None:
    func = planes("i4", "u2", 16)
    for arg, bits in zip(func.args[:2], (4, 2), strict=True):
        pack_argument(func, arg, packing(bits))
    unroll(func, split(func, find_loop(func, "i"), 4).inner)
    simplify(func)
    vectorize(func, find_loop(func, "j"), 16)
    machine = parse_target("zen4")
    assert isinstance(machine, Target)
    code = assembly(kernel_ir(func, machine).text, machine)
    assert code.count("vprorvd") + code.count("vprolvd") == 1
    assert not any(name in code for name in ("vpmovdb", "vpmovsxbd", "vpgather"))


@pytest.mark.parametrize("dtype", BITS)
def test_the_first_words_are_known_without_the_others(dtype: str) -> None:
    packed = PackedArray(elements(dtype, 20), packing(BITS[dtype]))
    whole = packed.make().reshape(-1)
    for count in (0, 1, 5, 33, whole.size + 4):
        np.testing.assert_array_equal(packed.first(count), whole[:count])


def test_other_elements_and_packings_are_refused() -> None:
    func = kernel("u2")
    with pytest.raises(ScheduleError, match="not fields of 4 bits"):
        pack_argument(func, func.args[0], packing(4))
    with pytest.raises(ScheduleError, match="of words one of 4 before it"):
        Packing(((2, 4), (16,)), (3, 0, 4, 1, 2), fields=4, words=True)
    with pytest.raises(ScheduleError, match="1, 2 or 4 bits, not 3"):
        Packing(((3, 4), (16,)), (3, 0, 4, 2, 1), fields=3, words=True)
    assert Packing(((4,), (16,)), (2, 0, 1, 3)).in_words(0, 2) is None
