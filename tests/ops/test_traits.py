"""Traits of operators: what is derived and declared holds for arrays."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.ops.samples import FAMILIES
from tests.ops.sampling import Sample
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.diag import TilewrightError
from tilewright.ir.scalar import COMPUTING
from tilewright.ir.sym import Sym, ge
from tilewright.ir.types import tensor
from tilewright.ops.contract import conv, conv_transpose, matmul
from tilewright.ops.define import OPERATORS, Compute, Operator, compute
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.elementwise import add, gt, select
from tilewright.ops.traits.check import contradictions
from tilewright.ops.traits.derive import traits, traits_of
from tilewright.ops.traits.facts import FIRST, Product, Traits
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.ops.view import concat, pad, transpose

SAMPLES = 2
"""Of each operator in a family, of which one is drawn: they differ in dtypes, shapes and attributes."""

CONDITIONAL = {("quotient", "is_finite"): "its last operand is the inverse of a divisor, a normal number"}
"""Traits that hold for operands as the operator takes them, and not for any."""


@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_no_sample_of_an_operator_contradicts_its_traits(
    family: Callable[[], Iterator[Sample]], fresh_seed: int
) -> None:
    samples: dict[str, list[Sample]] = defaultdict(list)
    for one in family():
        samples[one.op].append(one)
    rng = random.Random(fresh_seed)
    wrong = []
    for operator, known in samples.items():
        sample = rng.choice(known[:SAMPLES])
        found = contradictions(OPERATORS[operator], sample.inputs, **sample.attrs)
        wrong += [f"{sample}: {w}" for w in found if (w.operator, w.trait) not in CONDITIONAL]
    assert wrong == []


BOTH = {"transpose_a": True, "transpose_b": True}
_ROWS = [[0.5, -1.5], [2.0, 0.25]]
_PRODUCT = Product(0, 1, 1, 1, (0,), 1)


def defined(monkeypatch: pytest.MonkeyPatch, like: str, name: str, traits: Traits) -> Operator:
    """Another operator with the definition of one, and with traits of its own."""
    known = OPERATORS[like]
    operator = Operator(name, known.fn, known.kind, known.keep, types=known.types, lower=known.lower).declares(traits)
    monkeypatch.setitem(OPERATORS, name, operator)
    return operator


class TestOfOperatorsFromElsewhere:
    """What is wrong is told with the operator, the trait and an example."""

    def test_a_declared_trait_that_the_body_contradicts_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        operator = Operator("totals", _totals, "irregular", types=lambda x: (x,), lower=_totals)
        monkeypatch.setitem(OPERATORS, "totals", operator)
        operator.declares(Traits(moves=FIRST, chooses=FIRST, is_exact=True))
        x = np.array([1.5, -2.25, 0.1, 0.7, 1.1, -0.3], np.float32)
        told = [str(c) for c in contradictions(operator, [x])]
        assert told[0] == (
            "totals does not have the trait 'moves': at (0,) of changed elements it gives 2.25, "
            "the changed result is 15.75"
        )
        assert [t.partition(":")[0] for t in told[1:]] == [
            "totals does not have the trait 'chooses'",
            "totals does not have the trait 'is_exact'",
        ]

    @pytest.mark.parametrize(
        ("name", "inputs", "wrong", "trait"),
        [
            ("floor", [[0.3, 1.7]], Traits(continuous=FIRST), "continuous"),
            ("exp", [[0.3, 1.7]], Traits(linear=FIRST), "linear"),
            ("log", [[0.3, 1.7]], Traits(is_finite=True), "is_finite"),
            ("max", [[0.3, 1.7], [1.0, 1.0]], Traits(moves=FIRST), "moves"),
            ("sub", [[0.3, 1.7], [1.0, 1.0]], Traits(commutative=True), "commutative"),
            ("sub", [[0.3, 1.7], [1.0, 1.0]], Traits(right_identity=1), "right_identity"),
            ("neg", [[0.3, -1.7]], Traits(chooses=FIRST), "chooses"),
            ("matmul", [_ROWS, _ROWS], Traits(product=Product(0, 1, 0, 0, (1,), 1)), "product"),
            ("matmul", [_ROWS, _ROWS], Traits(product=Product(0, 1, 1, 1, (1,), 0)), "product"),
            ("matmul", [_ROWS, _ROWS], Traits(product=replace(_PRODUCT, transposed=(True, False))), "product"),
            ("mul", [_ROWS, _ROWS], Traits(product=_PRODUCT), "product"),
        ],
    )
    def test_each_check_finds_what_does_not_have_the_trait(
        self, name: str, inputs: list[Any], wrong: Traits, trait: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        operator = defined(monkeypatch, name, f"like_{name}", wrong)
        found = [c.trait for c in contradictions(operator, [np.array(x, np.float32) for x in inputs])]
        assert trait in found

    def test_a_clock_is_not_pure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = defined(monkeypatch, "fresh_key", "clock", Traits())
        assert [c.trait for c in contradictions(clock, [])] == ["is_pure"]
        assert not list(contradictions(OPERATORS["fresh_key"], []))

    def test_what_it_reports_of_the_operands_themselves_is_an_error(self) -> None:
        with pytest.raises(TilewrightError, match="division by zero"):
            list(contradictions(OPERATORS["div"], [np.array([1, 2]), np.array([1, 0])]))


def _totals(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """Three times each element, and the one before it."""
    (x,), (y,) = inputs, outputs
    with t.loop(x.shape[0]) as i:
        y.store((i,), x[i] * 3 + x.load((i - 1,), (ge(i, 1),)))


class TestWhatIsDerived:
    """Of definitions, without a word about it."""

    def test_elementwise_operators_are_the_scalar_operations(self) -> None:
        found = {name for name in OPERATORS for op in _applications(name) if op.name == name and is_elementwise(op)}
        alone = {"copy", "concat"}  # of one operand, both are that operand
        assert found == (OPERATORS.keys() & COMPUTING) | alone

    def test_what_moves_elements(self) -> None:
        moving = {n for n in OPERATORS for op in _applications(n) if op.name == n and traits_of(op).moves}
        assert moving >= {
            "transpose", "reshape", "expand", "slice", "pad", "concat", "reverse", "copy", "gather", "gather_elements",
            "gather_nd", "triangle", "stretch", "block_channels", "unblock_channels", "scatter_nd", "joined_rows",
        }  # fmt: skip
        assert moving.isdisjoint({"add", "max", "max_pool", "reduce_max", "matmul", "cast", "select", "topk"})

    def test_fills_that_never_show_are_none(self) -> None:
        def joined(x: Value, y: Value) -> Value:
            return concat(x, y, x, axis=0)

        own = traits_of(_op(joined, (2, 3), (4, 3)))
        assert (own.moves, own.fills) == ({0, 1, 2}, ())
        assert traits_of(_op(lambda x: pad(x, before=(1,), after=(0,), value=7.0), (3,))).fills == (7.0,)
        assert traits_of(_op(lambda x: pad(x, before=(1,), after=(0,), mode="edge"), (3,))).fills == ()

    def test_a_product_is_linear_in_both_operands(self) -> None:
        own = traits_of(_op(lambda x, y: matmul(x, y), (2, 3), (3, 4)))
        assert own.linear == {0, 1}
        assert own.sums_products

    @pytest.mark.parametrize(
        ("shapes", "attrs", "wanted"),
        [
            (((2, 3), (3, 4)), {}, Product(0, 1, 1, 1, (0,), 1, transposed=(False, False))),
            (((3, 2), (4, 3)), BOTH, Product(0, 1, 1, 0, (1,), 0, transposed=(True, True))),
            (((5, 2, 3), (3, 1)), {}, Product(0, 1, 2, 1, (0,), 2, transposed=(False, False))),
            (((1, 2, 3), (5, 3, 4)), {}, Product(0, 1, 2, 2, (1,), 2, transposed=(False, False))),
        ],
    )
    def test_the_axes_of_a_product_of_matrices(
        self, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, bool], wanted: Product
    ) -> None:
        assert traits_of(_op(lambda x, y: matmul(x, y, **attrs), *shapes)).product == wanted

    def test_the_axes_of_a_convolution(self) -> None:
        wanted = Product(0, 1, 1, 0, (1, 2, 3), 1, (2, 3))
        for groups in (1, 2, 4):
            own = traits_of(_op(lambda x, w, g=groups: conv(x, w, groups=g), (2, 4, 5, 5), (8, 4 // groups, 3, 1)))
            assert own.product == wanted
            assert wanted.slides
        turned = traits_of(_op(lambda x, w: conv_transpose(x, w, groups=2), (2, 4, 5, 5), (4, 3, 3, 3)))
        assert turned.product == Product(0, 1, 1, 1, (0, 2, 3), 1, (2, 3))

    def test_a_composite_has_the_product_of_its_part(self) -> None:
        def shifted(x: Value, w: Value) -> Value:
            return matmul(add(x, 1.0), w)

        found = {}
        for name, fn in (("plainly", lambda x, w: matmul(x, w)), ("shifted", shifted), ("turned", _turned)):
            operator = Operator(name, fn, "composite", keep=True)
            found[name] = traits(operator, [tensor(dt.f32, (3, 3))] * 2, {}).product
        assert found["plainly"] == Product(0, 1, 1, 1, (0,), 1, transposed=(False, False))
        assert found["shifted"] == replace(found["plainly"], is_plain=False)
        assert found["turned"] is None

    def test_numbers_that_conversions_change_are_no_operands_of_a_product(self) -> None:
        def truncated(x: Array, w: Array) -> Compute:
            def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
                return x[(i[0], r[0])].cast(dt.i32) * w[(r[0], i[1])].cast(dt.i32)

            return compute([x, w], (x.shape[0], w.shape[1]), body, reduce=x.shape[1:], combine="add", dtype=dt.i32)

        operator = Operator("truncated", truncated, "primitive")
        types = [[tensor(d, (3, 3))] * 2 for d in (dt.f32, dt.i8)]
        assert [traits(operator, t, {}).product is None for t in types] == [True, False]

    def test_a_choice_by_data_steps(self) -> None:
        own = traits_of(_op(lambda x, y: select(gt(x, y), x, y), (3,), (3,)))
        assert (own.continuous, own.moves) == ({1, 2}, frozenset())


def _turned(x: Value, w: Value) -> Value:
    return matmul(transpose(x, perm=(1, 0)), w)


def _applications(name: str) -> Iterator[Op]:
    """Ops of an operator, of its first samples."""
    for sample in _SAMPLES.get(name, ())[:3]:
        block = Block([tensor(dt.from_numpy(x.dtype), x.shape) for x in sample.inputs])
        with Builder(block, Module()):
            OPERATORS[name](*block.args, **sample.attrs)
        yield from block.ops


def _op(fn: Callable[..., Value], *shapes: tuple[int, ...]) -> Op:
    """The last op that a function writes."""
    block = Block([tensor(dt.f32, shape) for shape in shapes])
    with Builder(block, Module()):
        fn(*block.args)
    return block.ops[-1]


_SAMPLES: dict[str, list[Sample]] = {}
for _family in FAMILIES:
    for _sample in _family():
        _SAMPLES.setdefault(_sample.op, []).append(_sample)
