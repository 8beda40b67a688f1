"""No optimisation can fail a model: each optional step of a compilation fails once, and the model stays right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.models import mlp, mlp_expected, written
from tilewright import compiler
from tilewright.api import compile_artifact
from tilewright.cli.app import commands
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.pipeline import default_passes
from tilewright.ir.core import Op
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.optional_steps import OptionalSteps
from tilewright.loops.stages import Lowered
from tilewright.options import Options, Progress
from tilewright.passes import NeededPass
from tilewright.program.memory.place_views import PlaceViews
from tilewright.runtime import Model
from tilewright.runtime.errors import ExecutionError
from tilewright.schedule.sharing import kernels
from tilewright.schedule.strategies import STRATEGIES
from tilewright.schedule.strategy import Strategy
from tilewright.stages import programs

pytestmark = pytest.mark.with_scalar_kernels

T = TypeVar("T")
RNG = np.random.default_rng(11)
X = RNG.standard_normal((5, 64)).astype(np.float32)
IMAGES = RNG.standard_normal((1, 8, 12, 12)).astype(np.float32)
ATTEMPT = OptionalSteps.attempt
FAILURES_ARE_ERRORS = compiler.failures_are_errors


def network() -> onnx.ModelProto:
    """Convolutions (of groups, too) with normalisation, a branch, a concatenation, pooling and a product."""
    weights = {
        "w1": RNG.standard_normal((16, 8, 3, 3)), "w2": RNG.standard_normal((16, 4, 3, 3)),
        "w3": np.ones((16, 8, 1, 1)), "scale": np.full(16, 0.5), "shift": np.ones(16),
        "mean": np.zeros(16), "var": np.ones(16), "last": RNG.standard_normal((32, 10)), "half": np.array(0.5),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "var"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "w2"], ["d"], pads=[1, 1, 1, 1], group=4),
        helper.make_node("Conv", ["x", "w3"], ["e"]),
        helper.make_node("Add", ["d", "e"], ["f"]),
        helper.make_node("Concat", ["f", "c"], ["g"], axis=1),
        helper.make_node("MaxPool", ["g"], ["h"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["h"], ["i"]),
        helper.make_node("Flatten", ["i"], ["j"]),
        helper.make_node("Mul", ["j", "half"], ["k"]),
        helper.make_node("MatMul", ["k", "last"], ["l"]),
        helper.make_node("Softmax", ["l"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(np.asarray(w, np.float32), name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


NETWORK = network()


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    session = onnxruntime.InferenceSession(NETWORK.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": IMAGES})[0])


def optional_steps() -> list[str]:
    """The names of all steps that a compilation attempts."""
    found: dict[str, None] = {}

    def attempt(self: OptionalSteps, step: str, action: Callable[[], T], instead: Callable[[], T]) -> T:
        found[step] = None
        return ATTEMPT(self, step, action, instead)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OptionalSteps, "attempt", attempt)
        tilewright.compile(mlp(), cache=False, threads=1)
    return list(found)


STEPS = optional_steps()


@pytest.fixture
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Without what makes such failures errors of tests."""
    monkeypatch.setattr(compiler, "failures_are_errors", lambda options: options.verify or options.strict)
    yield monkeypatch


def breaking(broken: str, *, after: bool) -> Callable[..., Any]:
    """`OptionalSteps.attempt`, but a step fails: when it has changed the program already, or at once."""

    def attempt(self: OptionalSteps, step: str, action: Callable[[], T], instead: Callable[[], T]) -> T:
        def failing() -> T:
            if after:
                action()
            raise IndexError("list index out of range")

        return ATTEMPT(self, step, failing if step == broken else action, instead)

    return attempt


def failing(*arguments: object, **named: object) -> None:
    raise IndexError("list index out of range")


def failures(model: Model) -> list[tuple[str, str]]:
    return [(r.stage, r.message) for r in model.report().remarks if r.kind == "failed"]


def test_the_steps_are_those_of_the_whole_pipeline() -> None:
    passes = [*default_passes(Options()), Fuse(STRATEGIES), PlaceViews()]
    others = {"split", "account", "inline-scalars", "share-kernels", "inplace", "order", "concurrent-kernels"}
    others |= {"share-memory", "memory-budget", "little-kernels", "one-copy", "edges", "indices"}
    assert set(STEPS) == {p.name for p in passes} | others
    assert {p.name for p in passes if isinstance(p, NeededPass)} == {"expand", "fuse"}


@pytest.mark.sweep(6)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_is_switched_off(as_for_users: pytest.MonkeyPatch, expected: np.ndarray, step: str) -> None:
    as_for_users.setattr(OptionalSteps, "attempt", breaking(step, after=True))
    model = tilewright.compile(NETWORK, cache=False, threads=1)
    np.testing.assert_allclose(model(IMAGES)[0], expected, rtol=1e-4, atol=1e-6)
    message = f"IndexError: list index out of range; '{step}' is switched off: please report this with the model"
    assert failures(model) == [(step, message)]
    assert f"failed: {step}: the model: {message}" in str(model.report())


