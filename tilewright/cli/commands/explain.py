"""`tilewright explain`: how a model is computed, what the compiler did and did not do to it, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.tree import Tree

from tilewright.accounts.explanation import CONTROL_FLOW, STAYS, explain_calls, explain_flow, explanations
from tilewright.cli.artifacts import open_artifact
from tilewright.cli.explained import flow_tree, kernel_tree, missed_tree
from tilewright.cli.layers import certificate_beside, layer_trees
from tilewright.cli.models import compile_fields, compile_options, is_artefact, model_argument
from tilewright.cli.output import console as output_console
from tilewright.cli.output import json_option, print_json
from tilewright.options import Options
from tilewright.runtime.artifact import sizes_text
from tilewright.runtime.errors import Remark, short_name
from tilewright.runtime.report.records import IntegerMeaning
from tilewright.runtime.storage.records import plain
from tilewright.session import Session
from tilewright.target.hardware import measured_hertz
from tilewright.target.target import Target

HELP = """Say in which types the layers of MODEL (of a known format, or compiled) are computed, what was not done to it,
and why, grouped by stage and reason.

\b
Types of layers are those of products, such as `u8 x i8 in i32 by vpdpbusd`: what the factors are, what they are added
up in, and the instruction. A model that `tilewright quantize` made also says what each layer costs and gains, by its
certificate. Single layers are listed where some are quantised, and with --all.

With WHAT, the name of a node, of a module (a path such as encoder/layer.0), or of a kernel (k3), it answers why that is
computed as it is: of every value between operators why it goes through memory or does not, what that costs and what
would change it, of every loop why it is or is not shared by threads and in vectors, and which algorithm, types, tiles
and layouts there are. Of a branch or loop of the model it says why it stays one, or what it has become, and which
kernels its ways have.

\b
Examples:
  tilewright explain model.onnx
  tilewright explain model.tw --all
  tilewright explain model.onnx k3
  tilewright explain model.onnx /layer1/layer1.0/conv2/Conv
"""

SHOWN = ("failed", "warning", "missed")
REASONS, SUBJECTS = 5, 3
"""Reasons of a stage why something was not done, and of what each was said, that are listed without --all."""

_PREFIXES = {"missed": "not done: ", "failed": "failed: ", "warning": "warning: "}


@click.command("explain", help=HELP, short_help="Say how layers are computed, what was not done, and why.")
@model_argument
@click.argument("what", required=False)
@click.option("--all", "everything", is_flag=True, help="Also what was done, every layer, and every loop of a kernel.")
@json_option
@compile_options
def command(model: Path, what: str | None, everything: bool, as_json: bool, **options: Any) -> None:
    fields = compile_fields(**options)
    timed = not is_artefact(model) and what is not None and _can_be_timed(fields)
    artifact = open_artifact(model, **({"profile": True} if timed else {}), **fields)
    report = artifact.summary()
    console = output_console()
    if what is not None:
        found, flow = explain_calls(report, what), explain_flow(report, what)
        if as_json:
            print_json({"kernels": [plain(each) for each in found], "flow": [plain(each) for each in flow]})
            return
        for of_node in flow:
            console.print(flow_tree(of_node, measured_hertz()))
        for each in found:
            console.print(kernel_tree(each, measured_hertz(), everything))
        return
    if as_json:
        print_json({**report.as_dict(), "explanations": [plain(each) for each in explanations(report)]})
        return
    console.print(f"{report.nodes} operators in {report.kernels} kernels")
    for variant in report.variants:
        console.print(f"{variant.kernels} kernels of a variant for {sizes_text(variant.sizes)}", markup=False)
    if report.broadcasting is not None:
        text = f"{report.broadcasting.kernels} kernels of the program for dims that are 1 where others are not"
        console.print(text, markup=False)
    if artifact.assumed:
        assumed = Tree("[bold]assumed of the dims, and checked when the model is called")
        for condition in artifact.assumed:
            assumed.add(escape(condition))
        console.print(assumed)
    console.print(f"numerics are {report.numerics}")
    for line in integers(report.integers):
        console.print(line, markup=False)
    for tree in layer_trees(report, certificate_beside(model, artifact), everything):
        console.print(tree)
    if (costly := missed_tree(report, measured_hertz())) is not None:
        console.print(costly)
    told = (
        Remark(CONTROL_FLOW, f"{flow.operator} '{short_name(flow.node)}'", flow.reason,
               "missed" if flow.outcome in STAYS else "applied")
        for flow in report.flow
    )
    for tree in trees((*told, *report.remarks), everything):
        console.print(tree)


def _can_be_timed(fields: Mapping[str, Any]) -> bool:
    """Whether the code can have timers, with which reports tell of loops."""
    machine = Session().machine(Options.of(None, target=fields["target"]))
    return isinstance(machine, Target) and machine.arch == "x86_64"


def integers(tensors: Iterable[IntegerMeaning]) -> list[str]:
    """What the integers that go in and out of a program without floats stand for."""
    return [f"{t.tensor} {t.name}: {t.dtype}, (integer - {t.zero_point}) * {t.scale:.9g}" for t in tensors]


def trees(remarks: Iterable[Remark], everything: bool) -> list[Tree]:
    """A tree for each stage: what failed, then reasons, the most frequent first, and what they were said of."""
    stages: dict[str, dict[tuple[str, str], Counter[str]]] = {}
    for remark in remarks:
        if everything or remark.kind in SHOWN:
            reasons = stages.setdefault(remark.stage, {})
            reasons.setdefault((remark.kind, remark.message), Counter())[remark.subject] += 1
    return [_tree(stage, reasons, everything) for stage, reasons in stages.items()]


def _tree(stage: str, reasons: Mapping[tuple[str, str], Counter[str]], everything: bool) -> Tree:
    tree = Tree(f"[bold]{escape(stage)}")
    ordered = sorted(reasons.items(), key=lambda item: (item[0][0] != "failed", -item[1].total()))
    missed = [item for item in ordered if item[0][0] == "missed"]
    left = [] if everything else missed[REASONS:]
    for (kind, message), subjects in (item for item in ordered if item not in left):
        branch = tree.add(escape(_PREFIXES.get(kind, "") + message))
        of_all = subjects.most_common()
        for subject, count in of_all if everything else of_all[:SUBJECTS]:
            branch.add(f"[dim]{escape(subject)}{f' ({count} times)' if count > 1 else ''}")
        if not everything and len(of_all) > SUBJECTS:
            branch.add(f"[dim]and {len(of_all) - SUBJECTS} more (--all lists them)")
    if left:
        tree.add(f"[dim]and {len(left)} more reason{'s' if left[1:] else ''} (--all lists them)")
    return tree
