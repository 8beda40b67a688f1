"""Every scalar operation in every element type, against NumPy; the same lanes as one vector and one by
one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.codegen.native import kernel, run_kernel
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.codegen.cpu.kernel.lanes import literal
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.types import buffer
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.target.named import NAMED, parse_target

N = 128  # two vectors of the widest loop
INTEGERS = (dt.i8, dt.u8, dt.i16, dt.u16, dt.i32, dt.u32, dt.i64, dt.u64)
FLOATS = (dt.f16, dt.bf16, dt.f32, dt.f64)
NARROW = (dt.f8e4m3, dt.f8e4m3fnuz, dt.f8e5m2, dt.f8e5m2fnuz)
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    -2.5,
    1e30,
    -1e30,
    math.inf,
    -math.inf,
    math.nan,
    3.0,
    -7.0,
    1e-30,
]

# Largest error allowed in units of the last place, where not exact.
_ELEMENTARY = (
    "exp expm1 log log1p tanh sigmoid erf sin cos tan asin acos atan sinh cosh asinh acosh atanh atan2"
)
ULP = {"pow": 8, "rsqrt": 4, **dict.fromkeys(_ELEMENTARY.split(), 6)}
DOMAIN = {"acosh": (1, 9), "atanh": (-0.99, 0.99), "asin": (-1, 1), "acos": (-1, 1), "log": (1e-3, 50),
          "log1p": (-0.9, 50), "sqrt": (0, 50), "rsqrt": (1e-3, 50)}  # fmt: skip


def _floats(dtype: DType, seed: int, name: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    low, high = DOMAIN.get(name, (-8, 8))
    values = rng.uniform(low, high, N)
    if name not in DOMAIN and name not in ULP and name not in ("rem", "mod"):
        values[: len(SPECIAL)] = rng.permutation(SPECIAL)
    with np.errstate(over="ignore"):
        return values.astype(np.float32 if dtype.bits < 64 else np.float64).astype(dtype.storage)


def _integers(dtype: DType, seed: int, name: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype.storage)
    values = rng.integers(info.min, info.max, N, dtype.storage, endpoint=True)
    values[:4] = [info.min, info.max, 0, 1]
    small = rng.integers(0 if info.min == 0 else -9, 9, N // 2).astype(dtype.storage)
    values[N // 2 :] = small
    if seed == 2 and name in ("div", "rem", "mod"):
        values[values == 0] = 3
    if seed == 2 and name in ("shl", "shr", "pow"):
        values = rng.integers(0, 8 * dtype.bytes if name != "pow" else 5, N).astype(dtype.storage)
    return values


def _operands(name: str, dtype: DType) -> list[np.ndarray]:
    if name == "select":
        rng = np.random.default_rng(9)
        return [rng.integers(0, 2, N).astype(bool), *(_values(name, dtype, s) for s in (1, 2))]
    arrays = [_values(name, dtype, s) for s in (1, 2)][: SCALAR_OPS[name].arity]
    if name == "quotient":
        arrays[1] = np.where(np.abs(arrays[1]) > 0.01, arrays[1], 1).astype(dtype.storage)
        arrays.append((1 / arrays[1].astype(np.float64)).astype(dtype.storage))
    if name == "pow" and dtype.is_float:
        arrays[0] = np.abs(arrays[0].astype(np.float64)).astype(dtype.storage)
    return arrays


def _values(name: str, dtype: DType, seed: int) -> np.ndarray:
    if dtype.kind == "bool":
        return np.random.default_rng(seed).integers(0, 2, N).astype(bool)
    return _floats(dtype, seed, name) if dtype.is_float else _integers(dtype, seed, name)


def _native(name: str, arrays: list[np.ndarray], kind: str) -> np.ndarray:
    dtypes = tuple(dt.from_numpy(a.dtype) for a in arrays)
    result = SCALAR_OPS[name].result_dtype(dtypes)

    def body(t: ScalarBuilder, args: list[Array]) -> None:
        with t.loop(N // 64, "i") as i, t.loop(64, "j", kind) as j:
            args[-1].store((64 * i + j,), t.apply(name, *[a[64 * i + j] for a in args[:-1]]))

    out = np.zeros(N, result.storage)
    _, error = run_kernel(kernel([buffer(d, [N]) for d in (*dtypes, result)], body), [*arrays, out])
    assert error == 0
    return out


def _reference(name: str, arrays: list[np.ndarray]) -> Any:
    """In float64 for floats, exactly for the others."""
    wide = [a.astype(np.float64) if dt.from_numpy(a.dtype).is_float else a for a in arrays]
    with np.errstate(all="ignore"):
        if name == "shl":
            return np.left_shift(*arrays)
        return SCALAR_OPS[name].evaluate(*wide)


def _check(name: str, got: np.ndarray, expected: Any, dtype: DType) -> None:
    if not dtype.is_float:
        np.testing.assert_array_equal(got, np.asarray(expected).astype(got.dtype))
        return
    with np.errstate(all="ignore"):
        rounded = np.asarray(expected).astype(dtype.storage)
    if name not in ULP:
        np.testing.assert_array_equal(got.astype(np.float64), rounded.astype(np.float64))
        return
    units = {16: 2.0**-10 if dtype is dt.f16 else 2.0**-7, 32: 2.0**-23, 64: 2.0**-52}[dtype.bits]
    tolerance = units * (ULP[name] if dtype.bits > 16 else 1)
    np.testing.assert_allclose(got.astype(np.float64), rounded.astype(np.float64), rtol=tolerance, atol=1e-37)


INTEGER_OPS = [
    "add",
    "sub",
    "mul",
    "div",
    "rem",
    "mod",
    "pow",
    "min",
    "max",
    "and",
    "or",
    "xor",
    "shl",
    "shr",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "select",
    "neg",
    "abs",
    "not",
    "sign",
    "floor",
    "ceil",
    "round",
    "trunc",
    "is_nan",
]
BOOL_OPS = [
    "and",
    "or",
    "xor",
    "not",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "select",
    "min",
    "max",
    "add",
    "mul",
]
FLOAT_OPS = sorted(set(SCALAR_OPS) - {"and", "or", "xor", "not", "shl", "shr", "ticks"})


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", INTEGER_OPS)
def test_integers(name: str, dtype: DType) -> None:
    arrays = _operands(name, dtype)
    expected = arrays[0] if name in ("floor", "ceil", "round", "trunc") else _reference(name, arrays)
    result = SCALAR_OPS[name].result_dtype(tuple(dt.from_numpy(a.dtype) for a in arrays))
    _check(name, _native(name, arrays, "vector"), expected, result)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FLOAT_OPS)
def test_floats(name: str, dtype: DType) -> None:
    arrays = _operands(name, dtype)
    result = SCALAR_OPS[name].result_dtype(tuple(dt.from_numpy(a.dtype) for a in arrays))
    _check(name, _native(name, arrays, "vector"), _reference(name, arrays), result)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", ["add", "mul", "neg", "max", "lt"])
def test_eight_bit_floats(name: str, dtype: DType) -> None:
    """Computed in float32 and rounded once: what float64 gives, as sums and products of 8-bit floats are
    exact."""
    arrays = _operands(name, dtype)
    result = SCALAR_OPS[name].result_dtype((dtype, dtype))
    _check(name, _native(name, arrays, "vector"), _reference(name, arrays), result)


@pytest.mark.parametrize("name", BOOL_OPS)
def test_booleans(name: str) -> None:
    arrays = _operands(name, dt.bool_)
    expected = {"add": np.logical_or, "mul": np.logical_and, "min": np.logical_and, "max": np.logical_or}
    reference = expected[name](*arrays) if name in expected else _reference(name, arrays)
    np.testing.assert_array_equal(_native(name, arrays, "vector"), reference)


@pytest.mark.parametrize("name", ["add", "div", "pow", "max", "erf", "select", "mod", "sign"])
@pytest.mark.parametrize("dtype", [dt.i32, dt.f32, dt.f16], ids=str)
def test_one_lane_gives_the_same(name: str, dtype: DType) -> None:
    if name == "erf" and dtype is dt.i32:
        pytest.skip("erf of integers does not exist")
    arrays = _operands(name, dtype)
    np.testing.assert_array_equal(_native(name, arrays, "serial"), _native(name, arrays, "vector"))


def test_negative_integer_powers_go_towards_zero() -> None:
    base = np.resize(np.array([1, -1, 2, -3, 0], np.int32), N)
    exponent = np.resize(np.array([-1, -2, -3], np.int32), N)
    with np.errstate(divide="ignore"):
        expected = np.trunc(np.where(base == 0, 0.0, base.astype(np.float64) ** exponent)).astype(np.int32)
    np.testing.assert_array_equal(_native("pow", [base, exponent], "vector"), expected)


def _clip(lanes: int) -> Func:
    """out[j] = min(max(x[j], 0), 6)."""

    def body(t: ScalarBuilder, args: list[Array]) -> None:
        with t.loop(lanes, "j", "vector") as j:
            args[1].store((j,), t.apply("min", t.apply("max", args[0][j], 0.0), 6.0))

    return kernel([buffer(dt.f32, [lanes])] * 2, body)


@pytest.mark.parametrize("lanes", [4, 16, 32])
def test_extrema_with_literals_keep_nan(lanes: int) -> None:
    x = np.resize(np.array([math.nan, -1, 0.5, 9, -math.inf, math.inf], np.float32), lanes)
    out = np.zeros_like(x)
    run_kernel(_clip(lanes), [x, out])
    np.testing.assert_array_equal(out, np.minimum(np.maximum(x, 0), 6))


@pytest.mark.parametrize(
    ("target", "lanes"), [("zen3", 8), ("zen3", 16), ("cascadelake", 16), ("cascadelake", 64)]
)
def test_an_extremum_with_a_literal_is_one_instruction_a_register(target: str, lanes: int) -> None:
    code = assembly(kernel_ir(_clip(lanes), NAMED[target]).text, NAMED[target])
    registers = lanes // NAMED[target].f32_lanes
    assert (code.count("vmaxps"), code.count("vminps")) == (registers, registers)
    assert "vcmp" not in code and "vand" not in code


def _largest(lanes: int) -> Func:
    """out[j] = max(out[j], x[i, j]) for 100 rows."""

    def body(t: ScalarBuilder, args: list[Array]) -> None:
        with t.loop(100, "i") as i, t.loop(lanes, "j", "vector") as j:
            args[1].store((j,), t.apply("max", args[1][j], args[0][i, j]))

    return kernel([buffer(dt.f32, [100, lanes]), buffer(dt.f32, [lanes])], body)


@pytest.mark.parametrize("target", ["zen3", "cascadelake"])
def test_a_largest_element_waits_for_no_comparison_with_it(target: str) -> None:
    """The only comparison is of the new element with itself, whether it is nan."""
    code = assembly(kernel_ir(_largest(NAMED[target].f32_lanes), NAMED[target]).text, NAMED[target])
    compared = [line.split() for line in code.splitlines() if "vcmp" in line]
    assert [name for name, *_ in compared] == ["vcmpunordps"]
    assert compared[0][1] == compared[0][2]
    assert code.count("vmaxps") == 1


def test_the_largest_element_is_nan_wherever_one_is() -> None:
    x = np.random.default_rng(2).standard_normal((100, 16), np.float32)
    x[0, 1] = x[50, 2] = x[99, 3] = x[7, 4] = x[8, 4] = math.nan
    out = np.full(16, -math.inf, np.float32)
    out[5] = math.nan
    expected = np.maximum(out, x.max(0))
    run_kernel(_largest(16), [x, out])
    np.testing.assert_array_equal(out, expected)


def _exp(lanes: int) -> Func:
    """out[j] = exp(x[j])."""

    def body(t: ScalarBuilder, args: list[Array]) -> None:
        with t.loop(lanes, "j", "vector") as j:
            args[1].store((j,), t.apply("exp", args[0][j]))

    return kernel([buffer(dt.f32, [lanes])] * 2, body)


@pytest.mark.parametrize(
    ("target", "count"),
    [("zen3", 0), ("neoverse-n1", 0), ("cascadelake", 4), ("x86-64-v3,+avx512f,+avx512vl", 8)],
)
def test_exp_scales_by_the_instruction_that_the_target_has(target: str, count: int) -> None:
    machine = parse_target(target)
    assert assembly(kernel_ir(_exp(64), machine).text, machine).count("vscalefps") == count


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64])
@pytest.mark.parametrize("value", [*SPECIAL, 1, 1 / 3, 2**24 + 1, 1e39, -1e39, 1e-45, 7e-46, 3.4028235677973366e38])
def test_literals_are_the_bits_of_the_number_as_numpy_rounds_it(dtype: DType, value: float) -> None:
    with np.errstate(over="ignore"):
        wide = np.float64(value).astype(dtype.storage).astype(np.float64)
    assert literal(dtype, value) == f"0x{wide.view(np.uint64):016X}"


# Vectors of integers, for whose division machines have no instruction


def quotient_kernel(name: str, dtype: DType, count: int) -> Func:
    def body(t: ScalarBuilder, args: list[Array]) -> None:
        with t.loop(count // 16, "i") as i, t.loop(16, "j", "vector") as j:
            args[2].store((16 * i + j,), t.apply(name, args[0][16 * i + j], args[1][16 * i + j]))

    return kernel([buffer(dtype, [count])] * 3, body)


def near_whole_quotients(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of bytes; of longer integers multiples of divisors and their neighbours, and the ends of the range."""
    info = np.iinfo(dtype.storage)
    if dtype.bits == 8:
        every = np.arange(info.min, info.max + 1)
        x, y = (a.ravel() for a in np.meshgrid(every, every))
    else:
        rng = np.random.default_rng(dtype.bits)
        ends = np.array([info.min, info.min + 1, -2, -1, 1, 2, 3, info.max - 1, info.max], np.float64)
        y = np.concatenate([rng.integers(1, 2**k, 200) for k in range(1, dtype.bits - 1)]).astype(np.float64)
        y = np.concatenate([y, -y, ends]) if info.min else np.concatenate([y, np.abs(ends)])
        with np.errstate(all="ignore"):
            whole = y * np.floor(rng.uniform(0, info.max, y.size) / np.abs(y))
        x = np.concatenate([whole - 1, whole, whole + 1])
        x, y = np.concatenate([x, np.repeat(ends, ends.size)]), np.concatenate([y, y, y, np.tile(ends, ends.size)])
        x, y = np.clip(x, info.min, info.max), np.clip(y, info.min, info.max)
    keep = (y != 0) & np.isfinite(x)
    x, y = x[keep], y[keep]
    count = len(x) // 16 * 16
    return x[-count:].astype(dtype.storage), y[-count:].astype(dtype.storage)