QUESTIONS = [
    *((s, question) for s in STRATEGIES.ours[:-1] for question in ("claims", "schedule")),
    *((s, question) for s in STRATEGIES.ours[-5:-1] for question in ("join", "gather", "match")),
]


@pytest.mark.sweep(7)
@pytest.mark.parametrize(("strategy", "question"), QUESTIONS, ids=lambda x: getattr(x, "name", x))
def test_a_strategy_that_fails_is_not_asked_again(
    as_for_users: pytest.MonkeyPatch, expected: np.ndarray, strategy: Strategy, question: str
) -> None:
    as_for_users.setattr(strategy, question, failing)
    model = tilewright.compile(NETWORK, cache=False, threads=1)
    np.testing.assert_allclose(model(IMAGES)[0], expected, rtol=1e-4, atol=1e-6)
    subjects = {r.subject for r in model.report().remarks if r.kind == "failed"}
    assert question == "schedule" or subjects == {f"strategy '{strategy.name}'"}


def test_several_steps_that_fail(as_for_users: pytest.MonkeyPatch) -> None:
    """All optional ones, of a model with unknown dims."""

    def attempt(self: OptionalSteps, step: str, action: Callable[[], T], instead: Callable[[], T]) -> T:
        def failing() -> T:
            raise RecursionError("too deep")

        return ATTEMPT(self, step, failing, instead)

    as_for_users.setattr(OptionalSteps, "attempt", attempt)
    model = tilewright.compile(mlp(), cache=False, threads=1)
    np.testing.assert_allclose(model(X)[0], mlp_expected(X), rtol=1e-5)
    assert {stage for stage, _ in failures(model)} == set(STEPS)


def test_regions_that_cannot_be_lowered_are_taken_apart(as_for_users: pytest.MonkeyPatch, expected: np.ndarray) -> None:
    """A pass that went wrong without an error: nothing can be made of regions of several operators."""
    lower = kernels.lower_region

    def lower_single(region: Op, *arguments: Any, **named: Any) -> Lowered:
        work = [op for op in region.blocks[0].ops if op.name not in ("full", "yield")]
        if len(work) != 1:
            raise AssertionError("this region is wrong\nhere")
        return lower(region, *arguments, **named)

    as_for_users.setattr(kernels, "lower_region", lower_single)
    model = tilewright.compile(NETWORK, cache=False, threads=1)
    np.testing.assert_allclose(model(IMAGES)[0], expected, rtol=1e-4, atol=1e-6)
    told = {message for _, message in failures(model)}
    assert told == {
        "AssertionError: this region is wrong; each of its operators is a kernel: please report this with the model"
    }


def test_what_is_needed_fails_the_model(as_for_users: pytest.MonkeyPatch) -> None:
    as_for_users.setattr(kernels, "lower_region", failing)
    with pytest.raises(IndexError):
        tilewright.compile(mlp(), cache=False)


@pytest.mark.parametrize("error", [UnsupportedError("no such machine"), MemoryError()], ids=lambda e: type(e).__name__)
def test_what_says_something_of_the_model_or_the_machine_is_no_defect(
    as_for_users: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*arguments: object) -> None:
        raise error

    as_for_users.setattr("tilewright.back_end.group_concurrent_kernels", refuse)
    wanted = ExecutionError if isinstance(error, MemoryError) else type(error)
    with pytest.raises(wanted, match=r"no such machine|not enough memory to compile the model"):
        tilewright.compile(mlp(), cache=False)


def test_an_error_of_progress_ends_the_compilation(as_for_users: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []

    def tell(progress: Progress) -> None:
        told.append(progress)
        if progress.stage == "kernels":
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        compile_artifact(mlp(), options=Options(cache=False), progress=tell)
    assert [p.stage for p in told].count("import") == 1


def test_programs_are_shown_without_what_fails(as_for_users: pytest.MonkeyPatch) -> None:
    as_for_users.setattr(OptionalSteps, "attempt", breaking("fuse", after=True))
    assert len(programs(mlp(), "loops")) > 2


@pytest.mark.parametrize("verify", [False, True])
def test_failures_are_errors_of_tests_and_where_programs_are_checked(
    monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    if verify:
        monkeypatch.setattr(compiler, "failures_are_errors", FAILURES_ARE_ERRORS)
    monkeypatch.setattr("tilewright.back_end.group_concurrent_kernels", failing)
    with pytest.raises(IndexError):
        tilewright.compile(mlp(), cache=False, verify=verify)


def test_commands_warn_of_what_is_switched_off(as_for_users: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_for_users.setattr("tilewright.back_end.group_concurrent_kernels", failing)
    result = CliRunner().invoke(commands, ["explain", str(written(mlp(), tmp_path, "mlp")), "--no-cache"])
    assert result.exit_code == 0
    warning = "warning: the model: IndexError: list index out of range; 'concurrent-kernels' is switched off"
    assert warning in result.stderr
    assert "failed: IndexError: list index out of range" in " ".join(result.stdout.split())
