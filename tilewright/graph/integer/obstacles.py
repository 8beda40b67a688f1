"""What keeps a program from being one of integers, all of it reported at once."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.diag import Problem, UnsupportedError

SHOWN = 50
"""Obstacles that an error lists; it has all of them as data."""

QUANTIZE = "quantise what it reads and gives (QuantizeLinear and DequantizeLinear around it, with known scales)"


class Obstacle(Exception):
    """Why an operator has no form in integers, and what to do."""

    def __init__(self, reason: str, hint: str = QUANTIZE) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def raise_if_any(problems: Sequence[Problem]) -> None:
    """UnsupportedError that lists them."""
    if not problems:
        return
    lines = [f"  {_place(p)}: {p.reason}; {p.hint}" for p in problems[:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"  and {len(problems) - SHOWN} more")
    error = UnsupportedError(
        "the model cannot be computed by integers only:\n" + "\n".join(lines),
        hint="or compile it without integer_only: what is quantised is computed on integers then, too",
    )
    error.problems = tuple(problems)
    raise error


def _place(problem: Problem) -> str:
    return f"{problem.operator} '{problem.node}'" if problem.node else problem.operator
