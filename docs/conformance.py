"""Writes docs/conformance.md from docs/conformance.json, the results of the conformance cases of the onnx package.

These `python -m tests.conformance` writes. Run by `make docs`; a test compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

PAGE = Path(__file__).parent / "conformance.md"
RESULTS = Path(__file__).parent / "conformance.json"

_OTHER_NUMBERS = (
    "the expected numbers are those of one generator, which the standard does not prescribe; ours are Philox's, with "
    "the asked distribution"
)
DIFFERENCES: Mapping[str, str] = MappingProxyType(
    {
        "Bernoulli": _OTHER_NUMBERS,
        "Dropout": _OTHER_NUMBERS,
        "DFT": "where the exact value is 0, 0 is given and 2e-7 expected, beyond the absolute tolerance (1e-7)",
        "Attention": (
            "float16: one element is rounded to the neighbour of the expected number; ours is closer to the result in "
            "float64 (86 % of ours are that, correctly rounded, and 79 % of the expected)"
        ),
    }
)
"""Why results differ from those expected, by operator: each was looked into."""

INTRODUCTION = """\
# Conformance

Made by `make docs` from `docs/conformance.json`, which `python -m tests.conformance` writes; do not edit.

The onnx package (here {version}) brings cases for its operators: a model, inputs, and the outputs that are expected.
Each is compiled with nothing known of its inputs but what the model declares, run, and compared: dtypes and shapes must
be the same, elements must agree as closely as the case asks (rtol 1e-3 and atol 1e-7, mostly). *Refused* is what the
compiler says it does not do, *differs* a result that is not the expected one.
"""


@dataclass(frozen=True)
class Other:
    """A case that does not pass: the operator it is about, "refused", "differs" or "fails", and why."""

    operator: str
    status: str
    reason: str


@dataclass(frozen=True)
class Results:
    """`counts`: the cases of each operator, "" for those of several; `others`: those that do not pass, by name."""

    version: str
    counts: Mapping[str, int]
    others: Mapping[str, Other]


def as_json(results: Results) -> str:
    """The text of the file, in an order that changes little."""
    content = {
        "onnx": results.version,
        "counts": dict(sorted(results.counts.items())),
        "others": {name: asdict(other) for name, other in sorted(results.others.items())},
    }
    return json.dumps(content, indent=1) + "\n"


def load() -> Results:
    content = json.loads(RESULTS.read_text())
    others = {name: Other(**other) for name, other in content["others"].items()}
    return Results(content["onnx"], content["counts"], others)


def page(results: Results) -> str:
    """The text of the page: a row for each operator, and one for all."""
    by_operator: dict[str, list[Other]] = {}
    for other in results.others.values():
        by_operator.setdefault(other.operator, []).append(other)
    counts = sorted(results.counts.items())
    rows = [row(name or "*several*", count, by_operator.get(name, [])) for name, count in counts]
    total = sum(results.counts.values())
    lines = [
        INTRODUCTION.format(version=results.version),
        f"Of {total} cases {total - len(results.others)} pass.\n",
        "| operator | cases | pass | refused | differ | why |",
        "|---|---:|---:|---:|---:|---|",
        row("**all**", total, list(results.others.values()), why=False),
        *rows,
    ]
    return "\n".join(lines) + "\n"


def row(name: str, cases: int, others: list[Other], why: bool = True) -> str:
    count = {status: sum(o.status == status for o in others) for status in ("refused", "differs")}
    reasons = dict.fromkeys(DIFFERENCES[o.operator] if o.status == "differs" else o.reason for o in others)
    cells = [name, cases, cases - len(others), *count.values(), "; ".join(reasons) if why else ""]
    return f"| {' | '.join(map(str, cells))} |".replace("| 0 |", "| |").replace("| 0 |", "| |")


if __name__ == "__main__":
    PAGE.write_text(page(load()))
