"""How it is found what failed in a compilation, and what users are told of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.graph.programs import program
from tests.models import mlp, written
from tests.test_faults import NETWORK, compiled, lowering_of_one_region, raising
from tilewright import compiler
from tilewright.cli.app import commands
from tilewright.graph.fusion import fuse
from tilewright.graph.rewrites import fold
from tilewright.ir import rewrite
from tilewright.ir.core import Op
from tilewright.ir.optional_steps import OptionalSteps, Part, StepFailed, retry_without_failed_steps
from tilewright.ir.sym import sym
from tilewright.ops.elementwise import add, neg
from tilewright.passes import PassContext
from tilewright.program.memory.plan import Lifetime, plan_in_order
from tilewright.runtime.errors import InternalError, PerformanceWarning

AS_FOR_USERS = OptionalSteps(verified=False, raises=False)


@pytest.fixture
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Without what makes such failures errors of tests."""
    monkeypatch.setattr(compiler, "failures_are_errors", lambda options: options.verify or options.strict)
    yield monkeypatch


def test_evaluating_a_constant_that_fails_costs_that_constant(as_for_users: pytest.MonkeyPatch) -> None:
    raising(as_for_users, fold, "evaluate_op", lambda op, *_: op.name == "exp")
    nodes = [helper.make_node("Exp", ["w"], ["e"]), helper.make_node("Sqrt", ["w"], ["s"])]
    nodes += [helper.make_node("Add", ["x", "e"], ["a"]), helper.make_node("Mul", ["a", "s"], ["y"])]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    w = np.arange(4, dtype=np.float32)
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(w, "w")])
    with pytest.warns(PerformanceWarning, match="it is computed in each call"):
        model = tilewright.compile(helper.make_model(graph), cache=False, threads=1)
    x = np.ones(4, np.float32)
    np.testing.assert_allclose(model(x)[0], (x + np.exp(w)) * np.sqrt(w), rtol=1e-6)


def test_a_rule_that_fails_is_not_applied_there() -> None:
    module = program(lambda x: add(add(x, 0.0), neg(neg(x))), (2, 3))

    @rewrite.rule("add")
    def broken(op: Op, builder: object, ctx: object) -> rewrite.Replacement:
        if op.operands[0] is module.main.args[0]:
            raise KeyError("a fault of the test")
        return None

    context = PassContext(optional=AS_FOR_USERS)
    rewrite.rewrite(module.main, [broken], module, stage="test", within=context)
    (remark,) = context.remarks
    assert (remark.kind, remark.stage) == ("failed", "test") and "the rule is not applied there" in remark.message
    for within in (None, PassContext(optional=OptionalSteps())):
        with pytest.raises(KeyError):
            rewrite.rewrite(module.main, [broken], module, within=within)


# Finding what was to blame


def attempts(needs: Callable[[frozenset[str]], bool], names: str) -> tuple[set[str], int]:
    """What is left out where a compilation works if `needs` holds of the names that are, and how often it is tried."""
    tried = 0

    def finish(start: None, steps: OptionalSteps) -> set[str]:
        nonlocal tried
        tried += 1
        for name in names:
            steps.takes(Part(name.lower() * 2, of=name) if name.isupper() else Part(name))
        off = frozenset(str(part.of or part.step) for part in steps.off)
        if not needs(off):
            raise ValueError("a fault of the test")
        return {*off}

    return retry_without_failed_steps(lambda: None, finish, AS_FOR_USERS, lambda e: True), tried


def test_the_fewest_parts_are_left_out() -> None:
    names = "abcdefghijklmnopqrstuvwx" + "ABCDEFGH"
    for culprit in names:
        assert attempts(lambda off, one=culprit: one in off, names)[0] == {culprit}
    assert attempts(lambda off: {"b", "q"} <= off, names)[0] == {"b", "q"}
    assert attempts(lambda off: {"b", "c", "x"} <= off, names)[0] == {"b", "c", "x"}
    assert attempts(lambda off: "c" in off or "d" in off, names)[0] in ({"c"}, {"d"})
    assert attempts(lambda off: {"b", "C"} <= off, names)[0] == {"b", "C"}
    assert attempts(lambda off: "k" in off, names)[1] <= 2 + 2 * 5


def test_what_nothing_helps_against_is_an_error() -> None:
    with pytest.raises(ValueError, match="a fault of the test"):
        attempts(lambda off: False, "abcAB")


