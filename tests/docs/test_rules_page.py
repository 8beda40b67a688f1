"""The page of rules is that of the statements, and holds every rule that there is."""

from __future__ import annotations

from docs import rules as docs
from tests.proofs.registered import ROOMS, RULES
from tests.proofs.statements import STATEMENTS, TESTED_ONLY

LEAST = 0.6
"""The share of rules that are proved."""


def test_the_page_is_that_of_the_statements() -> None:
    assert docs.page() == docs.PAGE.read_text(), "run `make docs`"


def test_of_every_rule_something_is_stated_or_the_reason_why_not() -> None:
    proved = {s.rule for s in STATEMENTS}
    without = set(ROOMS) - proved - set(TESTED_ONLY)
    assert not without, f"state of {sorted(without)} what they keep in tests/proofs, or in TESTED_ONLY why it is not"
    assert not proved & set(TESTED_ONLY)
    assert proved <= set(RULES)
    assert set(TESTED_ONLY) <= set(ROOMS), "these rules are gone"
    assert len(proved) >= LEAST * len(ROOMS)
