"""Constants of 4 bits, two of which are a byte."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.native import run_kernel as run_natively
from tilewright.codegen.cpu.assemble import Unit, compile_all
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.edit import buffer_type, find_loop
from tilewright.loops.kernel_info import kernel_info, parse_kernel
from tilewright.loops.lanes.unroll import unroll
from tilewright.loops.lanes.vectorize import vectorize
from tilewright.loops.machine.rules import spec_of
from tilewright.loops.order.split import split
from tilewright.loops.storage.pack import pack, pack_argument
from tilewright.loops.storage.packing import Packing, apply_packing, identity_packing
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.schedule.trace import Schedule
from tilewright.target.host import host_target
from tilewright.target.named import parse_target
from tilewright.target.target import Target

HALVES = Packing(((2,), (16,)), (2, 0, 3, 1), fields=4)
"""Panels of 16 columns, in which a row lies in the upper halves of the one before it."""


def kernel(dtype: str, rows: int = 6, columns: int = 20) -> Func:
    return parse_kernel(f"""
kernel @k(w: &{dtype}[{rows}, {columns}], y: &f32[{rows}, {columns}]) dims() with {{outputs=1, constants=(0,)}} {{
  for i in 0..{rows} {{
    for j in 0..{columns} {{
      y[i, j] = f32(w[i, j])
    }}
  }}
  return
}}
""")


def elements(dtype: dt.DType, rows: int = 6, columns: int = 20) -> np.ndarray:
    low = -8 if dtype is dt.i4 else 0
    found = np.random.default_rng(rows).integers(low, low + 16, (rows, columns))
    found[0, :16] = np.arange(low, low + 16)  # each of them, in both halves
    found[1, :16] = np.arange(low, low + 16)[::-1]
    return found.astype(dtype.storage)


def runs_here(target: Target) -> bool:
    host = host_target()
    return target.arch == host.arch and set(target.features) <= set(host.features)


@pytest.mark.parametrize("dtype", [dt.i4, dt.u4])
def test_a_load_takes_its_half(dtype: dt.DType) -> None:
    func = kernel(dtype.name)
    pack_argument(func, func.args[0], HALVES)
    taken = f"{dtype.name}(shr(w[j // 16, i // 2, j % 16], index.u8(4*(i % 2))))"
    assert taken in print_func(func)
    assert buffer_type(func.args[0]).dtype is dt.u8
    text = print_func(func)
    assert print_func(parse_kernel(text)) == text
    verify_func(func, spec_of(parse_target("x86-64-v3")))


@pytest.mark.parametrize("dtype", [dt.i4, dt.u4])
@pytest.mark.parametrize("rows", [6, 5])
def test_bytes_are_half_as_many_and_mean_the_same(dtype: dt.DType, rows: int) -> None:
    func, array = kernel(dtype.name, rows, 32), elements(dtype, rows, 32)
    pack_argument(func, func.args[0], HALVES)
    stored = apply_packing(array, kernel_info(func).packed[0])
    assert stored.dtype == np.uint8
    assert stored.nbytes == (rows + 1) // 2 * 32
    y = np.zeros(array.shape, np.float32)
    run_kernel(func, [stored, y])
    np.testing.assert_array_equal(y, array.astype(np.float32))


@pytest.mark.parametrize("dtype", [dt.i4, dt.u4])
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64-neon"])
@pytest.mark.parametrize("columns", [20, 48])
def test_machine_code_takes_both_halves(dtype: dt.DType, target: str, columns: int) -> None:
    func, array = kernel(dtype.name, 6, columns), elements(dtype, 6, columns)
    rows = split(func, find_loop(func, "i"), 2)
    vectorize(func, find_loop(func, "j"), 16)
    unroll(func, rows.inner)
    pack_argument(func, func.args[0], HALVES)
    stored, y = apply_packing(array, HALVES), np.zeros(array.shape, np.float32)
    run_kernel(func, [stored, y])
    np.testing.assert_array_equal(y, array.astype(np.float32))
    machine, native = parse_target(target), np.zeros_like(y)
    assert isinstance(machine, Target)
    if runs_here(machine):
        run_natively(func, [stored, native], target=machine)
        np.testing.assert_array_equal(native, y)
    else:
        compile_all([Unit(kernel_ir(func, machine).text)], machine, 1)


def test_a_shift_that_is_not_known_is_taken_by_the_letter() -> None:
    func, array = kernel("i4"), elements(dt.i4)
    vectorize(func, find_loop(func, "j"), 16)
    pack_argument(func, func.args[0], HALVES)
    y = np.zeros(array.shape, np.float32)
    run_natively(func, [apply_packing(array, HALVES), y])
    np.testing.assert_array_equal(y, array.astype(np.float32))


@pytest.mark.parametrize("dtype", ["i8", "f32", "u2"])
def test_other_elements_are_refused(dtype: str) -> None:
    func = kernel(dtype)
    with pytest.raises(ScheduleError, match="not fields of 4 bits"):
        pack_argument(func, func.args[0], HALVES)


def test_other_packings_are_refused() -> None:
    with pytest.raises(ScheduleError, match="needs a last piece of the elements of a byte"):
        Packing(HALVES.factors, (2, 0, 1, 3), fields=4)
    func = kernel("i4")
    with pytest.raises(ScheduleError, match="only constants"):
        pack(func, func.args[0], find_loop(func, "i"), HALVES)


def test_another_number_beyond_the_end_is_refused() -> None:
    func = parse_kernel("""
kernel @k(w: &i4[6, 20], y: &f32[7, 20]) dims() with {outputs=1, constants=(0,)} {
  for i in 0..7 {
    for j in 0..20 {
      y[i, j] = f32(w[i, j if i < 6 else 3])
    }
  }
  return
}
""")
    with pytest.raises(ScheduleError, match="another number than 0"):
        pack_argument(func, func.args[0], HALVES)


def test_the_packing_in_halves_of_an_axis() -> None:
    assert Packing(((2,), (16,)), (2, 0, 1, 3)).in_bytes(0, 4) == HALVES
    with pytest.raises(ScheduleError, match="no piece of axis 0 has the 2 elements"):
        identity_packing(2).in_bytes(0, 4)


def test_pieces_of_an_axis_become_a_byte_together() -> None:
    """Of planes, one has bytes of two pieces where another has bytes of the last one alone."""
    steps = Packing(((4, 2, 4), (16,)), (4, 0, 1, 5, 3, 2))
    assert steps.in_bytes(0, 4) == Packing(steps.factors, steps.order, fields=4)
    assert steps.in_bytes(0, 1) == Packing(((8, 4), (16,)), (3, 0, 4, 2, 1), fields=1)
    with pytest.raises(ScheduleError, match="no piece of axis 0 has the 4 elements"):
        steps.in_bytes(0, 2)


def test_a_schedule_writes_it_down() -> None:
    s = Schedule(kernel("u4"))
    s.pack_argument(s.func.args[0], HALVES)
    assert s.lines() == (
        "pack_argument(w, packing=Packing{factors=((2,), (16,)), order=(2, 0, 3, 1), fields=4})",
    )
