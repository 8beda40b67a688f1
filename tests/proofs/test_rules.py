"""Rules are proved for all sizes: what they make of their statements' programs is equal to these."""

from __future__ import annotations

from itertools import groupby

import pytest

pytest.importorskip("z3", reason="proofs need z3: pip install '.[proofs]'")

from tests.proofs.naive import check_size
from tests.proofs.prover import check
from tests.proofs.registered import RULES
from tests.proofs.statements import SIZE_STATEMENTS, STATEMENTS

BY_RULE = {
    name: list(group) for name, group in groupby(sorted(STATEMENTS, key=lambda s: s.rule), key=lambda s: s.rule)
}


@pytest.mark.parametrize("name", BY_RULE)
def test_a_rule_gives_what_it_replaces(name: str) -> None:
    for statement in BY_RULE[name]:
        if statement.is_quick:
            verdict = check(statement, RULES[name])
            assert verdict.outcome == "proved", (statement.case, verdict)


SLOW = [s for s in STATEMENTS if not s.is_quick]


@pytest.mark.sweep(10)
@pytest.mark.parametrize("number", range(len(SLOW)))
def test_other_cases_of_rules(number: int) -> None:
    statement = SLOW[number]
    verdict = check(statement, RULES[statement.rule])
    assert verdict.outcome == "proved", (statement.rule, statement.case, verdict)


@pytest.mark.parametrize("number", range(len(SIZE_STATEMENTS)), ids=lambda k: f"{k} {SIZE_STATEMENTS[k].rule}")
def test_a_canonical_form_has_the_value_of_the_expression(number: int) -> None:
    statement = SIZE_STATEMENTS[number]
    assert str(statement.canonical()) == statement.becomes
    verdict = check_size(statement)
    assert verdict.outcome == "proved", verdict
