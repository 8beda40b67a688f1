"""Every load and store of every operator is within its buffer: proved, or a condition of the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.graph.programs import program
from tests.ops.samples import FAMILIES
from tests.ops.sampling import Sample
from tilewright.graph.accesses import Walk
from tilewright.graph.assumptions import assumptions
from tilewright.graph.bounds import DimFacts, unproved
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op
from tilewright.ir.diag import TilewrightError
from tilewright.ir.sym import Sym, eq, ge, le, sym, var
from tilewright.ir.types import TensorType, buffer
from tilewright.ops import contract, image, index, view
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.scalar_builder import ScalarBuilder

A, B, K, N = (var(name, 0) for name in "abkn")

BY_DATA = {
    "determinant": "rows are exchanged with the one that was found",
    "gru": "steps counted from the ends of entries",
    "inverse": "rows are exchanged with the one that was found",
    "kept_boxes": "entries that are sorted",
    "lstm": "steps counted from the ends of entries",
    "lu_factor": "rows are exchanged with the one that was found",
    "max_roi_pool": "cells of regions, limited as floats",
    "orthogonal_columns": "ranks, which are counted",
    "pad": "of two positions that mirror each other the lesser is taken",
    "positions": "places counted on from where a row begins, which is limited",
    "rnn": "steps counted from the ends of entries",
    "roi_align": "points of regions, limited as floats",
    "searchsorted": "halves of what is left",
    "symmetric_eigen": "ranks, which are counted",
    "topk": "entries of a heap, and those that are sorted",
    "tree_ensemble": "nodes of the model's own tables",
}
"""Operators with positions that only data or arithmetic beyond what is proved limit, and what these are. Each has
samples with odd data, and the fuzzer of shapes tries them."""


def is_by_data(op: Op) -> bool:
    """Whether it is such an operator, or a kernel from outside that computes one."""
    return op.attrs.get("of", op.name) in BY_DATA


def variants(family: Callable[[], Iterator[Sample]]) -> Iterator[Sample]:
    """One sample for each form of an operator."""
    seen = set()
    for sample in family():
        key = (sample.op, str(sample.attrs), tuple(np.ndim(a) for a in sample.inputs))
        if key not in seen:
            seen.add(key)
            yield sample


def with_all_sizes(sample: Sample) -> Module:
    """The operator with a name for each dim, but for those that must be known."""
    shapes: list[list[int | Sym]] = [list(np.shape(a)) for a in sample.inputs]

    def made() -> Module:
        types = [
            TensorType(dt.from_numpy(a.dtype), tuple(map(sym, shape)))
            for a, shape in zip(sample.inputs, shapes, strict=True)
        ]
        return program(lambda *args: OPERATORS[sample.op](*args, **sample.attrs), *types)

    module = made()
    for k, shape in enumerate(shapes):
        for axis, size in enumerate(shape):
            shape[axis] = var(f"x{k}_{axis}", 0)
            try:
                module = made()
            except (TilewrightError, ValueError, AssertionError):
                shape[axis] = size
    return module


PARTS = {
    "householder_product": "what `householder_factor` gives",
    "permutation": "what `lu_factor` gives",
    "winograd_input": "conditions of the loads hold for images of one element, too, which is not proved of numbers",
}
"""Operators that only operators of ours make, from results that fit, and whose operands these are."""


def with_one_wrong_size(sample: Sample) -> Iterator[list[TensorType]]:
    """The types of its operands, with one dim that is another number."""
    for k, operand in enumerate(sample.inputs):
        for axis, size in enumerate(np.shape(operand)):
            for other in sorted({0, 1, abs(size - 1), size + 1, 2 * size} - {size}):
                shapes = [list(np.shape(a)) for a in sample.inputs]
                shapes[k][axis] = other
                yield [
                    TensorType(dt.from_numpy(a.dtype), tuple(map(sym, shape)))
                    for a, shape in zip(sample.inputs, shapes, strict=True)
                ]


@pytest.mark.sweep(6)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_known_sizes_that_lead_beyond_an_operand_are_refused(family: Callable[[], Iterator[Sample]]) -> None:
    for sample in variants(family):
        if OPERATORS[sample.op].kind == "composite" or sample.op in PARTS:
            continue
        for types in with_one_wrong_size(sample):
            try:
                module = program(lambda *args, s=sample: OPERATORS[s.op](*args, **s.attrs), *types)
            except (TilewrightError, ValueError, AssertionError):
                continue
            op = next(o for o in module.main.body.ops if o.name == sample.op)
            if any(d == 0 for v in op.results for d in v.tensor.shape):
                continue
            for bound in unproved(op, types, DimFacts()):
                assert is_by_data(op) or bound.holds is None or bound.holds != 0, f"{sample.op} of {types}"


@pytest.mark.sweep(6)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_all_accesses_are_within(family: Callable[[], Iterator[Sample]]) -> None:
    for sample in variants(family):
        module = with_all_sizes(sample)
        facts = DimFacts()
        for made in assumptions(module):
            facts.learn(made.holds)
        for op in module.main.body.ops:
            if op.name not in OPERATORS or OPERATORS[op.name].kind == "composite" or op.name == "reshape":
                continue
            types = [v.tensor for v in op.operands]
            answered = is_by_data(op) or op.attrs.get("in_range")  # who says `in_range` has limited the positions
            left = [b for b in unproved(op, types, facts) if b.holds is not None or not answered]
            assert left == [], f"{sample}: {op.name} of {types}"


@pytest.mark.parametrize(
    ("body", "shapes", "wanted"),
    [
        (lambda x, w: contract.conv(x, w, groups=2), ((A, K, 9), (4, 2, 3)), ["k == 4"]),
        (lambda x, w: contract.conv(x, w, groups=2), ((A, K, N), (B, 2, 3)), ["k == 4", "-(b % 2) + 1", "n >= 3"]),
        (lambda x, w: contract.conv_transpose(x, w, groups=3), ((A, K, 9), (6, 2, 3)), ["k == 6"]),
        (lambda x: view.slice_(x, starts=(2,), sizes=(3,)), ((A,),), ["a >= 5"]),
        (lambda x: view.slice_(x, starts=(2,), sizes=(B,)), ((A,),), ["b < 1 or b + 1 < a"]),
        (lambda x: view.slice_(x, starts=(A - 1,), sizes=(3,), steps=(-1,)), ((A,),), ["a >= 3"]),
        (lambda x: view.pad(x, before=(1,), after=(0,), mode="edge"), ((A,),), ["a >= 1"]),
        (lambda x: view.pad(x, before=(1,), after=(0,), mode="reflect"), ((A,),), ["a >= 1"]),
        (lambda x: view.pad(x, before=(1,), after=(-1,)), ((A,),), []),
        (lambda x: view.split(x, sizes=(1, 2), axis=0)[1], ((A,),), ["a >= 3"]),
        (lambda x: image.repeat_elements(x, axis=0, count=3), ((A,),), []),
    ],
)
def test_bounds_of_operators(body, shapes, wanted: list[str]) -> None:
    assert [str(made.holds) for made in assumptions(program(body, *shapes))] == wanted


def test_what_follows_is_not_checked_again() -> None:
    def body(x, y):
        first = view.slice_(x, starts=(0,), sizes=(8,))
        second = view.slice_(x, starts=(2,), sizes=(3,))
        return contract.matmul(view.reshape(first, shape=(1, 8)), y), second

    module = program(body, (A,), (B, K))
    assert [str(made.holds) for made in assumptions(module)] == ["a >= 8", "b == 8"]


def test_positions_that_are_data_are_limited() -> None:
    module = program(
        lambda x, i: index.gather(x, i, axis=0), TensorType(dt.f32, (A, K)), TensorType(dt.i64, (N,))
    )
    assert assumptions(module) == ()


def test_bounds_that_data_are_declared_with_prove_nothing() -> None:
    block = Block([buffer(dt.i64, (N,)), buffer(dt.f32, (4,))])
    t = ScalarBuilder(Builder(block))
    ends, out = map(t.array, block.args)
    for end in (ends[0], t.apply("max", t.apply("min", ends[0], 3), 0)):
        out.store((t.bind(end, "at", 0, 3),), t.const(1, dt.f32))
    anything, limited = (a for a in Walk({}).accesses(block) if a.op.name == "store")
    assert anything.index.bounds == (None, None) and anything.index not in anything.ranges
    assert limited.ranges[limited.index] == (0, 3)


def test_facts_are_used_in_terms_of_each_other() -> None:
    facts = DimFacts()
    for condition in (eq(A, 2 * K), ge(K, 3), le(B, 9), eq(N % 4, 0)):
        facts.learn(condition)
    assert facts.hold(ge(A, 6)) and facts.hold(eq(N % 2, 0)) and facts.hold(le(B, A + 3))
    assert not facts.hold(ge(A, 7)) and not facts.hold(le(B, 8))