@pytest.mark.parametrize("dtype", [dt.i8, dt.u8, dt.i16, dt.u16, dt.i32, dt.u32], ids=str)
@pytest.mark.parametrize("name", ["div", "rem", "mod"])
def test_vectors_of_quotients_are_exact(name: str, dtype: DType) -> None:
    x, y = near_whole_quotients(dtype)
    if name == "div" and dtype.kind == "int":
        keep = ~((x == np.iinfo(x.dtype).min) & (y == -1))
        x, y = np.where(keep, x, 1).astype(x.dtype), y
    out = np.zeros_like(x)
    _, error = run_kernel(quotient_kernel(name, dtype, len(x)), [x, y, out])
    assert error == 0
    wide = x.astype(np.int64), y.astype(np.int64)
    whole = np.abs(wide[0]) // np.abs(wide[1]) * np.sign(wide[0]) * np.sign(wide[1])
    expected = {"div": whole, "rem": wide[0] - whole * wide[1], "mod": wide[0] % wide[1]}[name]
    np.testing.assert_array_equal(out, expected)


def test_vectors_of_quotients_are_computed_by_floats_where_there_may_be_any() -> None:
    func = quotient_kernel("div", dt.i32, 64)
    target = parse_target("zen3")
    assert "sdiv" not in kernel_ir(func, target).text
    without = kernel_ir(func, target, has_floats=False).text
    assert "sdiv <16 x i32>" in without and "fdiv" not in without


