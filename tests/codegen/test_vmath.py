"""Vector math: errors against float64, special values, text."""

from __future__ import annotations

import itertools
import math
import re

import llvmlite.binding as llvm
import numpy as np
import pytest

from bench.ulp import (
    argument_chunks,
    compile_map,
    compile_vmath,
    random_pairs,
    references,
    ulp_errors,
    worst_error,
)
from tilewright.codegen.cpu.vmath import (
    SUPPORTED,
    vmath_arity,
    vmath_declarations,
    vmath_function,
    vmath_symbol,
)
from tilewright.ir.diag import InternalError
from tilewright.target.host import host_target
from tilewright.target.named import NAMED

INF, NAN = math.inf, math.nan
TINY = 2.0**-149

# x, then what C99 or IEEE 754 demand of the function there.
SPECIAL_VALUES = {
    "acos": [(1.0, 0.0), (1.5, NAN), (-1.5, NAN), (INF, NAN), (NAN, NAN)],
    "acosh": [(1.0, 0.0), (0.5, NAN), (-1.0, NAN), (-3.0, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (1.5, NAN), (-INF, NAN), (NAN, NAN)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (-TINY, -TINY), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (INF, np.pi / 2), (-INF, -np.pi / 2), (NAN, NAN)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (1.0, INF), (-1.0, -INF), (2.0, NAN), (INF, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "cosh": [(0.0, 1.0), (INF, INF), (-INF, INF), (100.0, INF), (NAN, NAN)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (3e38, 1.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN)],
    "exp": [(-0.0, 1.0), (INF, INF), (-INF, 0.0), (89.0, INF), (-104.0, 0.0), (-1e9, 0.0), (-103.0, TINY), (NAN, NAN)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (INF, INF), (-INF, -1.0), (NAN, NAN)],
    "log": [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (-TINY, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)],
    "log1p": [(-0.0, -0.0), (TINY, TINY), (-1.0, -INF), (-2.0, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)],
    "rsqrt": [(4.0, 0.5), (0.0, INF), (-0.0, -INF), (-1.0, NAN), (INF, 0.0), (NAN, NAN)],
    "sigmoid": [(0.0, 0.5), (INF, 1.0), (-INF, 0.0), (-103.0, TINY), (NAN, NAN)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (-TINY, -TINY), (INF, INF), (-INF, -INF), (NAN, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (3e38, 1.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN)],
}  # fmt: skip
UNARY = sorted(SPECIAL_VALUES)


def assert_same(given: np.ndarray, expected: np.ndarray) -> None:
    """Equal to float32 rounding, with the same signs of zeros and the same nans."""
    np.testing.assert_array_equal(given, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(given[known]), np.signbit(expected[known]))


def test_every_function_has_a_bound_and_special_values() -> None:
    assert sorted([*UNARY, "pow"]) == sorted(SUPPORTED)
    assert all(bounds["f32"] <= 4.0 for bounds in SUPPORTED.values())


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_float32_errors_stay_within_the_bound(name: str) -> None:
    worst, where = worst_error(name, step=4099)
    assert worst <= SUPPORTED[name]["f32"], where


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_errors_where_nothing_fuses_products_with_sums(name: str) -> None:
    worst, where = worst_error(name, step=65537, fuses=False)
    assert worst <= SUPPORTED[name]["f32"] + _ROUNDED_PRODUCTS, where
    text = vmath_function(name, "f32", 16, fuses=False)
    assert ("double" in text) >= (name in ("sin", "cos", "tan")), "the reduction by pi/2 takes exact products"


_ROUNDED_PRODUCTS = 1.5
"""Units of the last place that polynomials lose where products are rounded before they are added."""


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", UNARY)
def test_special_values(name: str, dtype: str) -> None:
    element = np.float32 if dtype == "f32" else np.float64
    # TINY, 3e38 and the bounds of overflow are float32's.
    pairs = [
        p
        for p in SPECIAL_VALUES[name]
        if dtype == "f32" or abs(p[0]) in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, INF)
    ]
    x, expected = np.array(pairs, element).T
    with np.errstate(all="ignore"):
        assert_same(compile_vmath(name, dtype)(x), expected)


SCALED = ["exp"]
needs_scale = pytest.mark.skipif(host_target().scale is None, reason="this machine has no such instruction")


def test_functions_that_use_the_instruction_that_scales() -> None:
    scale = NAMED["cascadelake"].scale
    used = [
        name
        for name in SUPPORTED
        if "scalef" in vmath_function(name, "f32", 16, scale) and name not in SCALED
    ]
    assert not used and "scalef" not in vmath_function("exp", "f32", 16)


@needs_scale
@pytest.mark.parametrize("name", SCALED)
def test_float32_errors_with_the_instruction_that_scales(name: str) -> None:
    worst, where = worst_error(name, step=4099, scale=host_target().scale)
    assert worst <= SUPPORTED[name]["f32"], where


@needs_scale
@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("lanes", [1, 3, 4, 8, 16, 24])
def test_special_values_with_the_instruction_that_scales(name: str, lanes: int) -> None:
    extremes = (
        [(3e38, INF), (-3e38, 0.0), (-103.9, TINY), (-103.98, 0.0)]
        if name == "exp"
        else [(3e38, 3e38), (-3e38, 0.0)]
    )
    x, expected = np.array([*SPECIAL_VALUES[name], *extremes], np.float32).T
    assert_same(compile_vmath(name, "f32", lanes, host_target().scale)(x), expected)


@needs_scale
def test_all_widths_agree_to_the_bit_with_the_instruction_that_scales() -> None:
    x = next(argument_chunks(4099 * 64))
    one, *others = (
        compile_vmath("exp", "f32", lanes, host_target().scale)(x)
        for lanes in (1, 2, 4, 5, 8, 12, 16, 20, 64)
    )
    for other in others:
        np.testing.assert_array_equal(other, one)


@pytest.mark.parametrize("name", ["tanh", "erf", "sin", "cos", "sigmoid"])
def test_bounded_functions_never_exceed_one(name: str) -> None:
    function = compile_vmath(name, "f32")
    for chunk in argument_chunks(4099):
        result = function(chunk)
        assert np.nanmax(np.abs(result)) <= 1.0


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_pow_special_cases(dtype: str) -> None:
    values = [0.0, 1.0, INF, NAN, 0.5, 2.0, 3.0, 2.5, 16777215.0, 16777216.0]
    element = np.float32 if dtype == "f32" else np.float64
    signed = np.array([sign * value for value in values for sign in (1.0, -1.0)], element)
    base, exponent = (a.ravel() for a in np.meshgrid(signed, signed))
    with np.errstate(all="ignore"):
        expected = np.power(base.astype(np.float64), exponent.astype(np.float64))
        narrow = expected.astype(element)
    result = compile_vmath("pow", dtype)(base, exponent)
    exact = ~np.isfinite(narrow) | (narrow == 0.0) | (np.abs(narrow) == 1.0)
    assert_same(result[exact], narrow[exact])
    np.testing.assert_allclose(result[~exact], expected[~exact], rtol=2e-7 if dtype == "f32" else 1e-15)


def test_random_pairs_reach_negative_bases_and_subnormal_results() -> None:
    base, exponent = random_pairs(1 << 14, seed=1)
    with np.errstate(all="ignore"):
        exact = np.abs(np.power(base.astype(np.float64), exponent.astype(np.float64)))
    assert not np.isnan(exact).any()
    assert (base < 0).mean() > 0.1 and ((exact > 0) & (exact < 2.0**-126)).any() and (exact > 2.0**127).any()


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_float64_agrees_with_numpy(name: str) -> None:
    random = np.random.default_rng(5)
    x = np.concatenate([random.normal(size=1000) * 3.0, random.uniform(-1.0, 1.0, 1000)])
    function = compile_vmath(name, "f64", lanes=4)
    operands = (np.abs(x), random.normal(size=x.size)) if name == "pow" else (x,)
    with np.errstate(all="ignore"):
        by_hand = np.array([math.erf(value) for value in x])  # NumPy has no erf
        expected = by_hand if name == "erf" else references()[name](*operands)
    np.testing.assert_allclose(function(*operands), expected, rtol=2e-15)


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_all_widths_agree_to_the_bit(name: str) -> None:
    x = next(argument_chunks(4099 * 64))
    x = x[np.isfinite(x)]
    operands = (np.abs(x), np.flip(x) % 4.0) if vmath_arity(name, "f32") == 2 else (x,)
    widths = [compile_vmath(name, "f32", lanes)(*operands) for lanes in (1, 4, 8, 32)]
    for left, right in itertools.pairwise(widths):
        known = ~np.isnan(left)
        np.testing.assert_array_equal(left[known].view(np.uint32), right[known].view(np.uint32))
        np.testing.assert_array_equal(np.isnan(right), ~known)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_near_and_far_lanes_mix(name: str) -> None:
    x = np.array([0.5, 1e30, -1.0, 65536.0, -65535.996, 3.4e38, np.nan, np.inf] * 2, np.float32)
    exact = references()[name](np.where(np.isinf(x), np.nan, x).astype(np.float64))
    assert ulp_errors(compile_vmath(name, "f32")(x), exact).max() <= SUPPORTED[name]["f32"]


def test_ulp_errors_count_units_of_the_reference() -> None:
    result = np.array(
        [1.0 + 2.0**-23, 1.0 - 2.0**-24, TINY, INF, 0.0, NAN, INF, 3.4028234663852886e38], np.float32
    )
    exact = np.array([1.0, 1.0 - 2.0**-23, 0.0, 2.0**128 - 2.0**104, -0.0, 1.0, NAN, INF])
    np.testing.assert_array_equal(ulp_errors(result, exact), [1.0, 1.0, 1.0, 1.0, INF, INF, INF, INF])


def test_measurement_finds_a_wrong_function() -> None:
    """Adding 2^-22 to 1 is an error of two units."""
    text = "define float @off(float %x) {\n  %y = fadd float %x, 0x3E90000000000000\n  ret float %y\n}\n"
    one = np.ones(3, np.float32)
    assert (
        ulp_errors(compile_map(text, "off", "f32", 1, 1)(one), one.astype(np.float64)).tolist() == [2.0] * 3
    )


def test_names_and_text() -> None:
    assert vmath_symbol("exp", "f32", 16) == "tw_exp_f32x16"
    text = vmath_function("exp", "f32", 16)
    assert text == vmath_function("exp", "f32", 16)
    assert "define internal <16 x float> @tw_exp_f32x16(<16 x float> %x) alwaysinline" in text
    assert vmath_declarations("exp", "f32") == ()
    assert vmath_declarations("pow", "f64") == ()
    assert vmath_declarations("acosh", "f64") == ("declare double @acosh(double)",)


def test_functions_share_a_module() -> None:
    texts = [
        vmath_function(name, dtype, lanes)
        for name in SUPPORTED
        for dtype in ("f32", "f64")
        for lanes in (1, 8)
    ]
    declarations = {line for name in SUPPORTED for line in vmath_declarations(name, "f64")}
    llvm.parse_assembly("\n".join([*sorted(declarations), *texts])).verify()


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    "name", ["exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid"]
)
def test_frequent_functions_have_no_branch_and_no_call(name: str, dtype: str) -> None:
    text = vmath_function(name, dtype, 16)
    assert " br " not in text
    assert all("@llvm." in line for line in text.splitlines() if " call " in line)


@pytest.mark.parametrize(
    ("name", "target", "most"),
    [("exp", "zen3", 15), ("sigmoid", "zen3", 18), ("exp", "cascadelake", 13)],
)
def test_the_most_frequent_functions_take_few_instructions(name: str, target: str, most: int) -> None:
    """A comparison and its selection are one instruction, and bits need none."""
    lines = vmath_function(name, "f32", 16, NAMED[target].scale).splitlines()
    assert sum(" = " in line and not re.search("fcmp|bitcast", line) for line in lines) <= most


@pytest.mark.parametrize(
    ("name", "dtype", "lanes", "message"),
    [
        ("gamma", "f32", 8, "no vector math function gamma for f32"),
        ("exp", "f16", 8, "no vector math function exp for f16"),
        ("exp", "f32", 0, "cannot have 0 lanes"),
    ],
)
def test_requests_that_cannot_be_met(name: str, dtype: str, lanes: int, message: str) -> None:
    with pytest.raises(InternalError, match=message) as caught:
        vmath_function(name, dtype, lanes)
    assert caught.value.hint


# The remainder, which is exact


def some_divisions(element: type[np.floating], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Operands of all magnitudes, quotients just below, at and above whole numbers, and those that are no numbers."""
    rng = np.random.default_rng(seed)
    limits = np.finfo(element)
    spread = rng.standard_normal((2, 4000)) * np.exp2(rng.uniform(limits.minexp / 2, limits.maxexp / 2, (2, 4000)))
    usual = rng.standard_normal((2, 4000)) * 10
    divisor = (rng.standard_normal(4000) * 3).astype(element)
    whole = (divisor * rng.integers(-300, 300, 4000)).astype(element)
    near = [np.nextafter(whole, element(INF)), whole, np.nextafter(whole, element(-INF))]
    special = np.array([0.0, -0.0, 1.0, -1.0, 3.0, INF, -INF, NAN, limits.max, limits.tiny, 1e7, 2.0**23, 2.0**30])
    pairs = np.array(np.meshgrid(special, special)).reshape(2, -1)
    x = np.concatenate([spread[0], usual[0], *near, pairs[0]]).astype(element)
    y = np.concatenate([spread[1], usual[1], *[divisor] * 3, pairs[1]]).astype(element)
    return x, y


@pytest.mark.parametrize("lanes", [1, 3, 8, 16])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.fresh_seeds(1)
def test_remainders_are_exact(dtype: str, lanes: int, fresh_seed: int) -> None:
    element = np.float32 if dtype == "f32" else np.float64
    x, y = some_divisions(element, fresh_seed)
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    assert_same(compile_vmath("rem", dtype, lanes)(x, y), expected)


@pytest.mark.fresh_seeds(1)
def test_remainders_are_exact_where_nothing_fuses(fresh_seed: int) -> None:
    """Also where a quotient that is rounded up times its divisor is no number any more."""
    most = np.finfo(np.float64).max
    y = most / np.random.default_rng(fresh_seed).integers(1, 2000, 4000)
    other_x, other_y = some_divisions(np.float64, fresh_seed)
    x, y = np.concatenate([np.full(y.size, most), other_x]), np.concatenate([y, other_y])
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    assert_same(compile_vmath("rem", "f64", 8, fuses=False)(x, y), expected)
