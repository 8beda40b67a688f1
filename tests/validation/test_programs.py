"""Models with states, loops and parts are validated as others are: their kernels run, on what the parts get in calls of
the whole, and the whole is compared, several calls one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.validation.planted import add_rules
from tilewright import compilation
from tilewright.compiler import compile_request
from tilewright.ir.core import Builder, Func, Module, Op
from tilewright.ir.diag import InternalError
from tilewright.ir.rewrite import Replacement, RewriteContext, rule
from tilewright.ops import recurrent
from tilewright.ops.define.interp import evaluate
from tilewright.ops.define.loop_programs import Run
from tilewright.options import Options, Request
from tilewright.program.steps import Staged
from tilewright.runtime import Model
from tilewright.session import Session
from tilewright.validation import programs
from tilewright.validation.validate import Validation

pytestmark = [pytest.mark.with_scalar_kernels, pytest.mark.usefixtures("as_for_users")]

RNG = np.random.default_rng(3)
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def made(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], **constants: np.ndarray) -> Any:
    ins, outs = ([helper.make_tensor_value_info(*i) for i in infos] for infos in (inputs, outputs))
    given = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", ins, outs, given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def doubling(name: str = "limited") -> onnx.ModelProto:
    """min(2 * s, 1000), as often as the call says."""
    nodes = [
        helper.make_node("Identity", ["go"], ["still"]),
        helper.make_node("Add", ["s", "s"], ["twice"]),
        helper.make_node("Min", ["twice", "most"], ["next"], name=name),
    ]
    ins = [helper.make_tensor_value_info(*i) for i in (("i", INT64, []), ("go", BOOL, []), ("s", FLOAT, [5]))]
    outs = [helper.make_tensor_value_info(*i) for i in (("still", BOOL, []), ("next", FLOAT, [5]))]
    body = helper.make_graph(nodes, "b", ins, outs)
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    return made([loop], [("n", INT64, []), ("x", FLOAT, [5])], [("y", FLOAT, [5])],
                most=np.array(1000, np.float32))  # fmt: skip


def two_states() -> onnx.ModelProto:
    """y = a - b; the next a is tanh(a + x), the next b is b + 1."""
    nodes = [
        helper.make_node("Sub", ["a", "b"], ["y"]),
        helper.make_node("Add", ["a", "x"], ["p"]),
        helper.make_node("Tanh", ["p"], ["an"]),
        helper.make_node("Add", ["b", "one"], ["bn"]),
    ]
    shape = [1, 8]
    return made(nodes, [(n, FLOAT, shape) for n in "xab"], [(n, FLOAT, shape) for n in ("y", "an", "bn")],
                one=np.ones(1, np.float32))  # fmt: skip


def stacked_lstm(units: int = 8, steps: int = 3) -> onnx.ModelProto:
    """Two layers whose last states are one output: two kernels write parts of it."""
    weights = {f"{what}{k}": RNG.standard_normal((1, 4 * units, units)).astype(np.float32) / 4
               for what in "wr" for k in "ab"}  # fmt: skip
    nodes = [
        helper.make_node("LSTM", ["x", "wa", "ra"], ["ya", "ha", "ca"], hidden_size=units),
        helper.make_node("Squeeze", ["ya", "one"], ["sa"]),
        helper.make_node("LSTM", ["sa", "wb", "rb"], ["y", "hb", "cb"], hidden_size=units),
        helper.make_node("Concat", ["ha", "hb"], ["h"], axis=0),
        helper.make_node("Tanh", ["h"], ["t"]),
    ]
    outputs = [("y", FLOAT, [steps, 1, 1, units]), ("h", FLOAT, [2, 1, units]), ("t", FLOAT, [2, 1, units])]
    return made(nodes, [("x", FLOAT, [steps, 1, units])], outputs, one=np.array([1]), **weights)


def validated(model: onnx.ModelProto, feeds: Sequence[Any] = (), **options: Any) -> tuple[Any, Validation]:
    validation = Validation(feeds)
    chosen = Options(cache=False, threads=2, **options)
    request = Request.of(model, None, None)
    return compile_request(request, chosen, session=Session(), checks=validation), validation


def test_kernels_of_programs_run_and_are_not_blamed() -> None:
    for model, options in ((doubling(), {}), (two_states(), {"states": {"a": "an", "b": "bn"}}), (stacked_lstm(), {})):
        _, validation = validated(model, **options)  # type: ignore[arg-type]
        assert validation.findings == [] and validation.skipped == {} and validation.kernels


@rule("min")
def limits_that_nothing_reaches(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """min(x, 1000) -> x: noise never comes so far."""
    return op.operands[0] if op.loc.node == "limited" else None


def test_a_defect_that_only_later_iterations_of_a_loop_show(monkeypatch: pytest.MonkeyPatch) -> None:
    add_rules(monkeypatch, limits_that_nothing_reaches)
    x = np.array([1, 2, 3, 4, 5], np.float32)
    artifact, validation = validated(doubling(), [{"n": np.array(12), "x": x}])
    assert [fault.rule for fault in validation.findings] == ["limits_that_nothing_reaches"]
    assert "limited" in str(validation.findings[0])
    (found,) = Model(artifact, 1)(np.array(12), x)
    np.testing.assert_array_equal(found, np.full(5, 1000, np.float32))


def test_states_that_are_exchanged_are_found_in_the_second_call(monkeypatch: pytest.MonkeyPatch) -> None:
    introduce = compilation.introduce_states

    def exchanged(main: Func) -> None:
        introduce(main)
        updates = [op for op in main.body.ops if op.name == "update"]
        if not updates:
            return  # of the program that gives the result of each kernel
        first, second = updates
        values = first.operands[1], second.operands[1]
        first.set_operands([first.operands[0], values[1]])
        second.set_operands([second.operands[0], values[0]])

    monkeypatch.setattr(compilation, "introduce_states", exchanged)
    with pytest.raises(InternalError, match="the program as a whole: result 0 of call 2"):
        validated(two_states(), states={"a": "an", "b": "bn"})


def test_a_program_that_fails_in_a_call_that_the_interpreter_takes_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no refusal of the call."""
    staged = compilation.staged_program

    def without_slots(module: Module) -> Staged:
        found = staged(module)
        return replace(found, program=replace(found.program, slots=()))

    monkeypatch.setattr(compilation, "staged_program", without_slots)
    artifact, validation = validated(doubling())
    assert "the program as a whole: it fails: a step of the model failed" in str(validation.findings[0])
    (found,) = Model(artifact, 1)(np.array(3), np.ones(5, np.float32))  # without native steps between parts
    np.testing.assert_array_equal(found, np.full(5, 8, np.float32))


