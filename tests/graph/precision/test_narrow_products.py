"""Products with operands rounded to bfloat16: networks within the bound that their roundings have, and what decides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.precision.bounded import (
    Bounded,
    Layer,
    chain_emit,
    chain_follow,
    convolution,
    dense,
    pooled,
    recurrent,
    relu,
    residual,
    self_attention,
    tanh,
)
from tests.graph.programs import program
from tests.schedule.scheduling import run
from tilewright.compilation import Compilation, Setting
from tilewright.graph.pipeline import default_passes
from tilewright.graph.precision import narrow_choice
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.loops.edit import is_loop, kind_of
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import conv, conv_transpose, matmul
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.index import gather
from tilewright.ops.norm import softmax
from tilewright.ops.recurrent import gru, rnn
from tilewright.ops.reduce import reduce_max, reduce_sum
from tilewright.ops.source import full
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.target.named import parse_target

RNG = np.random.default_rng(3)
FAST = Options(numerics="fast")


def images(rng: np.random.Generator) -> tuple[tuple[int, ...], list[Layer]]:
    """A stem of few channels and layers of all kinds of convolutions."""
    shape = (1, int(rng.choice([1, 3, 4])), *rng.integers(6, 11, rng.choice([1, 2])).tolist())
    layers = [convolution(rng, shape, 16 * int(rng.integers(1, 3)), 3, int(rng.integers(1, 3)))]
    for _ in range(rng.integers(2, 5)):
        layers += [relu(layers[-1].shape)]
        last = layers[-1].shape
        kind, wide = rng.integers(6), 16 * int(rng.integers(1, 4))
        if kind == 0:
            layers.append(convolution(rng, last, wide, 1, int(rng.integers(1, 3))))
        elif kind == 1:
            layers.append(convolution(rng, last, wide, 3, int(rng.integers(1, 3))))
        elif kind == 2:
            inner = [convolution(rng, last, last[1], 1) for _ in range(2)]
            layers.append(residual([inner[0], tanh(last), inner[1]]))
        elif kind == 3 and last[1] == 32:
            layers.append(convolution(rng, last, 32, 3, groups=2))
        elif kind == 4:
            layers.append(convolution(rng, last, last[1], 3, groups=last[1]))  # each channel on its own
        elif min(last[2:]) > 3:
            layers.append(pooled(last))
    layers.append(convolution(rng, layers[-1].shape, 24, 1))
    return shape, layers


def texts(rng: np.random.Generator) -> tuple[tuple[int, ...], list[Layer]]:
    """Projections, attention, and products of several shapes."""
    width = int(rng.choice([32, 48]))
    shape = (int(rng.integers(5, 20)), width)
    layers = [dense(rng, shape, width)]
    if rng.integers(2):
        layers.append(self_attention(rng, shape))
    inner = dense(rng, shape, 2 * width, transpose_b=bool(rng.integers(2)))
    layers.append(residual([inner, relu(inner.shape), dense(rng, inner.shape, width)]))
    return shape, [*layers, dense(rng, shape, int(rng.integers(16, 40)))]


def sequences(rng: np.random.Generator) -> tuple[tuple[int, ...], list[Layer]]:
    shape = (int(rng.integers(2, 5)), int(rng.integers(1, 3)), 32)
    layer = recurrent(rng, shape, 16)
    return shape, [layer, dense(rng, layer.shape, 24)]


KINDS = {"images": images, "texts": texts, "sequences": sequences}


def compiled(module: Module, target: str, options: Options = FAST) -> PassContext:
    ctx = Compilation(module, Setting.of(options, parse_target(target))).run("scheduled").context
    return ctx


def dots(module: Module) -> int:
    loops = (op for f in module.funcs.values() if f.level == "loops" for op in f.body.walk())
    return sum(is_loop(op) and kind_of(op) == "dot" for op in loops)


def applied(ctx: PassContext) -> int:
    return sum(r.kind == "applied" for r in ctx.remarks if r.stage == "narrow-products")


def check_network(kind: str, seed: int, target: str) -> None:
    rng = np.random.default_rng(seed)
    shape, layers = KINDS[kind](rng)
    module = program(lambda x: chain_emit(layers, x), shape)
    x = rng.standard_normal(shape).astype(np.float32)
    wanted = chain_follow(layers, Bounded(x.astype(np.float64), np.zeros(shape)))
    ctx = compiled(module, target)
    (found,) = run(module, [x])
    names = [layer.name for layer in layers]
    assert found.dtype == np.float32
    assert (np.abs(found - wanted.value) <= wanted.error).all(), names
    assert applied(ctx) and dots(module), names
    assert not [r for r in ctx.remarks if "not multiplied in groups" in r.message], names
    off = np.abs(found - wanted.value).max() / np.abs(wanted.value).max()
    assert off > 2.0**-16, names  # something was rounded


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["zen4", "sapphirerapids", "neoverse-v1"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_networks_stay_within_their_bound(kind: str, seed: int, target: str) -> None:
    check_network(kind, seed, target)


@pytest.mark.fresh_seeds(2)
@pytest.mark.parametrize("kind", KINDS)
def test_fresh_networks_stay_within_their_bound(kind: str, fresh_seed: int) -> None:
    check_network(kind, fresh_seed, "zen4")


# What decides


def weights(*shape: int) -> Value:
    return constant((np.random.default_rng(shape).standard_normal(shape) / 8).astype(np.float32))


def remarks(
    body: Callable[[Value], Value | tuple[Value, Value]],
    *shape: int,
    target: str = "zen4",
    numerics: str = "fast",
) -> list[str]:
    """Why products were (not) rounded."""
    options = Options(numerics=numerics)
    ctx = PassContext(parse_target(target), options)
    module = program(body, shape)
    run_passes(module, default_passes(options), ctx)
    return [str(r) for r in ctx.remarks if r.stage == "narrow-products"]


REASONS: dict[str, tuple[Callable[[Value], Value], tuple[int, ...], str]] = {
    "each channel on its own": (
        lambda x: conv(x, weights(32, 1, 3, 3), groups=32), (1, 32, 8, 8), "few products for each element",
    ),
    "few filters": (lambda x: conv(x, weights(4, 32, 3, 3)), (1, 32, 8, 8), "do not allow whole blocks"),
    "few channels at single positions": (
        lambda x: conv(x, weights(64, 4, 1, 1)), (1, 4, 1, 1), "few channels lie apart",
    ),
    "two unknown operands": (lambda x: matmul(x, x), (16, 16), "right operand is not known"),
    "an odd depth": (lambda x: matmul(x, weights(33, 64)), (8, 33), "33 products are no multiple"),
    "rows that lie apart": (lambda x: matmul(x, weights(32, 64), transpose_a=True), (32, 8), "lie apart in a row"),
    "one column": (lambda x: matmul(x, weights(64, 1)), (1, 64), "one column"),
    "few columns": (lambda x: matmul(x, weights(64, 2)), (64, 64), "not done: bf16 is estimated at"),
    "Winograd's algorithm": (lambda x: conv(x, weights(64, 64, 3, 3)), (1, 64, 58, 58), "Winograd's algorithm at"),
    "transposed": (lambda x: conv_transpose(x, weights(32, 16, 2, 2)), (1, 32, 8, 8), "conv_transpose multiplies"),
    "weights beyond the range": (
        lambda x: matmul(x, constant(np.full((64, 64), 3.4e38, np.float32))), (8, 64), "beyond the range",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_what_stays_in_float32_says_why(name: str) -> None:
    body, shape, reason = REASONS[name]
    (remark,) = remarks(body, *shape)
    assert "not done" in remark and reason in remark


ATTENTION: dict[str, tuple[tuple[int, int], bool, str]] = {
    "whole groups": ((16, 32), True, "of the time of direct sums"),
    "few rows": ((4, 32), False, "read for few rows"),
    "an odd number of keys": ((17, 32), True, "of the time of direct sums"),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_products_of_attention_are_rounded_together(name: str) -> None:
    shape, taken, reason = ATTENTION[name]
    first, second, *_ = remarks(lambda x: matmul(softmax(matmul(x, x, transpose_b=True)), x), *shape)
    assert ("not done" not in first) == ("not done" not in second) == taken
    assert reason in first and reason in second


def test_scores_that_others_read_stay_in_float32() -> None:
    def body(x: Value) -> tuple[Value, Value]:
        scores = matmul(x, x, transpose_b=True)
        return matmul(softmax(scores), x), ew.tanh(scores)

    assert all("right operand is not known" in remark for remark in remarks(body, 16, 32))


def test_machines_without_an_instruction_say_so() -> None:
    def body(x: Value) -> Value:
        return matmul(x, weights(64, 64))

    for target in ("zen3", "x86-64-v4", "icelake-server", "neoverse-n1"):
        (remark,) = remarks(body, 8, 64, target=target)
        assert "multiplies no groups of shorter floats" in remark


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_only_fast_numerics_round(numerics: str) -> None:
    assert not remarks(lambda x: matmul(x, weights(64, 64)), 8, 64, numerics=numerics)


def dtypes(module: Module, *names: str) -> set[str]:
    return {v.tensor.dtype.name for op in module.main.body.ops if op.name in names for v in op.operands[:1]}


def passed(module: Module, options: Options = FAST, target: str = "zen4") -> PassContext:
    ctx = PassContext(parse_target(target), options)
    run_passes(module, default_passes(options), ctx)
    return ctx


def test_elements_are_rounded_before_they_are_moved() -> None:
    """What only products read lies in memory in 16 bits, padded and pooled, too."""

    def body(x: Value) -> Value:
        y = ew.max_(conv(x, weights(32, 32, 1, 1)), 0)
        return conv(y, weights(32, 32, 3, 3), pads_begin=(1, 1), pads_end=(1, 1), strides=(2, 2))

    module = program(body, (1, 32, 16, 16))
    passed(module)
    assert dtypes(module, "pad") == dtypes(module, "conv_blocked") == {"bf16"}


def test_what_others_read_is_in_float32_as_well() -> None:
    def body(x: Value) -> Value:
        y = ew.max_(conv(x, weights(32, 32, 1, 1)), 0)
        return ew.add(conv(y, weights(32, 32, 1, 1)), y)

    module = program(body, (1, 32, 16, 16))
    passed(module)
    assert dtypes(module, "add") == {"f32"}
    assert dtypes(module, "conv_blocked") == {"bf16"}


# Programs of bfloat16


def narrow_program() -> Module:
    def body(x: Value) -> Value:
        w = constant(RNG.standard_normal((64, 64)).astype(dt.bf16.storage))
        y = ew.tanh(matmul(x, w))
        return matmul(y, constant(RNG.standard_normal((64, 48)).astype(dt.bf16.storage)))

    return program(body, tensor(dt.bf16, (8, 64)))


@pytest.mark.parametrize(
    ("target", "numerics", "groups"),
    [
        ("zen4", "default", True),
        ("zen4", "strict", False),  # which keeps denormal numbers
        ("neoverse-v1", "default", False),  # whose sums are rounded to odd
        ("neoverse-v1", "fast", True),
        ("zen3", "default", False),
    ],
)
def test_products_of_bfloat16_models(target: str, numerics: str, groups: bool) -> None:
    module = narrow_program()
    passed(module, Options(numerics=numerics), target)
    names = {op.name for op in module.main.body.ops}
    assert ("matmul_widening" in names) == groups
    assert ("matmul" in names) != groups


def test_attention_of_bfloat16_models() -> None:
    """Where softmax is written out, its products are found already in 16 bits."""

    def body(x: Value) -> Value:
        scores = matmul(x, x, transpose_b=True)
        powers = ew.exp(ew.sub(scores, reduce_max(scores, axes=(1,), keepdims=True)))
        return matmul(ew.div(powers, reduce_sum(powers, axes=(1,), keepdims=True)), x)

    module = program(body, tensor(dt.bf16, (64, 64)))
    x = RNG.standard_normal((64, 64)).astype(dt.bf16.storage)
    ctx = compiled(module, "zen4", Options())
    assert applied(ctx) == dots(module) == 2
    (found,) = run(module, [x])
    wide = x.astype(np.float64)
    scores = wide @ wide.T
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    np.testing.assert_allclose(found.astype(np.float64), weights @ wide, atol=0.03)


STATES = {
    "rnn": lambda g, r, h: rnn(g, r, h)[0],
    "gru": lambda g, r, h: gru(g, r, full(value=0.1, dtype=dt.f32, shape=(16,)), h)[0],
    "gru reset before": lambda g, r, h: gru(
        g, r, full(value=0.1, dtype=dt.f32, shape=(16,)), h, linear_before_reset=False
    )[0],
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_states_are_rounded_in_each_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow_choice, "rounding_gains", lambda *_: True)
    count = 1 if name == "rnn" else 3

    def body(gates: Value) -> Value:
        first = full(value=0.5, dtype=dt.f32, shape=(2, 16))
        return STATES[name](gates, weights(count, 16, 16), first)

    module = program(body, (4, 2, count * 16))
    gates = RNG.standard_normal((4, 2, count * 16)).astype(np.float32)
    (wanted,) = evaluate_func(module.main, module, [gates])
    ctx = compiled(module, "zen4")
    assert applied(ctx) and dots(module)
    (found,) = run(module, [gates])
    assert 1e-6 < np.abs(found - wanted).max() < 0.02


def test_products_of_bfloat16_models_are_exact_sums_of_rounded_operands() -> None:
    module = narrow_program()
    w, v = (a.astype(np.float64) for a in list(module.constants.values()))
    x = RNG.standard_normal((8, 64)).astype(dt.bf16.storage)
    compiled(module, "zen4", Options())
    assert dots(module) == 2
    (found,) = run(module, [x])
    y = np.tanh(x.astype(np.float64) @ w).astype(np.float32).astype(dt.bf16.storage).astype(np.float64)
    wanted = y @ v
    # tanh may be rounded to a neighbour, and the result is rounded once
    slack = 2.0**-8 * (np.abs(wanted) + 0.05 * np.abs(y) @ np.abs(v))
    assert (np.abs(found.astype(np.float64) - wanted) <= slack).all()


def test_weights_of_bfloat16_convolutions_keep_their_dtype() -> None:
    """Factors are not folded into weights that an instruction reads in 16 bits."""

    def body(x: Value) -> Value:
        w = constant(RNG.standard_normal((32, 32, 1, 1)).astype(dt.bf16.storage))
        scale = constant(RNG.standard_normal((1, 32, 1, 1)).astype(dt.bf16.storage))
        return ew.mul(conv(x, w), scale)

    module = program(body, tensor(dt.bf16, (1, 32, 14, 14)))
    passed(module, Options())
    (found,) = [op for op in module.main.body.ops if op.name == "conv_blocked"]
    assert [v.tensor.dtype for v in (*found.operands, *found.results)] == [dt.bf16, dt.bf16, dt.f32]


@pytest.mark.parametrize("is_picked", [False, True])
def test_weights_that_are_stored_in_16_bits(is_picked: bool) -> None:
    """Of an unknown number of rows they stay as short as they are stored, and are what the instruction takes; but where
    others read them, too, which would need a copy: there panels of them are rounded."""
    rows = var("rows", 0)
    w = RNG.standard_normal((256, 128)).astype(dt.bf16.storage)

    def body(x: Value, i: Value) -> Value | tuple[Value, ...]:
        wide = ew.cast(constant(w, "w"), dtype=dt.f32)
        y = matmul(x, wide, transpose_b=True)
        return (y, gather(wide, i, axis=0)) if is_picked else y

    module = program(body, tensor(dt.f32, (rows, 128)), tensor(dt.i64, (1,)))
    x, at = RNG.standard_normal((20, 128)).astype(np.float32), np.zeros(1, np.int64)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    ctx = compiled(module, "zen4,l2=4096,l3=8192")
    assert applied(ctx) == (0 if is_picked else 2) and dots(module)
    assert [a.dtype for a in module.constants.values() if a.size == w.size] == [w.dtype]
    off = np.abs(run(module, [x, at])[0] - exact)
    assert np.all(off <= 2.0**-8 * np.abs(x).astype(np.float64) @ np.abs(w.astype(np.float64)).T)
