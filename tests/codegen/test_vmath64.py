"""Vector math in float64: errors against long doubles, special values, exact powers, text."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from bench.ulp import compile_vmath
from bench.ulp64 import IS_AVAILABLE, REFERENCES, arguments, ulp_errors, worst_error
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.vmath import SUPPORTED, vmath_arity, vmath_function, vmath_symbol
from tilewright.target.named import NAMED

INF, NAN = math.inf, math.nan
TINY, MOST = 2.0**-1074, np.finfo(np.float64).max
needs_long_doubles = pytest.mark.skipif(not IS_AVAILABLE, reason="long doubles have no more bits here")

# x, then what C99 or IEEE 754 demand of the function there, beside what `test_vmath.py` has for both precisions.
SPECIAL_VALUES = {
    "acos": [(-1.0, math.pi), (0.0, math.pi / 2), (1 + 2.0**-52, NAN), (TINY, math.pi / 2)],
    "asin": [(1.0, math.pi / 2), (-1.0, -math.pi / 2), (TINY, TINY), (-1 - 2.0**-52, NAN)],
    "atan": [(TINY, TINY), (MOST, math.pi / 2), (-1.0, -math.pi / 4)],
    "cos": [(TINY, 1.0), (MOST, -0.9999876894265599), (2.0**30, math.cos(2.0**30))],
    "cosh": [(TINY, 1.0), (711.0, INF), (-711.0, INF)],
    "erf": [(TINY * 2, TINY * 2), (-MOST, -1.0), (6.0, 1.0)],
    "exp": [(TINY, 1.0), (709.79, INF), (-745.2, 0.0), (-745.1, TINY), (MOST, INF), (-MOST, 0.0), (1.0, math.e)],
    "expm1": [(TINY, TINY), (-TINY, -TINY), (710.0, INF), (-50.0, -1.0), (-MOST, -1.0)],
    "log": [(TINY, math.log(TINY)), (-TINY, NAN), (2.0, math.log(2.0)), (MOST, math.log(MOST))],
    "log1p": [(TINY, TINY), (-TINY, -TINY), (MOST, math.log(MOST)), (-1 - 2.0**-52, NAN)],
    "sigmoid": [(MOST, 1.0), (-MOST, 0.0), (-745.1, TINY)],
    "sin": [(TINY, TINY), (MOST, 0.004961954789184062), (math.pi, 1.2246467991473532e-16)],
    "sinh": [(TINY, TINY), (711.0, INF), (-711.0, -INF)],
    "tan": [(TINY, TINY), (math.pi / 2, 1.633123935319537e16)],
    "tanh": [(TINY, TINY), (MOST, 1.0), (-30.0, -1.0)],
}  # fmt: skip


@needs_long_doubles
@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_errors_stay_within_the_bound(name: str) -> None:
    worst, where = worst_error(name, range(1))
    assert worst <= SUPPORTED[name]["f64"], where


@needs_long_doubles
@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_errors_where_nothing_fuses_products_with_sums(name: str) -> None:
    worst, where = worst_error(name, range(1), fuses=False)
    assert worst <= SUPPORTED[name]["f64"] + 1.5, where


@needs_long_doubles
@pytest.mark.fresh_seeds(1)
def test_fresh_arguments(fresh_seed: int) -> None:
    for name, bounds in SUPPORTED.items():
        worst, where = worst_error(name, range(fresh_seed, fresh_seed + 1))
        assert worst <= bounds["f64"], (name, where)


def test_bounds_are_small() -> None:
    assert all(bounds["f64"] <= 4.0 for bounds in SUPPORTED.values())


@pytest.mark.parametrize("name", sorted(SPECIAL_VALUES))
@pytest.mark.parametrize("lanes", [1, 8])
def test_special_values(name: str, lanes: int) -> None:
    x, expected = np.array(SPECIAL_VALUES[name]).T
    given = compile_vmath(name, "f64", lanes)(x)
    np.testing.assert_allclose(given, expected, rtol=4e-16, atol=0)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(given[known]), np.signbit(expected[known]))


def test_powers_of_whole_numbers_are_exact() -> None:
    base, exponent = (a.ravel().astype(np.float64) for a in np.meshgrid(np.arange(1, 200), np.arange(1, 60)))
    exact = [int(b) ** int(e) for b, e in zip(base, exponent, strict=True)]
    fits = np.array([e < 1 << 1023 and int(float(e)) == e for e in exact])
    expected = np.array([float(e) for e, ok in zip(exact, fits, strict=True) if ok])
    np.testing.assert_array_equal(compile_vmath("pow", "f64", 8)(base[fits], exponent[fits]), expected)
    squares = base[fits] ** 2
    np.testing.assert_array_equal(compile_vmath("pow", "f64", 8)(squares, np.full_like(squares, 0.5)), base[fits])


@pytest.mark.parametrize("name", ["tanh", "erf", "sin", "cos", "sigmoid"])
def test_bounded_functions_never_exceed_one(name: str) -> None:
    function = compile_vmath(name, "f64", 8)
    for seed in range(4):
        assert np.nanmax(np.abs(function(*arguments(name, seed)))) <= 1.0


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_all_widths_agree_to_the_bit(name: str) -> None:
    operands = arguments(name, 1)
    assert len(operands) == vmath_arity(name, "f64")
    results = [compile_vmath(name, "f64", lanes)(*operands) for lanes in (1, 2, 4, 8, 16)]
    for left, right in itertools.pairwise(results):
        known = ~np.isnan(left)
        np.testing.assert_array_equal(left[known].view(np.uint64), right[known].view(np.uint64))
        np.testing.assert_array_equal(np.isnan(right), ~known)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_near_and_far_lanes_mix(name: str) -> None:
    x = np.array([0.5, 1e300, -1.0, 2.0**30, -(2.0**30) + 0.25, MOST, NAN, INF] * 2)
    with np.errstate(invalid="ignore"):
        exact = REFERENCES[name](x.astype(np.longdouble)).astype(np.float64)
    np.testing.assert_allclose(compile_vmath(name, "f64", 8)(x), exact, rtol=1e-15)


def test_ulp_errors_count_units_of_the_reference() -> None:
    result = np.array([1.0 + 2.0**-52, 1.0 - 2.0**-53, TINY, INF, NAN, INF, MOST, -0.5])
    exact = np.array([1.0, 1.0, 0.0, MOST, 1.0, NAN, INF, 0.5], np.longdouble)
    np.testing.assert_array_equal(ulp_errors(result, exact), [1.0, 0.5, 1.0, 1.0, INF, INF, INF, INF])


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sigmoid", "atan"])
@pytest.mark.parametrize("target", ["zen4", "zen3"])
def test_functions_of_one_register_do_not_spill(name: str, target: str) -> None:
    lanes = NAMED[target].vector_bits // 64
    vector, symbol = f"<{lanes} x double>", vmath_symbol(name, "f64", lanes)
    body = f"  %y = call {vector} @{symbol}({vector} %x)\n  ret {vector} %y\n"
    text = vmath_function(name, "f64", lanes) + f"define {vector} @f({vector} %x) nounwind {{\n{body}}}\n"
    code = assembly(text, NAMED[target])
    assert "vfmadd" in code and "(%rsp)" not in code
