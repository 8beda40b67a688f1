"""Writes docs/rules.md from what is stated of rules. Run by `make docs`; a test compares."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

from tests.proofs.registered import ROOMS, RULES
from tests.proofs.statement import EXACTNESS, Statement
from tests.proofs.statements import SIZE_STATEMENTS, STATEMENTS, TESTED_ONLY

MOST_CASES = 16
"""Cases of a rule that are listed."""

PAGE = Path(__file__).parent / "rules.md"

INTRODUCTION = """\
# Rules, and what is proved of them

Made by `make docs` from the statements in `tests/proofs`; do not edit.

A rule replaces an operator by others that compute the same. What is *proved* of it: for each of its cases a program is
written whose sizes are unknowns, the rule itself is applied to it, and [z3](https://github.com/Z3Prover/z3) is asked
for sizes, a position and data for which both programs differ, both read off the operators' definitions. That there are
none is the proof; it holds for all sizes, and for the shapes of the cases named (ranks, permutations, lengths of
windows). A rule that refuses its own case, or a wrong one, fails a test with the sizes, the position and the data.

How exactly both agree:

- *bits*: scalar operations are unknown functions, so that the same operations are done on the same elements, whatever
  their dtype;
- *bits of floats*: of all numbers of a small format of IEEE 754 (4 bits of exponent, 5 of mantissa), NaN and
  infinities among them, with each operation rounded; *but for the sign of zero* where that is said;
- *bits of integers*: of all integers of 8 bits, which wrap;
- *real*: as real numbers. Floats may be rounded in another way; sums of integers are taken not to overflow.

*Tested only*: by examples, in `tests/graph`; the reason why there is no proof is given.

Proofs run with the tests where z3 is installed (`pip install '.[proofs]'`).
"""

SIZES = """\
## Symbolic integers

Sizes, positions and offsets are expressions of integers in canonical form (`tilewright/ir/symbolic`). Of each
identity that brings it about examples are proved for all integers within the bounds of their variables: x and y are
any integers, n and m sizes, d a divisor of 1 or more, i one of 0 to 3, p and q conditions. Beside these, expressions
are drawn at random, and z3 finds no numbers for which their forms have other values.

| identity | gives |
|---|---|
"""


HEAD = "| rule | proved | cases, or why there is no proof |\n|---|---|---|"


def page() -> str:
    """The text of the page."""
    proved = {s.rule for s in STATEMENTS}
    total = len(ROOMS)
    parts = [
        INTRODUCTION,
        f"Of {total} rules {len(proved)} are proved ({100 * len(proved) // total} %), the others tested only.\n",
    ]
    for room in sorted(set(ROOMS.values())):
        parts.append(f"## {room.removeprefix('graph.')}\n\n{HEAD}")
        names = [name for name, own in ROOMS.items() if own == room]
        parts += [row(name) for name in names]
        parts.append("")
    found: dict[str, list[str]] = {}
    for statement in SIZE_STATEMENTS:
        found.setdefault(statement.rule, []).append(f"`{statement.becomes}`")
    rows = "\n".join(f"| {rule} | {', '.join(dict.fromkeys(forms))} |" for rule, forms in found.items())
    return "\n".join([*parts, SIZES + rows + "\n"])


def row(name: str) -> str:
    """The line of a rule in its table."""
    cases = [s for s in STATEMENTS if s.rule == name]
    title = f"`{name}`"
    if name in RULES and (doc := inspect.getdoc(RULES[name].fn)) and not doc.startswith("partial("):
        title += f": {' '.join(doc.split())}".replace("|", "\\|")
    if not cases:
        return f"| {title} | tested only | {TESTED_ONLY[name]} |"
    named = list(dict.fromkeys(map(_case, cases)))
    more = [f"and {len(named) - MOST_CASES} more"] if len(named) > MOST_CASES else []
    return f"| {title} | {exactness(cases)} | {'; '.join([*named[:MOST_CASES], *more])} |"


def _case(statement: Statement) -> str:
    conditions = "".join(
        f", operand {g.operand} {g.relation} {g.number:g}".replace("!= 0", "is not 0") for g in statement.given
    )
    return f"{statement.case}{conditions}"


def exactness(cases: Sequence[Statement]) -> str:
    """How exactly a rule's cases are proved, the most exact first."""
    order = list(EXACTNESS)
    found = sorted({(order.index(s.arithmetic), s.one_zero) for s in cases})
    return ", ".join(
        dict.fromkeys(EXACTNESS[order[k]] + (" but for the sign of zero" if one else "") for k, one in found)
    )


if __name__ == "__main__":
    PAGE.write_text(page())
