"""An operator that no file of the package names takes part in every optimisation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.graph.programs import find, kernels, ops, program, run, weights
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.precision.widen_floats import WidenFloats
from tilewright.graph.quantised.byte_tables import ByteTables
from tilewright.graph.quantised.integer_products import IntegerProducts
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.expand import Expand
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.types import tensor
from tilewright.ops.contract import matmul
from tilewright.ops.define import OPERATORS, Compute, Operator, compute, constant, irregular, primitive
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.ops.elementwise import add
from tilewright.ops.quant import dequantize_linear, quantize_linear
from tilewright.ops.shape import broadcast
from tilewright.ops.traits.check import contradictions
from tilewright.ops.view import transpose
from tilewright.schedule.strategies import STRATEGIES

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
def halved() -> Iterator[Operator]:
    """An operator with loops of its own, of which nothing is declared."""

    def own_halved(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
        """x / 2."""
        (x,), (y,) = inputs, outputs
        with t.loop(x.shape[0]) as i:
            y.store((i,), x[i] * 0.5)

    yield irregular(lambda x: (x,))(own_halved)
    del OPERATORS["own_halved"]


def dequantized(q: Value) -> Value:
    return dequantize_linear(q, constant(np.float32(0.05)), constant(np.uint8(7)), dtype=dt.f32)


def quantized(x: Value) -> Value:
    return quantize_linear(x, constant(np.float32(0.03)), constant(np.uint8(9)), dtype=dt.u8)


def test_its_16_bit_floats_are_computed_in_float32(bent: Operator, halved: Operator) -> None:
    for operator in (bent, halved):
        module = program(operator, tensor(dt.f16, (8,)))
        run(module, WidenFloats(), tolerance=2e-3, target=TARGET)
        assert find(module, operator.name).result.tensor.dtype is dt.f32


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


def test_it_is_folded(bent: Operator) -> None:
    module = program(lambda x: add(x, bent(weights(4))), (4,))
    run(module, Fold(), target=TARGET)
    assert ops(module) == ["add"]


def test_its_constant_goes_to_the_right_and_its_neutral_element_goes(larger: Operator) -> None:
    module = program(lambda x: larger(weights(4), larger(x, constant(np.float32(-np.inf)))), (4,))
    run(module, Canonicalize())
    assert ops(module) == ["own_larger"]
    assert find(module, "own_larger").operands[0] is module.main.args[0]


def test_its_traits_are_tried(bent: Operator, turned: Operator, larger: Operator, halved: Operator) -> None:
    x = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)
    for operator, operands in ((bent, [x]), (turned, [x]), (larger, [x, x[:1]]), (halved, [x[0]])):
        assert list(contradictions(operator, operands)) == []
