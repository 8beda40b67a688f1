"""Loads and stores under a mask touch the lanes that are on and nothing else, whatever the mask lives through."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.codegen.native import run_kernel
from tilewright.codegen.cpu import vmath
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.loops.kernel_info import parse_kernel
from tilewright.target.named import NAMED

FUNCTION = "acosh"
"""A function that the math library computes lane by lane: its calls drive masks out of registers."""
DTYPES = {"bool": "?", "u8": "u1", "i8": "i1", "i16": "i2", "f16": "f2", "u16": "u2", "i32": "i4", "f32": "f4"}


def masked(dtype: str, lanes: int, count: int) -> str:
    """y = x, with as many calls in between as there are lanes; a[i] and z[i] are of float64."""
    turns = -(-count // lanes)
    at = f"{lanes}*i + j"
    return (
        f"kernel @k(x: &{dtype}[{count}], a: &f64[{count}], y: &{dtype}[{count}], z: &f64[{count}]) dims() "
        "with {outputs=2} {\n"
        f"  for i in 0..{turns} {{\n    for j in 0..{lanes} vector {{\n      if {at} < {count} {{\n"
        f"        z[{at}] = {FUNCTION}(a[{at}])\n        y[{at}] = x[{at}]\n"
        "      }\n    }\n  }\n  return\n}\n"
    )


def test_the_function_is_one_of_the_math_library() -> None:
    assert vmath.vmath_declarations(FUNCTION, "f64")


@pytest.mark.sweep
@pytest.mark.parametrize("lanes", [2, 3, 4, 8, 16, 32])
@pytest.mark.parametrize("dtype", DTYPES)
def test_between_guard_zones(dtype: str, lanes: int) -> None:
    """The first buffer of `run_kernel` ends at its page, so an access of any other lane is an error."""
    for rest in {1, lanes // 2, lanes - 1}:
        count = lanes + rest
        x = (np.arange(count) % 5).astype(DTYPES[dtype])
        a = np.arange(1, count + 1, dtype=np.float64)
        y, z = np.zeros(count, x.dtype), np.zeros(count)
        run_kernel(parse_kernel(masked(dtype, lanes, count)), [x, a, y, z])
        np.testing.assert_array_equal(y, x)
        np.testing.assert_allclose(z, np.arccosh(a))


MASKED = re.compile(r"@llvm\.masked\.(?:load|store)\.v(\d+)([if])(\d+)\.p0\(")


@pytest.mark.parametrize("name", [name for name, t in NAMED.items() if t.kind == "cpu" and t.has_mask_registers])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lanes", [8, 12, 16])
def test_masks_of_avx512_have_the_lanes_of_a_register(lanes: int, dtype: str, name: str) -> None:
    """So that LLVM adds none; it shifts those of fewer than 8, which is right (decision 53)."""
    text = kernel_ir(parse_kernel(masked(dtype, lanes, lanes + 1)), NAMED[name]).text
    accesses = [found for found in MASKED.findall(text) if int(found[0]) >= 8]
    assert len(accesses) >= 4
    for count, _, bits in accesses:
        nbytes = int(count) * int(bits) // 8
        assert nbytes >= 16 and nbytes & (nbytes - 1) == 0, f"{nbytes} bytes"


@pytest.mark.parametrize("name", ["zen3", "neoverse-n1", "apple-m1"])
def test_other_machines_have_masks_of_as_many_lanes_as_the_loop(name: str) -> None:
    text = kernel_ir(parse_kernel(masked("u8", 8, 9)), NAMED[name]).text
    assert {int(count) for count, _, _ in MASKED.findall(text)} == {8}


def joined(first: int, second: int) -> str:
    """y = two buffers one behind the other, by vectors of which some lie in both."""
    return (
        f"kernel @k(x0: &f32[{first}], x1: &f32[{second}], y: &f32[{first + second}]) dims() "
        "with {outputs=1} {\n"
        f"  for i in 0..{(first + second) // 8} {{\n    for j in 0..8 vector {{\n"
        f"      v0: f32 = x0[8*i + j if 8*i + j < {first} else 0]\n"
        f"      v1: f32 = x1[8*i + j - {first} if 8*i + j >= {first} else 0]\n"
        "      y[8*i + j] = v0 + v1\n    }\n  }\n  return\n}\n"
    )


@pytest.mark.parametrize(("parts", "asked"), [((29, 35), 0), ((4093, 4099), 2)])
def test_a_mask_of_no_lanes_does_not_reach_for_memory_far_away(parts: tuple[int, int], asked: int) -> None:
    """The processor looks for pages that are not mapped although no lane asks: hundreds of cycles each time."""
    text = kernel_ir(parse_kernel(joined(*parts)), NAMED["zen5"]).text
    assert text.count("@llvm.masked.load") >= 2
    assert text.count("call i1 @llvm.vector.reduce.or.v8i1(") == asked


@pytest.mark.parametrize("parts", [(29, 35), (4093, 4099)])
def test_buffers_one_behind_the_other(parts: tuple[int, int]) -> None:
    x = [np.arange(count, dtype=np.float32) + 1000 * k for k, count in enumerate(parts)]
    y = np.zeros(sum(parts), np.float32)
    run_kernel(parse_kernel(joined(*parts)), [*x, y])
    np.testing.assert_array_equal(y, np.concatenate(x))
