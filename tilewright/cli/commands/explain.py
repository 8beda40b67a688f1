"""`tilewright explain`: what the compiler did and did not do to a model, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from tilewright.cli.artifacts import open_artifact
from tilewright.cli.models import compile_fields, compile_options, model_argument

HELP = """Say what was not done to MODEL (of a known format, or compiled), and why, grouped by stage and reason.

\b
Examples:
  tilewright explain model.onnx
  tilewright explain model.tw --all
"""

REFUSED = "not done: "
_REMARK = re.compile(r"\[(?P<stage>[^]]*)\] (?P<subject>.*?): (?P<rest>(?:not done: )?.*)", re.DOTALL)


@click.command("explain", help=HELP, short_help="Say what was not done, and why.")
@model_argument
@click.option("--all", "everything", is_flag=True, help="Also what was done.")
@compile_options
def command(model: Path, everything: bool, **options: Any) -> None:
    report = open_artifact(model, **compile_fields(**options)).summary().data
    console = Console(highlight=False)
    console.print(f"{report.get('nodes', '?')} operators in {report.get('kernels', '?')} kernels")
    if "numerics" in report:  # files of earlier versions do not say
        console.print(f"numerics are {report['numerics']}")
    for tree in trees(report.get("remarks", ()), everything):
        console.print(tree)


def trees(remarks: Iterable[str], everything: bool) -> list[Tree]:
    """A tree for each stage: reasons, the most frequent first, and what they were said of."""
    stages: dict[str, dict[str, Counter[str]]] = {}
    for remark in remarks:
        found = _REMARK.fullmatch(remark)
        if found is None:
            continue
        stage, subject, rest = found.group("stage", "subject", "rest")
        if everything or rest.startswith(REFUSED):
            stages.setdefault(stage, {}).setdefault(rest, Counter())[subject] += 1
    return [_tree(stage, reasons) for stage, reasons in stages.items()]


def _tree(stage: str, reasons: dict[str, Counter[str]]) -> Tree:
    tree = Tree(f"[bold]{escape(stage)}")
    for reason, subjects in sorted(reasons.items(), key=lambda item: -item[1].total()):
        branch = tree.add(escape(reason))
        for subject, count in subjects.most_common():
            branch.add(f"[dim]{escape(subject)}{f' ({count} times)' if count > 1 else ''}")
    return tree
