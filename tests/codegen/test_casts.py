"""Conversions between all element types, against NumPy and ml_dtypes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.codegen.native import kernel, run_kernel
from tests.graph.programs import program
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType
from tilewright.ir.sym import sym
from tilewright.ir.types import TensorType, buffer
from tilewright.ops import elementwise as ew
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.host import host_target
from tilewright.target.named import parse_target

NUMBERS = tuple(d for d in dt.ALL if d is not dt.string)
INTEGERS = tuple(d for d in NUMBERS if d.is_int)
FLOATS = tuple(d for d in NUMBERS if d.is_float)
NARROW = tuple(d for d in FLOATS if d.bits < 32)


def _cast(x: np.ndarray, to: DType, kind: str = "vector") -> np.ndarray:
    source = dt.from_numpy(x.dtype)

    def body(t: ScalarBuilder, args: list[Array]) -> None:
        with t.loop(len(x) // 16, "i") as i, t.loop(16, "j", kind) as j:
            args[1].store((16 * i + j,), args[0][16 * i + j].cast(to))

    out = np.zeros(len(x), to.storage)
    run_kernel(kernel([buffer(source, [len(x)]), buffer(to, [len(x)])], body), [x, out])
    return out


BY_WIDTH = {bits: [d for d in NUMBERS if d.bits == bits] for bits in sorted({d.bits for d in NUMBERS})}


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["vector", "serial"])
@pytest.mark.parametrize("bits", BY_WIDTH)
def test_elements_of_one_width_share_their_bits(bits: int, kind: str) -> None:
    """All patterns of up to 16 bits, and random ones of more."""
    word = np.dtype(f"u{max(bits // 8, 1)}")
    random = np.random.default_rng(7).integers(0, 1 << min(bits, 63), 4096, np.uint64)
    patterns = np.arange(1 << bits) if bits <= 16 else random
    patterns = np.resize(patterns.astype(word), (len(patterns) + 15) // 16 * 16)
    for source in BY_WIDTH[bits]:
        x = patterns % 2 != 0 if source is dt.bool_ else patterns.view(source.storage)
        for to in BY_WIDTH[bits]:

            def body(t: ScalarBuilder, args: list[Array], n: int = len(x), to: DType = to) -> None:
                with t.loop(n // 16, "i") as i, t.loop(16, "j", kind) as j:
                    args[1].store((16 * i + j,), t.bitcast(args[0][16 * i + j], to))

            out = np.zeros(len(x), to.storage)
            run_kernel(kernel([buffer(source, [len(x)]), buffer(to, [len(x)])], body), [x, out])
            wanted = x.view(word)
            wanted = wanted != 0 if to is dt.bool_ else wanted
            mask = word.type((1 << bits) - 1)
            np.testing.assert_array_equal(out.view(word) & mask, wanted & mask, f"{source} to {to}")


def _small_integers(dtype: DType) -> np.ndarray:
    """Numbers that every integer type of 8 bits holds or wraps."""
    if dtype.bits < 8:
        return np.arange(16).astype(np.int8).astype(dtype.storage)
    info = np.iinfo(dtype.storage)
    edges = [info.min, info.max, 0, 1, 100, 127, info.min // 2, info.max // 3]
    return np.array(edges * 2, dtype.storage)


@pytest.mark.sweep
@pytest.mark.parametrize("to", (*INTEGERS, dt.bool_), ids=str)
@pytest.mark.parametrize("source", (*INTEGERS, dt.bool_), ids=str)
def test_integers_wrap(source: DType, to: DType) -> None:
    x = np.resize([True, False, True], 16) if source is dt.bool_ else _small_integers(source)
    exact = [int(v) for v in x]
    modulus = 1 << to.bits
    expected = [bool(v) for v in exact] if to is dt.bool_ else [v % modulus for v in exact]
    if to.kind == "int":
        expected = [v - modulus if v >= modulus // 2 else v for v in expected]
    assert [int(v) for v in _cast(x, to)] == expected


@pytest.mark.parametrize("to", INTEGERS, ids=str)
@pytest.mark.parametrize("source", [dt.f16, dt.bf16, dt.f32, dt.f64], ids=str)
def test_floats_to_integers_truncate_and_saturate(source: DType, to: DType) -> None:
    x = np.array(
        [0.9, -0.9, 1.5, -1.5, 7.0, -8.0, 5.99, 2.0, math.nan, math.inf, -math.inf, 1e4, -1e4, 0, -0.0, 3]
    )
    x = x.astype(source.storage)
    low, high = (-(1 << to.bits - 1), (1 << to.bits - 1) - 1) if to.kind == "int" else (0, (1 << to.bits) - 1)
    expected = [
        0 if math.isnan(v) else min(max(math.trunc(v) if math.isfinite(v) else v, low), high)
        for v in map(float, x)
    ]
    if to.bits < 8:  # saturates to a byte, then wraps: what does not fit in that is not defined further
        x = np.tile(x[:8], 2)
        whole = [math.trunc(v) if to.kind == "int" else max(math.trunc(v), 0) for v in map(float, x)]
        expected = [v % (1 << to.bits) - (1 << to.bits if v & high + 1 and low else 0) for v in whole]
    assert [int(v) for v in _cast(x, to)] == [int(v) for v in expected]


@pytest.mark.parametrize("to", [dt.f16, dt.bf16, dt.f32, dt.f64], ids=str)
@pytest.mark.parametrize("source", (*INTEGERS, dt.bool_), ids=str)
def test_integers_to_floats(source: DType, to: DType) -> None:
    x = np.resize([True, False, True], 16) if source is dt.bool_ else _small_integers(source)
    wide = x.astype(np.int8) if source.bits < 8 else x
    with np.errstate(over="ignore"):
        middle = wide.astype(np.float64) if to is dt.f64 else wide.astype(np.float32)
        expected = middle.astype(to.storage)
    np.testing.assert_array_equal(_cast(x, to).astype(np.float64), expected.astype(np.float64))


def _all_patterns(dtype: DType) -> np.ndarray:
    width = {1: np.uint8, 2: np.uint16}[dtype.bytes]
    patterns = np.arange(1 << dtype.bits, dtype=np.uint64).astype(width)
    return np.resize(patterns, max(len(patterns), 16)).view(dtype.storage)


@pytest.mark.parametrize("source", NARROW, ids=str)
def test_narrow_floats_widen_exactly(source: DType) -> None:
    x = _all_patterns(source)
    np.testing.assert_array_equal(_cast(x, dt.f32), x.astype(np.float32))


@pytest.mark.parametrize("source", [d for d in NARROW if d.bits <= 8], ids=str)
def test_small_floats_widen_exactly_where_denormals_count_as_zero(source: DType) -> None:
    """As they do in models by default: small floats that are denormal in their own type are no denormals of float32."""
    x = _all_patterns(source)
    module = program(lambda v: ew.cast(v, dtype=dt.f32), TensorType(source, (sym(len(x)),)))
    with Model(compile_module(module, Options(threads=1), host_target())) as model:
        (found,) = model(x)
    wanted = x.astype(np.float32)
    small = np.abs(wanted) < np.finfo(np.float32).tiny  # f8e8m0 has 2^-127
    np.testing.assert_array_equal(found[~small], wanted[~small])


@pytest.mark.parametrize("source", [d for d in NARROW if d.bits <= 8], ids=str)
def test_which_small_floats_are_looked_up(source: DType) -> None:
    def body(t: ScalarBuilder, args: list[Array]) -> None:
        with t.loop(16, "j", "vector") as j:
            args[1].store((j,), args[0][j].cast(dt.f32))

    made = kernel([buffer(source, [16]), buffer(dt.f32, [16])], body)
    text = kernel_ir(made, parse_target("zen4")).text
    assert ("masked.gather" in text) == (source in (dt.f8e5m2fnuz, dt.f8e8m0))


@pytest.mark.parametrize("to", NARROW, ids=str)
@pytest.mark.parametrize("source", [dt.f32, dt.f64], ids=str)
def test_narrowing_rounds_to_nearest_even(source: DType, to: DType) -> None:
    """Every number of the narrow type, the midpoints between neighbours, and what lies just beside these."""
    with np.errstate(invalid="ignore"):
        own = np.unique(_all_patterns(to).astype(np.float64))
    own = own[np.isfinite(own)]
    middle = (own[1:] + own[:-1]) / 2
    above, below = (np.nextafter(middle.astype(source.storage), d) for d in (np.inf, -np.inf))
    top = own[-1]
    rest = [math.nan, math.inf, -math.inf, top * 1.01, -top * 1.01, top * 1e3, 1e-30, -1e-30, 0.0, -0.0]
    with np.errstate(over="ignore"):
        x = np.concatenate([own, middle, above, below, rest]).astype(source.storage)
    x = np.resize(x, (len(x) + 15) // 16 * 16)
    with np.errstate(over="ignore"):
        expected = x.astype(to.storage)
    # ml_dtypes rounds float64 twice, and denormals to f8e8m0 upwards; beside a midpoint the answer is known
    if source is dt.f64 or to is dt.f8e8m0:
        count = len(middle)
        expected[len(own) + count : len(own) + 2 * count] = np.copysign(own[1:], above).astype(to.storage)
        expected[len(own) + 2 * count : len(own) + 3 * count] = np.copysign(own[:-1], below).astype(
            to.storage
        )
    if to is dt.bf16 and "avx512bf16" in host_target().features:
        # VCVTNEPS2BF16 takes denormal numbers as zeros of their sign, where numerics are not strict.
        small = np.abs(x) < np.finfo(np.float32).tiny
        expected[small] = np.copysign(np.zeros(small.sum()), x[small]).astype(to.storage)
    got = _cast(x, to)
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(got.astype(np.float32)), np.signbit(expected.astype(np.float32)))


@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_anything_but_zero_is_true(source: DType) -> None:
    x = np.resize(np.array([0.0, -0.0, 1.0, math.nan, -2.0, 0.5]), 16).astype(source.storage)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(_cast(x, dt.bool_), x.astype(np.float32) != 0)


def test_f64_is_rounded_once_on_the_way_to_f16() -> None:
    x = np.full(16, 1 + 2.0**-11 + 2.0**-40)  # float32 would round it to the midpoint, then to even
    assert (_cast(x, dt.f16) == np.float16(1 + 2.0**-10)).all()


@pytest.mark.parametrize("to", [dt.f8e4m3, dt.bf16, dt.i8], ids=str)
def test_one_lane_converts_alike(to: DType) -> None:
    x = np.linspace(-9, 9, 32).astype(np.float32)
    np.testing.assert_array_equal(_cast(x, to, "serial").view(np.uint8), _cast(x, to).view(np.uint8))
