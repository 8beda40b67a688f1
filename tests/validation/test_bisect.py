"""`tilewright diff --bisect` names the rule that makes answers wrong, and writes a program that shows it anywhere."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from tests.models import mlp, written
from tests.validation.planted import PLANTED
from tests.zones.turned_on import findings_are_expected
from tilewright import plugins
from tilewright.cli.app import commands
from tilewright.graph.rewrites import canonicalize
from tilewright.loops.stages import Lowered
from tilewright.options import Options, Request
from tilewright.schedule.sharing import kernels
from tilewright.session import Session
from tilewright.validation.findings import Fault
from tilewright.validation.reproducers import module_of, unpacked
from tilewright.validation.search import bisect as search
from tilewright.validation.search.schedule_steps import CODE, FINISHING, LOWERING, SCHEDULE

PLUGIN = """
from tilewright.graph.rewrites import canonicalize
from tilewright.ir.rewrite import rule
from tilewright.ops import elementwise as ew


@rule("sub")
def differences_are_symmetric(op, b, ctx):
    left, right = op.operands
    return ew.sub(right, left) if not op.result.name.startswith("again") and left.name != "y" else None


canonicalize.ARITHMETIC_RULES = (differences_are_symmetric, *canonicalize.ARITHMETIC_RULES)
"""


def network() -> onnx.ModelProto:
    """exp(tanh(a * b) - y) of 6 rows of 40."""
    nodes = [
        helper.make_node("Mul", ["a", "y"], ["p"]),
        helper.make_node("Tanh", ["p"], ["q"]),
        helper.make_node("Sub", ["q", "y"], ["d"], name="difference"),
        helper.make_node("Exp", ["d"], ["e"]),
    ]
    ins = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [6, 40]) for name in "ay"]
    graph = helper.make_graph(nodes, "g", ins, [helper.make_tensor_value_info("e", TensorProto.FLOAT, [6, 40])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A plugin with a wrong rule, which processes of their own import, too."""
    monkeypatch.setattr(plugins, "_USED_FILES", {})
    monkeypatch.setattr(canonicalize, "ARITHMETIC_RULES", canonicalize.ARITHMETIC_RULES)
    path = tmp_path / "wrong_rules_of_a_test.py"
    path.write_text(PLUGIN)
    yield path
    sys.modules.pop(path.stem, None)


def test_the_rule_is_named_and_shown_by_one_operator(planted: Path, tmp_path: Path) -> None:
    model, folder = written(network(), tmp_path, "net"), tmp_path / "found"
    arguments = ["--plugin", str(planted), "diff", str(model), "--bisect", "-o", str(folder), "--json"]
    told = CliRunner().invoke(commands, arguments)
    assert told.exit_code == 1, told.output
    found = json.loads(told.output)
    assert found["culprit"].startswith("rule 'differences_are_symmetric' of 'canonicalize'")
    assert "difference" in found["subject"] and found["confirmed"], found
    place = Path(found["folder"])
    arrays = unpacked(place / "inputs.npz")
    module = module_of((place / "before.txt").read_text(), arrays)
    assert [op.name for op in module.main.body.ops] == ["sub", "return"]
    assert all(np.prod(a.shape) == 1 for name, a in arrays.items() if name.startswith("input:"))
    assert len(list(place.glob("test_*.py"))) == 1


def test_a_sound_model_has_nothing_to_find(tmp_path: Path) -> None:
    model = written(network(), tmp_path, "net")
    told = CliRunner().invoke(commands, ["diff", str(model), "--bisect", "-o", str(tmp_path / "found")])
    assert told.exit_code == 0, told.output
    assert "no step of the compiler changes what net.onnx means" in told.output
    assert CliRunner().invoke(commands, ["diff", str(model), "--bisect", str(model)]).exit_code == 2