def test_a_part_that_fails_says_so_and_another_is_found() -> None:
    def finish(start: None, steps: OptionalSteps) -> set[Part]:
        for name in "abc":
            steps.takes(Part(name))
        if Part("c") not in steps.off:
            raise RuntimeError("somewhere")
        try:
            raise ValueError("of b")
        except ValueError as error:
            if Part("b") not in steps.off:
                raise StepFailed([Part("b")]) from error
        return {*steps.off}

    found = retry_without_failed_steps(lambda: None, finish, AS_FOR_USERS, lambda e: True)
    assert found == {Part("b"), Part("c")}


# What users are told


def test_strict_makes_a_failure_an_error(as_for_users: pytest.MonkeyPatch) -> None:
    lowering_of_one_region(as_for_users)
    with pytest.raises(IndexError, match="a fault of the test"):
        compiled(strict=True)


def test_strict_refuses_what_the_cache_has(as_for_users: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = tilewright.Session(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        lowering_of_one_region(patch)
        with pytest.warns(PerformanceWarning):
            tilewright.compile(NETWORK, session=session)
    with pytest.warns(PerformanceWarning, match="a fault of the test"):
        tilewright.compile(NETWORK, session=session)
    with pytest.raises(InternalError, match=r"strict=True: .*a fault of the test"):
        tilewright.compile(NETWORK, session=session, strict=True)


def test_a_sound_compilation_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        compiled(strict=True)


def test_commands(as_for_users: pytest.MonkeyPatch, tmp_path: Path) -> None:
    raising(as_for_users, fuse._Fusion, "_answer", lambda *_: True)
    path = str(written(mlp(), tmp_path, "mlp"))
    for command in ("explain", "check"):
        arguments = [command, path] + ["--no-cache"] * (command == "explain")
        with warnings.catch_warnings():
            warnings.simplefilter("error", PerformanceWarning)
            result = CliRunner().invoke(commands, arguments)
        assert result.exit_code == 0, result.output
        assert "warning: " in result.stderr and "a fault of the test" in result.stderr
        assert CliRunner().invoke(commands, [*arguments, "--strict"]).exit_code != 0


# Memory


def large(rows: int) -> onnx.ModelProto:
    """The square of the rows in the middle, which no kernel keeps in registers."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["outer"], name="outer"),
        helper.make_node("Softmax", ["outer"], ["shares"], name="shares", axis=0),
        helper.make_node("ReduceMax", ["shares"], ["y"], name="largest", axes=[1], keepdims=0),
    ]
    values = [helper.make_tensor_value_info("x", 1, [rows, 1]), helper.make_tensor_value_info("y", 1, [rows])]
    w = numpy_helper.from_array(np.ones((1, rows), np.float32), "w")
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)


def test_much_memory_is_not_taken_silently(tmp_path: Path) -> None:
    wanted = r"intermediate results take [\d,]+ bytes of memory, more than 1,073,741,824 and twice the [\d,]+ of the"
    with pytest.warns(PerformanceWarning, match=wanted + r" weights: \d tensors of [\d,]+ bytes .* at node '"):
        model = tilewright.compile(large(1 << 15), cache=False, strict=True)
    assert "warning: memory: the model: intermediate results" in str(model.report())
    result = CliRunner().invoke(commands, ["check", str(written(large(1 << 15), tmp_path, "large"))])
    assert "warning: the model: intermediate results take" in result.stderr
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        tilewright.compile(large(256), cache=False)


@pytest.mark.parametrize("seed", range(20))
def test_the_simple_plan_lets_no_two_tensors_meet(seed: int) -> None:
    rng = np.random.default_rng(seed)
    firsts = rng.integers(0, 30, 25)
    lives = [
        Lifetime(k, sym(int(rng.integers(1, 9)) * 100), int(first), int(first + rng.integers(0, 6)))
        for k, first in enumerate(firsts)
    ]
    plan = plan_in_order(lives)
    for a in lives:
        assert plan.offsets[a.key].value % 64 == 0
        assert plan.offsets[a.key].value + a.size.value <= plan.total.value
        for b in lives:
            if a.key != b.key and a.first <= b.last and b.first <= a.last:
                starts = [(plan.offsets[t.key].value, t.size.value) for t in (a, b)]
                (first, size), (second, _) = sorted(starts)
                assert first + size <= second
    assert plan.total.value < plan.unshared.value