def long_quotients(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Multiples of divisors and their neighbours: vectors of numbers that float64 holds, beside others, and mixed."""
    info, rng, x, y = np.iinfo(dtype.storage), np.random.default_rng(dtype.bits), [], []
    for bits in (20, 50, 51, 52, 53, 54, 62):
        for _ in range(160):
            divisor = int(rng.integers(1, 2 ** int(rng.integers(1, bits))))
            whole = divisor * int(rng.integers(0, 2**bits) // divisor)
            signs = rng.choice((-1, 1), 2) if info.min else (1, 1)
            x.append(int(signs[0]) * max(whole + int(rng.integers(-1, 2)), 0))
            y.append(int(signs[1]) * divisor)
    ends = [info.min, info.min + 1, info.max, info.max - 1, 1, 2, 3, 2**51 - 1, 2**51, 2**51 + 1]
    pairs = [(a, b) for a in (*ends, 0) for b in ends if b and (a, b) != (info.min, -1)]
    pairs += [(5, 2)] * (-len(pairs) % 16)
    found = zip(*pairs, strict=True)
    return tuple(np.array([*near, *far], dtype.storage) for near, far in zip((x, y), found, strict=True))


@pytest.mark.parametrize("dtype", [dt.i64, dt.u64], ids=str)
@pytest.mark.parametrize("name", ["div", "rem", "mod"])
def test_vectors_of_long_quotients_are_exact(name: str, dtype: DType) -> None:
    x, y = long_quotients(dtype)
    out = np.zeros_like(x)
    _, error = run_kernel(quotient_kernel(name, dtype, len(x)), [x, y, out])
    assert error == 0
    expected = []
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        whole = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        expected.append({"div": whole, "rem": a - whole * b, "mod": a % b}[name])
    assert out.tolist() == expected


def test_vectors_of_long_quotients_are_computed_by_floats_where_all_are_near_zero() -> None:
    func, target = quotient_kernel("div", dt.i64, 64), parse_target("zen3")
    text = kernel_ir(func, target).text
    assert "fdiv" in text and "sdiv" in text  # the latter for lanes beyond 2^51
    assert "fdiv" not in kernel_ir(func, target, has_floats=False).text