def test_a_compiled_model_is_compared_with_its_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = written(mlp(), tmp_path, "net")
    told = CliRunner().invoke(commands, ["diff", str(model)])
    assert told.exit_code == 0, told.output
    assert "no kernel makes an error beyond the bound of its type" in told.output
    schedule = kernels.schedule_kernel

    def with_wrong_bounds(lowered: Lowered, *rest: Any) -> Lowered:
        found = schedule(lowered, *rest)
        for op in found.func.body.walk():
            if op.name == "max":
                op.name = "min"
        return found

    monkeypatch.setattr(kernels, "schedule_kernel", with_wrong_bounds)
    told = CliRunner().invoke(commands, ["diff", str(model), "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.output)
    assert found["first"]["layer"] == "dense" and found["cause"].startswith("fusion")


def test_the_parts_of_a_model_are_compared_with_their_interpreter(tmp_path: Path) -> None:
    """Boxes are chosen in a part; beyond those that are kept memory stays as it is, which is no error."""
    constants = {"most": np.array([3]), "overlap": np.array([0.5], np.float32), "least": np.array([0.1], np.float32)}
    boxes, scores = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("boxes", [1, 6, 4]), ("scores", [1, 1, 6]))
    )
    graph = helper.make_graph(
        [
            helper.make_node("NonMaxSuppression", ["boxes", "scores", *constants], ["kept"], "nms"),
            helper.make_node("Cast", ["kept"], ["floats"], "cast", to=TensorProto.FLOAT),
            helper.make_node("Exp", ["floats"], ["y"], "exp"),
        ],
        "boxes", [boxes, scores], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["kept", 3])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    model = written(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path, "boxes"
    )
    told = CliRunner().invoke(commands, ["diff", str(model), "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.output)
    assert len(found["layers"]) > 4 and {layer["layer"] for layer in found["layers"]} == {"nms", "copy"}
    assert found["first"] is None and found["outputs"] == {} and all(x["error"] < 1e-6 for x in found["layers"])


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run again: other processes have not what is planted in this one."""
    monkeypatch.setattr(search, "_again", lambda folder: (False, ""))


def found_by_bisection(name: str, folder: Path) -> Fault:
    planted = PLANTED[name]
    request, options = Request.of(planted.module(), None, None), Options(cache=False, threads=2)
    with findings_are_expected():
        fault = search.bisect(request, options, Session(), feeds=planted.feeds, folder=folder).fault
    assert fault is not None and fault.before is not None
    return fault


def operators(fault: Fault) -> list[str]:
    assert fault.before is not None
    return [op.name for op in fault.before.main.body.ops[:-1]]


@pytest.mark.usefixtures("in_this_process")
def test_two_rules_that_are_wrong_only_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In terms of the model's own operators, in which neither shows anything by itself."""
    PLANTED["two rules: negation"].plant(monkeypatch)
    fault = found_by_bisection("two rules: negation", tmp_path)
    assert (fault.rule, fault.together) == ("zero_minus", ("rule 'neg_as_difference' of 'canonicalize'",))
    assert operators(fault) == ["neg"]
    assert "rule 'zero_minus' of 'canonicalize', only together with rule 'neg_as_difference'" in str(fault)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("name", "stage", "step", "left"),
    [
        ("a mask that misses the tail", SCHEDULE, r"step \d+ of \d+, \w+\(\w+, .*lanes=16", ["reduce_sum"]),
        ("wrong index map in a fusion", LOWERING, "$", ["exp", "reduce_sum"]),
        ("a store beyond a buffer", SCHEDULE, f"{FINISHING}: .*is out of 0", ["exp"]),
        ("wrong rounding in a cast", CODE, "$", ["cast"]),
    ],
)
def test_the_stage_and_the_step_of_a_schedule_are_named(
    name: str, stage: str, step: str, left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTED[name].plant(monkeypatch)
    fault = found_by_bisection(name, tmp_path)
    assert (fault.stage, fault.rule) == (stage, "") and re.match(step, fault.step), fault
    assert operators(fault) == left


@pytest.mark.usefixtures("in_this_process")
def test_recorded_calls_show_what_noise_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule takes a limit of 1000 for none, which noise does not reach."""
    PLANTED["a bound that only real inputs reach"].plant(monkeypatch)
    node = helper.make_node("Min", ["x", "most"], ["y"], name="limit")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [6]) for name in "xy"]
    most = numpy_helper.from_array(np.array(1000, np.float32), "most")
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], [most])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model, calls = written(proto, tmp_path, "net"), tmp_path / "calls"
    calls.mkdir()
    np.savez(calls / "1.npz", x=np.arange(6, dtype=np.float32))
    np.savez(calls / "2.npz", x=np.array([1, 2, 3000, 4, 5, 6], np.float32))
    arguments = ["diff", str(model), "--bisect", "-o", str(tmp_path / "found"), "--json"]
    assert CliRunner().invoke(commands, arguments).exit_code == 0
    told = CliRunner().invoke(commands, [*arguments, "--data", str(calls)])
    assert told.exit_code == 1, told.output
    found = json.loads(told.output)
    assert found["culprit"] == "rule 'bounds_that_nothing_reaches' of 'canonicalize'"
    assert "limit" in found["subject"] and found["case"] == "recorded inputs"
    saved = unpacked(Path(found["folder"]) / "inputs.npz")
    assert [a.tolist() for name, a in saved.items() if name.startswith("input:")] == [[1, 2, 3000]]