def test_a_program_that_gives_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    staged = compilation.staged_program

    def of_a_value_that_nothing_makes(module: Module) -> Staged:
        found = staged(module)
        program = replace(found.program, values=found.program.values + 1, outputs=(found.program.values,))
        return replace(found, program=program)

    monkeypatch.setattr(compilation, "staged_program", of_a_value_that_nothing_makes)
    with pytest.raises(InternalError, match=r"the program as a whole: .* is no tensor of numbers"):
        validated(doubling())


def test_a_loop_that_a_drawn_condition_never_ends_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter would take it for as long as it has time; other calls are replayed."""
    monkeypatch.setattr(programs, "MOST_TRIPS", 100)
    nodes = [helper.make_node("Identity", ["go"], ["still"]), helper.make_node("Tanh", ["s"], ["next"])]
    ins = [helper.make_tensor_value_info(*i) for i in (("i", INT64, []), ("c", BOOL, []), ("s", FLOAT, [5]))]
    outs = [helper.make_tensor_value_info(*i) for i in (("still", BOOL, []), ("next", FLOAT, [5]))]
    loop = helper.make_node("Loop", ["", "go", "x"], ["y"], body=helper.make_graph(nodes, "b", ins, outs))
    model = made([loop], [("go", BOOL, []), ("x", FLOAT, [5])], [("y", FLOAT, [5])])
    feeds = [{"go": np.array(going), "x": np.ones(5, np.float32)} for going in (True, False)]
    _, validation = validated(model, feeds)
    assert validation.findings == [] and validation.calls
    assert any("take the interpreter too long" in why for why in validation._refused)


def test_sums_of_loops_are_added_up_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs the loops over elements at once; one by one the bits are the same."""
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((3, 2, 32), (4, 8, 8), (24,), (2, 8), (2, 8))]
    at_once = evaluate(recurrent.lstm, *arrays)
    monkeypatch.setattr(Run, "_run_views", lambda *rest: False)
    for found, wanted in zip(at_once, evaluate(recurrent.lstm, *arrays), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_elements_that_a_kernel_leaves_unwritten_are_nobodys() -> None:
    """One of two boxes is kept; the others of the kernel's result are not written."""
    names = ["boxes", "scores", "most", "overlap", "least"]
    node = helper.make_node("NonMaxSuppression", names, ["kept"])
    model = made(
        [node], [("boxes", FLOAT, [1, 2, 4]), ("scores", FLOAT, [1, 1, 2])], [("kept", INT64, ["n", 3])],
        most=np.array([3]), overlap=np.array([0.5], np.float32), least=np.array([0.4], np.float32),
    )  # fmt: skip
    box = np.array([[[0, 0, 1, 1], [0, 0, 1, 1]]], np.float32)
    for scores in ([[[0.9, 0.8]]], [[[0.1, 0.2]]]):
        _, validation = validated(model, [{"boxes": box, "scores": np.array(scores, np.float32)}])
        assert validation.findings == [] and validation.kernels


def test_loops_over_what_ids_pick_move_with_what_their_operators_give() -> None:
    """Ids have no last bits, and trips amplify those of what they pick: by 2 each, and by as much again."""
    model = doubling()
    del model.graph.input[1]
    model.graph.input.append(helper.make_tensor_value_info("ids", INT64, [5]))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(8, np.float32), "table"))
    model.graph.node.insert(0, helper.make_node("Gather", ["table", "ids"], ["x"]))
    _, validation = validated(model, [{"n": np.array(6), "ids": np.arange(5)}])
    (replay,) = validation.programs
    session = replay.sessions[0]
    assert validation.findings == [] and session.case.kind == "recorded"
    (step,) = replay.moved(session, 0)
    assert (session.wanted[0][0] == 64).all() and step is not None
    assert step.any() and (step < 64 * 13 * 2.0**-21).all()  # two operators in each of six trips


def test_programs_that_give_sequences() -> None:
    """How far rounding moves a list of tensors is not known, and no call of it is kept."""
    model = made([helper.make_node("SplitToSequence", ["x"], ["y"], axis=0)], [("x", FLOAT, ["n", 3])], [])
    tensors = helper.make_tensor_type_proto(FLOAT, None)
    model.graph.output.append(helper.make_value_info("y", helper.make_sequence_type_proto(tensors)))
    _, validation = validated(model)
    assert validation.findings == []
    assert validation.programs and validation.programs[0].sessions
