"""An operator that no file of the package names takes part in every optimisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.graph.programs import find, kernels, ops, program, run, weights
from tilewright.accounts.layers import source_layers
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.integer.fixed import Fixed, centred
from tilewright.graph.integer.integer_only import IntegerOnly
from tilewright.graph.integer.state import FIXED_POINT, Numbers
from tilewright.graph.precision.narrow_products import NarrowProducts
from tilewright.graph.precision.widen_floats import WidenFloats
from tilewright.graph.quantised.byte_tables import ByteTables
from tilewright.graph.quantised.integer_products import IntegerProducts
from tilewright.graph.quantised.weight_only import WeightOnly, dequantizing_casts
from tilewright.graph.rewrites.affine import FoldAffine
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.expand import Expand
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import Sym
from tilewright.ir.types import tensor
from tilewright.ops.contract import matmul
from tilewright.ops.define import OPERATORS, Compute, Operator, compute, constant, irregular, primitive
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.elementwise import add, cast, mul, neg
from tilewright.ops.quant import dequantize_linear, quantize_linear
from tilewright.ops.shape import broadcast
from tilewright.ops.traits.check import contradictions
from tilewright.ops.view import transpose
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.quantization.network import Network
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.named import parse_target

TARGET = "zen3"


@pytest.fixture
def bent() -> Iterator[Operator]:
    """A function of one element."""

    def own_bent(x: Array) -> Compute:
        """x / (1 + exp(-x * x))."""

        def body(t: ScalarBuilder, i: tuple, r: tuple) -> object:
            e = x[tuple(i)]
            return e / (t.apply("exp", -(e * e)) + 1)

        return compute([x], x.shape, body)

    yield primitive(own_bent)
    del OPERATORS["own_bent"]


@pytest.fixture
def turned() -> Iterator[Operator]:
    """A view."""

    def own_turned(x: Array) -> Compute:
        """Each row from its end."""
        return compute([x], x.shape, lambda t, i, r: x[(*i[:-1], x.shape[-1] - 1 - i[-1])])

    yield primitive(own_turned)
    del OPERATORS["own_turned"]


@pytest.fixture
def larger() -> Iterator[Operator]:
    """A function of two elements that may be exchanged."""

    def own_larger(a: Array, b: Array) -> Compute:
        """The larger one."""
        return compute([a, b], broadcast(a.shape, b.shape), lambda t, i, r: t.apply("max", a.at(i), b.at(i)))

    yield primitive(own_larger)
    del OPERATORS["own_larger"]


@pytest.fixture
def joined() -> Iterator[Operator]:
    """A product of matrices."""

    def own_joined(x: Array, w: Array) -> Compute:
        """Rows of x times rows of w, along columns."""
        shape, depth = (x.shape[0], w.shape[0]), x.shape[1]
        return compute(
            [x, w], shape, lambda t, i, r: x[i[0], r[0]] * w[i[1], r[0]], reduce=[depth], combine="add", dtype=x.dtype
        )

    yield primitive(own_joined)
    del OPERATORS["own_joined"]


@pytest.fixture
def halved() -> Iterator[Operator]:
    """An operator with loops of its own, of which nothing is declared."""

    def own_halved(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
        """x / 2."""
        (x,), (y,) = inputs, outputs
        with t.loop(x.shape[0]) as i:
            y.store((i,), x[i] * 0.5)

    yield irregular(lambda x: (x,))(own_halved)
    del OPERATORS["own_halved"]


@pytest.fixture
def linear() -> Iterator[Operator]:
    """A product of rows with rows."""

    def own_linear(x: Array, w: Array) -> Compute:
        """x [..., k] times w [n, k], along k."""

        def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
            acc = x.dtype.accumulator
            return x[(*i[:-1], r[0])].cast(acc) * w[(i[-1], r[0])].cast(acc)

        shape = (*x.shape[:-1], w.shape[0])
        return compute([x, w], shape, body, reduce=x.shape[-1:], combine="add", dtype=x.dtype)

    yield primitive(own_linear)
    del OPERATORS["own_linear"]


def dequantized(q: Value) -> Value:
    return dequantize_linear(q, constant(np.float32(0.05)), constant(np.uint8(7)), dtype=dt.f32)


def known_bytes(*shape: int) -> Value:
    q = np.random.default_rng(2).integers(-128, 128, shape).astype(np.int8)
    return dequantize_linear(constant(q), constant(np.float32(0.1)), constant(np.int8(0)), dtype=dt.f32)


def quantized(x: Value) -> Value:
    return quantize_linear(x, constant(np.float32(0.03)), constant(np.uint8(9)), dtype=dt.u8)


def test_its_16_bit_floats_are_computed_in_float32(bent: Operator, halved: Operator) -> None:
    for operator in (bent, halved):
        module = program(operator, tensor(dt.f16, (8,)))
        run(module, WidenFloats(), tolerance=2e-3, target=TARGET)
        assert find(module, operator.name).result.tensor.dtype is dt.f32


def test_its_product_keeps_operands_of_16_bits_where_the_machine_adds_them_in_groups(linear: Operator) -> None:
    rows = np.ones((16, 32), np.float32).astype(dt.bf16.storage)
    module = program(lambda x: linear(x, constant(rows)), tensor(dt.bf16, (64, 32)))
    run_passes(module, [WidenFloats()], PassContext(parse_target("zen4"), Options(numerics="fast")))
    assert find(module, "matmul_widening").operands[0] is module.main.args[0]


def test_operands_of_its_product_are_narrowed(linear: Operator) -> None:
    module = program(lambda x: linear(x, weights(1024, 256)), (512, 256))
    ctx = PassContext(parse_target("zen4"), Options(numerics="fast"))
    run_passes(module, [NarrowProducts()], ctx)
    assert find(module, "matmul_widening").operands[0].tensor.dtype is dt.bf16
    assert any(r.subject.startswith("own_linear") for r in ctx.remarks)


def test_its_product_of_dequantised_operands_is_one_of_integers(linear: Operator) -> None:
    module = program(lambda q: linear(dequantized(q), known_bytes(8, 16)), tensor(dt.u8, (6, 16)))
    run(module, IntegerProducts(), tolerance=1e-4, target="zen4")
    assert find(module, "matmul_widening").result.tensor.dtype is dt.i32


def test_its_product_is_one_of_a_program_of_integers(linear: Operator) -> None:
    module = program(lambda x: dequantized(quantized(linear(dequantized(quantized(x)), known_bytes(8, 16)))), (6, 16))
    run_passes(module, [IntegerOnly()], PassContext())
    assert find(module, "matmul_integer").result.tensor.dtype is dt.i32


def test_its_weights_stay_quantised(linear: Operator) -> None:
    q = np.random.default_rng(0).integers(-128, 128, (1024, 2048)).astype(np.int8)
    module = program(lambda x: linear(x, mul(cast(constant(q), dtype=dt.f32), 0.1)), (1, 2048))
    ctx = PassContext(parse_target(TARGET))
    assert len(dequantizing_casts(module, ctx)) == 1
    run_passes(module, [WeightOnly()], ctx)
    (laid_out,) = module.constants.values()
    assert np.array_equal(laid_out, q.T)  # as the product's kernel reads it


def test_its_product_is_a_layer_that_is_quantised_and_reported(linear: Operator) -> None:
    module = program(lambda x: add(linear(x, weights(8, 16)), weights(8)), (6, 16))
    ((unit,), layers) = Network.of(module).units, source_layers(module)
    assert [(la.operator, la.channel_axis, la.channels, la.inputs) for la in unit.layers] == [("own_linear", 0, 8, 16)]
    assert unit.layers[0].bias is not None
    assert [layer.channels for layer in layers.values()] == ["8"]


def test_its_rule_in_fixed_point_is_given_to_it(bent: Operator) -> None:
    def wide(x: Value) -> Value:
        return dequantize_linear(quantize_linear(x, *SIXTEEN, dtype=dt.i16), *SIXTEEN, dtype=dt.f32)

    SIXTEEN = [np.float32(0.01), np.int16(0)]
    module = program(lambda x: wide(bent(wide(x))), (3,))
    with pytest.raises(UnsupportedError, match=r"own_bent[\s\S]*no form in integers"):
        run_passes(module.copy(), [IntegerOnly()], PassContext())

    @FIXED_POINT.rule(bent)
    def negated(op: Op, numbers: Numbers) -> Fixed:
        x = numbers.of(op.operands[0])
        return replace(x, value=neg(centred(x)), low=-x.high, high=-x.low, zero=0)

    run_passes(module, [IntegerOnly()], PassContext())
    assert "neg" in ops(module)


def test_of_bytes_it_is_a_table(bent: Operator) -> None:
    module = program(lambda q: quantized(bent(dequantized(q))), tensor(dt.u8, (3, 40)))
    run(module, Expand(), Canonicalize(), Fold(), ByteTables(), target=TARGET)
    assert ops(module) == ["table_lookup"]


def test_transposes_go_through_it(bent: Operator) -> None:
    module = program(lambda x: transpose(bent(transpose(x, perm=(1, 0))), perm=(1, 0)), (3, 5))
    run(module, Canonicalize())
    assert ops(module) == ["own_bent"]


def test_its_view_of_dequantised_elements_moves_bytes(turned: Operator) -> None:
    module = program(lambda q: turned(dequantized(q)), tensor(dt.u8, (3, 5)))
    run(module, IntegerProducts(), target=TARGET)
    assert find(module, "own_turned").result.tensor.dtype is dt.u8


def test_it_is_fused(bent: Operator, turned: Operator) -> None:
    module = program(lambda x: bent(add(matmul(turned(x), weights(16, 16)), 1.0)), (6, 16))
    run(module, Fuse(STRATEGIES), target=TARGET)
    assert kernels(module) == [["own_turned", "matmul", "add", "own_bent"]]


def test_its_weights_take_a_factor_for_each_channel(joined: Operator) -> None:
    module = program(lambda x: mul(joined(x, weights(6, 4)), weights(6)), (3, 4))
    run(module, FoldAffine(), target=TARGET)
    assert ops(module) == ["own_joined"]


def test_it_is_folded(bent: Operator) -> None:
    module = program(lambda x: add(x, bent(weights(4))), (4,))
    run(module, Fold(), target=TARGET)
    assert ops(module) == ["add"]


def test_its_constant_goes_to_the_right_and_its_neutral_element_goes(larger: Operator) -> None:
    module = program(lambda x: larger(weights(4), larger(x, constant(np.float32(-np.inf)))), (4,))
    run(module, Canonicalize())
    assert ops(module) == ["own_larger"]
    assert find(module, "own_larger").operands[0] is module.main.args[0]


def test_its_traits_are_tried(
    bent: Operator, turned: Operator, larger: Operator, halved: Operator, linear: Operator
) -> None:
    x = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)
    cases = ((bent, [x]), (turned, [x]), (larger, [x, x[:1]]), (halved, [x[0]]), (linear, [x, x[:2]]))
    for operator, operands in cases:
        assert list(contradictions(operator, operands)) == []
