"""Products by weights of integers: rows are rounded in groups, whose products instructions for integers add up; strict
numerics keep float32."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.fusion.strategy import Strategies
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import sym, var
from tilewright.ir.types import tensor
from tilewright.loops.edit import buffer_type, is_loop, kind_of
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.stages import Lowered
from tilewright.ops import contract, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.options import Options, bits_of_rows
from tilewright.passes import PassContext
from tilewright.runtime.errors import OptionError
from tilewright.runtime.module import Model
from tilewright.schedule import defaults
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.schedule.strategies import STRATEGIES
from tilewright.schedule.strategy import Strategy
from tilewright.target.host import host_target
from tilewright.target.named import parse_target

N = var("n", 0)
RNG = np.random.default_rng(17)
WITH_DOTS = "zen4"


def f32(array: np.ndarray) -> Value:
    return ew.cast(constant(array), dtype=dt.f32)


def spread(array: np.ndarray, depth: int) -> Value:
    groups, n = array.shape
    shown = view.reshape(f32(array), shape=(groups, 1, n))
    return view.reshape(view.expand(shown, shape=(groups, depth // groups, n)), shape=(depth, n))


def scales(groups: int, n: int) -> np.ndarray:
    return (0.01 + RNG.random((groups, n))).astype(np.float16)


def codes(low: int, high: int, k: int, n: int) -> np.ndarray:
    return RNG.integers(low, high, (k, n)).astype(np.int8 if low < 0 else np.uint8)


def two_levels(k: int, n: int) -> Value:
    small = ew.mul(spread(scales(k // 64, n), k), spread(codes(0, 64, k // 32, n), k))
    least = ew.mul(spread(scales(k // 64, n), k), spread(codes(0, 64, k // 32, n), k))
    return ew.sub(ew.mul(f32(codes(0, 16, k, n)), small), least)


KINDS: dict[str, Callable[[int, int], Value]] = {
    "4 bits": lambda k, n: ew.mul(f32(codes(-8, 8, k, n)), spread(scales(k // 32, n), k)),
    "8 bits": lambda k, n: ew.mul(f32(codes(-127, 128, k, n)), spread(scales(k // 32, n), k)),
    "groups of 64": lambda k, n: ew.mul(f32(codes(-8, 8, k, n)), spread(scales(k // 64, n), k)),
    "groups of 16": lambda k, n: ew.mul(f32(codes(-32, 32, k, n)), spread(scales(k // 16, n), k)),
    "minima": lambda k, n: ew.sub(
        ew.mul(f32(codes(0, 16, k, n)), spread(scales(k // 32, n), k)), spread(scales(k // 32, n), k)
    ),
    "zero points": lambda k, n: ew.mul(
        ew.sub(f32(codes(0, 16, k, n)), spread(codes(0, 16, k // 32, n), k)), spread(scales(k // 32, n), k)
    ),
    "two levels": two_levels,
    "scales of columns": lambda k, n: ew.mul(f32(codes(-127, 128, k, n)), f32(scales(1, n))),
}


def product_of(kind: str, depth: int, columns: int, rows: object = N) -> Module:
    return oracle.build(
        [tensor(dt.f32, (rows, depth))], lambda x: contract.matmul(x, KINDS[kind](depth, columns))
    )


WORDS_ALONE = Strategies(tuple(s for s in STRATEGIES.ours if s.name != "rounded_bytes"))
"""Those that weights have whose groups end within a byte of a plane."""


def scheduled(
    module: Module,
    target: str = WITH_DOTS,
    rounded_rows: int = 16,
    strategies: Strategies[Strategy] = STRATEGIES,
) -> Func:
    ctx = PassContext(parse_target(target))
    Fuse(strategies).run(module, ctx)
    schedule_regions(module, ctx.target, strategies, ctx.remarks, rounded_rows=rounded_rows)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def is_rounded(kernel: Func) -> bool:
    return any("round_terms(" in step for step in kernel_info(kernel).schedule)


def bound(x: np.ndarray, w: np.ndarray, bits: int) -> np.ndarray:
    """What sums may be off by: half of a step for each term, in groups of at most 32, and float32's own rounding."""
    rows, depth = x.shape
    groups = np.abs(x).reshape(rows, depth // 16, 16).max(-1)
    steps = np.repeat(np.maximum(groups[:, ::2], groups[:, 1::2]), 32, -1) / (2 ** (bits - 1) - 1)
    size = np.abs(x) @ np.abs(w) + np.abs(x).sum(-1, keepdims=True) * np.abs(w).max()
    return np.asarray(0.5 * steps @ np.abs(w) + 2e-6 * size)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("rows", [9, 10])
@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_results_stay_within_half_of_a_step(kind: str, bits: int, rows: int) -> None:
    depth, columns = 128, 80
    module = product_of(kind, depth, columns)
    (w,) = oracle.expected(module, [np.eye(depth, dtype=np.float32)])
    kernel = scheduled(module, rounded_rows=bits)
    assert is_rounded(kernel)
    assert any(step.startswith("dot(") for step in kernel_info(kernel).schedule)
    x = RNG.standard_normal((rows, depth)).astype(np.float32)
    (y,) = oracle.run(module, [x])
    assert np.all(np.abs(y - x.astype(np.float64) @ w) <= bound(x.astype(np.float64), w.astype(np.float64), bits))


FLOATS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def product_of_floats(kind: str, depth: int, columns: int) -> tuple[Module, np.ndarray]:
    w = (RNG.standard_normal((depth, columns)) * 10.0 ** RNG.integers(-2, 3, (1, columns))).astype(FLOATS[kind])
    module = oracle.build([tensor(dt.f32, (N, depth))], lambda x: contract.matmul(x, f32(w)))
    return module, w.astype(np.float64)


def bound_of_floats(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """As `bound`, where rows and columns are rounded to 14 bits: half of a step of each, and half of both."""
    depth, columns = w.shape
    steps = np.repeat(np.abs(w).reshape(depth // 32, 32, columns).max(1), 32, 0) / 4096
    return np.asarray(bound(x, w, 14) + 0.51 * np.abs(x) @ steps)


@pytest.mark.parametrize("kind", FLOATS)
def test_weights_of_short_floats_are_rounded_in_a_panel(kind: str) -> None:
    module, w = product_of_floats(kind, 96, 80)
    kernel = scheduled(module)
    assert is_rounded(kernel) and any(step.startswith("dot(") for step in kernel_info(kernel).schedule)
    assert [buffer_type(v).dtype.name for v in kernel.args[:1]] == [{"bfloat16": "bf16", "float16": "f16"}[kind]]
    x = RNG.standard_normal((10, 96)).astype(np.float32)
    (y,) = oracle.run(module, [x])
    off = np.abs(y - x.astype(np.float64) @ w)
    assert np.all(off <= bound_of_floats(x.astype(np.float64), w))
    assert np.sqrt(np.mean(off**2 / np.mean((x @ w) ** 2, 0))) < 2e-4
    (few,) = oracle.run(module, [x[:8]])
    np.testing.assert_allclose(few, x[:8].astype(np.float64) @ w, rtol=1e-4, atol=2e-6 * np.abs(w).max())


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(("depth", "columns"), [(64, 1024), (128, 300), (1088, 40), (768, 96)])
def test_native_code_for_weights_of_short_floats(kind: str, depth: int, columns: int) -> None:
    module, w = product_of_floats(kind, depth, columns)
    for target in ("zen4", "zen5"):
        assert is_rounded(scheduled(product_of_floats(kind, depth, columns)[0], target)), target
    model = Model(compile_module(module, Options(activations="int16"), parse_target("host,l2=64,l3=128")), 2)
    for rows in (0, 1, 2, 8, 9, 15, 16, 40):
        x = RNG.standard_normal((rows, depth)).astype(np.float32)
        off = np.abs(model(x)[0] - x.astype(np.float64) @ w)
        assert np.all(off <= bound_of_floats(x.astype(np.float64), w))


def test_one_infinite_element_gives_what_its_products_are() -> None:
    """Where weights are integers times scales; and NaN makes its whole row NaN. No other row changes."""
    depth, columns = 32, 64
    module = product_of("4 bits", depth, columns)
    (w,) = oracle.expected(module, [np.eye(depth, dtype=np.float32)])
    scheduled(module)
    x = RNG.standard_normal((9, depth)).astype(np.float32)
    x[4:7, 3] = np.inf, -np.inf, np.nan
    (found,) = oracle.run(module, [x])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found[4:7], (x[4:7, 3:4] * w[3]).astype(np.float32))
    assert np.isfinite(np.delete(found, (4, 5, 6), 0)).all()


@pytest.mark.parametrize("rows", [(N,), (1, N), (N, 16)], ids=str)
def test_threads_share_rows_and_columns(rows: tuple[object, ...]) -> None:
    module = oracle.build([tensor(dt.f32, (*rows, 64))], lambda x: contract.matmul(x, KINDS["4 bits"](64, 384)))
    kernel = scheduled(module)
    assert is_rounded(kernel)
    versions = [op for op in kernel.body.ops if op.name == "if"]
    ops = versions[0].blocks[0].ops if versions else kernel.body.ops
    loops = [op for op in ops if is_loop(op)]
    assert len(loops) == 2 and all(kind_of(o) == "parallel" for o in loops)


def test_where_kernels_do_not_go_together_those_in_float32_serve_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = defaults._joined

    def apart(large: Lowered, small: Lowered, lowered: Lowered) -> Lowered:
        if is_rounded(large.func):
            raise ScheduleError("the two kernels read a constant in different orders")
        return joined(large, small, lowered)

    wanted = scheduled(product_of("8 bits", 64, 384), rounded_rows=0)
    monkeypatch.setattr(defaults, "_joined", apart)
    found = scheduled(product_of("8 bits", 64, 384), strategies=WORDS_ALONE)
    assert kernel_info(found).schedule == kernel_info(wanted).schedule
    assert any("otherwise" in step for step in kernel_info(found).schedule), "few rows have kernels of their own"


def test_several_axes_of_rows_and_a_costly_function_behind_them() -> None:
    def body(x: Value) -> Value:
        y = contract.matmul(x, KINDS["groups of 64"](128, 80))
        return ew.mul(y, ew.sigmoid(y))

    module = oracle.build([tensor(dt.f32, (var("b", 0), N, 128))], body)
    arrays = [RNG.standard_normal((*shape, 128)).astype(np.float32) for shape in ((2, 5), (3, 2))]
    wanted = [oracle.expected(module, [x])[0] for x in arrays]
    assert is_rounded(scheduled(module))
    for x, y in zip(arrays, wanted, strict=True):
        np.testing.assert_allclose(oracle.run(module, [x])[0], y, rtol=1e-3, atol=1e-3 * np.abs(y).max())


def test_few_rows_that_are_multiplied_as_words_stay_as_they_are() -> None:
    module = product_of("4 bits", 64, 96)
    (w,) = oracle.expected(module, [np.eye(64, dtype=np.float32)])
    x = np.full((8, 64), 1 / 3, np.float32)
    x[:, 0] = 1e4  # all others would be 1 or 2 of its steps
    assert is_rounded(scheduled(module, strategies=WORDS_ALONE))
    off = np.abs(oracle.run(module, [x])[0] - x.astype(np.float64) @ w)
    assert np.all(off <= 2e-6 * np.abs(x) @ np.abs(w))
    assert not is_rounded(scheduled(product_of("4 bits", 64, 96, sym(8)), strategies=WORDS_ALONE))
    assert is_rounded(scheduled(product_of("4 bits", 64, 96, sym(9)), strategies=WORDS_ALONE))


@pytest.mark.parametrize(
    ("target", "bits"), [(WITH_DOTS, 0), ("zen2", 16), ("zen3", 16), ("x86-64-v4", 16)], ids=str
)
def test_where_it_is_not_wanted_or_does_not_gain(target: str, bits: int) -> None:
    assert not is_rounded(scheduled(product_of("8 bits", 64, 96), target, bits))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("depth", "columns", "activations"), [(64, 384, "int16"), (128, 300, "int8"), (1088, 24, "int16"), (64, 96, "int8")]
)
def test_native_code_for_every_number_of_rows(kind: str, depth: int, columns: int, activations: str) -> None:
    module = product_of(kind, depth, columns)
    (w,) = oracle.expected(module, [np.eye(depth, dtype=np.float32)])
    model = Model(compile_module(module, Options(activations=activations), parse_target("host,l2=1024")), 2)
    bits = bits_of_rows(Options(activations=activations))
    for rows in (0, 1, 2, 7, 8, 9, 15, 16, 17, 40):
        x = RNG.standard_normal((rows, depth)).astype(np.float32)
        y = model(x)[0]
        assert np.all(np.abs(y - x.astype(np.float64) @ w) <= bound(x.astype(np.float64), w.astype(np.float64), bits))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("activations", ["int16", "int8"])
@pytest.mark.parametrize(
    ("low", "bits_of_a_weight"), [(0, 4), (-8, 4), (0, 2), (-2, 2), (-4, 3), (0, 5), (-16, 5), (-32, 6), (0, 6)]
)
def test_weights_of_less_than_a_byte(activations: str, low: int, bits_of_a_weight: int) -> None:
    """Weights that lie in fields of bytes, of which few rows and many read the same copy."""
    w = RNG.integers(low, low + (1 << bits_of_a_weight), (768, 384)).astype(np.int8)

    def body(x: Value) -> Value:
        return contract.matmul(x, ew.mul(f32(w), spread(scales(24, 384), 768)))

    module = oracle.build([tensor(dt.f32, (N, 768))], body)
    (wanted,) = oracle.expected(module, [np.eye(768, dtype=np.float32)])
    model = Model(compile_module(module, Options(activations=activations), parse_target("host,l2=1024,l3=2048")), 1)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    assert is_rounded(kernel)
    packings = kernel_info(kernel).packed.values()
    assert any(packing.fields for packing in packings)
    for rows in (1, 3, 9, 40):
        x = RNG.standard_normal((rows, 768)).astype(np.float32)
        exact = x.astype(np.float64) @ wanted
        bits = bits_of_rows(Options(activations=activations))
        assert np.all(np.abs(model(x)[0] - exact) <= bound(x.astype(np.float64), wanted.astype(np.float64), bits))


@pytest.mark.parametrize("activations", ["int16", "int8"])
def test_products_of_integers_that_are_too_long_for_sums_stay_in_float32(activations: str) -> None:
    w = np.full((256, 384), 2**15 - 1, np.int16)
    factors = (1e-3 * scales(8, 384)).astype(np.float16)

    def body(x: Value) -> Value:
        return contract.matmul(x, ew.mul(f32(w), spread(factors, 256)))

    module = oracle.build([tensor(dt.f32, (N, 256))], body)
    model = Model(compile_module(module, Options(activations=activations), parse_target("host,l2=128")), 1)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    assert not is_rounded(kernel)
    x = RNG.random((20, 256), np.float32)
    exact = x.astype(np.float64) @ (w * np.repeat(factors.astype(np.float64), 32, 0))
    np.testing.assert_allclose(model(x)[0], exact, rtol=1e-5)


def test_rows_of_heads_and_work_behind_the_sums() -> None:
    """Results in the order of heads, whose panels lie within one, and behind a function that is a loop of its own."""

    def body(x: Value) -> Value:
        y = contract.matmul(x, KINDS["4 bits"](64, 128))
        heads = view.transpose(view.reshape(y, shape=(N, 2, 64)), perm=(1, 0, 2))
        return ew.mul(heads, ew.sigmoid(heads))

    module = oracle.build([tensor(dt.f32, (N, 64))], body)
    x = RNG.standard_normal((19, 64)).astype(np.float32)
    (wanted,) = oracle.expected(module, [x])
    model = Model(compile_module(module, Options(activations="int16"), host_target()), 1)
    np.testing.assert_allclose(model(x)[0], wanted, rtol=1e-3, atol=2e-3)


def test_what_is_asked_for() -> None:
    assert bits_of_rows(Options()) == 0 and bits_of_rows(Options(), "int16") == 16
    assert bits_of_rows(Options(activations="int8")) == 8
    assert bits_of_rows(Options(activations="float32"), "int16") == 0
    assert bits_of_rows(Options(numerics="fast")) == 16
    assert bits_of_rows(Options(numerics="strict"), "int16") == 0
    with pytest.raises(OptionError, match=r"activations='int4' is not allowed: one of float32, int16, int8"):
        Options(activations="int4")
    with pytest.raises(OptionError, match="numerics='strict' does not"):
        Options(activations="int16", numerics="strict")
    assert Options(activations="int16").fingerprint() != Options().fingerprint()
