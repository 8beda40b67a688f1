"""What symbolic integers say of expressions that are drawn holds for all numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("z3", reason="proofs need z3: pip install '.[proofs]'")

import z3

from tests.proofs.drawn import VARIABLES, drawn
from tests.proofs.naive import compare_sizes
from tests.proofs.of_sizes import N, X, Y
from tests.proofs.sizes import Sizes
from tilewright.ir import sym as sizes
from tilewright.ir.sym import Ranges, Sym, const

RANGES: tuple[Ranges, ...] = (
    {X: (const(0), N - 1)},
    {X: (const(0), N - 1), Y: (X, X + 5)},
)
MILLISECONDS = 300


@pytest.mark.sweep(2)
@pytest.mark.parametrize("part", range(40))
def test_the_canonical_form_has_the_value_of_the_expression(part: int) -> None:
    for seed in range(40 * part, 40 * part + 40):
        rng = random.Random(seed)
        expression = drawn(rng, rng.randint(1, 3))
        form = sizes.sym(expression(sizes, *VARIABLES))
        verdict = compare_sizes(expression, VARIABLES, form, {}, MILLISECONDS)
        assert verdict.outcome != "refuted", (seed, str(form), verdict)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("part", range(40))
def test_what_is_said_within_ranges_holds(part: int) -> None:
    claims = 0
    for seed in range(30 * part, 30 * part + 30):
        rng = random.Random(seed)
        ranges = rng.choice(RANGES)
        form = sizes.sym(drawn(rng, rng.randint(1, 3))(sizes, *VARIABLES))
        for claim, proposition, terms in _said(form, ranges):
            claims += 1
            solver = z3.Solver()
            solver.set("timeout", MILLISECONDS)
            for v, (low, high) in ranges.items():
                solver.add(terms.term(low, {}) <= terms.variable(v), terms.variable(v) <= terms.term(high, {}))
            solver.add(*terms.facts, z3.Not(proposition))
            assert solver.check() != z3.sat, (seed, str(form), claim, solver.model())
    assert claims


def _said(form: Sym, ranges: Ranges) -> Iterator[tuple[str, Any, Sizes]]:
    """What is claimed of an expression within ranges, and the claim as a proposition."""
    terms = Sizes()
    value = terms.term(form, {})
    yield "simplify", value == terms.term(sizes.simplify(form, ranges), {}), terms
    for number in (0, 1, 3, -2, 10):
        if sizes.prove_ge0(form + number, ranges):
            yield f"at least {-number}", value >= -number, terms
        if sizes.prove_ge0(number - form, ranges):
            yield f"at most {number}", value <= number, terms
    for name, bound in (("upper", sizes.upper(form, ranges)), ("lower", sizes.lower(form, ranges))):
        if bound is not None:
            term = terms.term(bound, {})
            yield f"{name}: {bound}", value <= term if name == "upper" else value >= term, terms
    low, high = form.bounds
    if low is not None:
        yield f"bound {low}", value >= low, terms
    if high is not None:
        yield f"bound {high}", value <= high, terms
