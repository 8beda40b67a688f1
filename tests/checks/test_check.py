"""What `tilewright.check` finds, against numbers computed by hand and against compiled models."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests import models
from tilewright.ir.diag import ScheduleError
from tilewright.schedule.strategies import STRATEGIES


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict[str, list], outputs: list[str], constants: dict[str, np.ndarray]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def network() -> onnx.ModelProto:
    """Two convolutions of 3 to 8 to 8 channels, a residual addition, a mean and a product with 8x10 weights."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="first", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="second", kernel_shape=[1, 1]),
        helper.make_node("Add", ["b", "c"], ["d"], name="residual"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], name="mean"),
        helper.make_node("Flatten", ["e"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "w3"], ["y"], name="head"),
    ]
    weights = {"w1": (8, 3, 3, 3), "w2": (8, 8, 1, 1), "w3": (8, 10)}
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    return model_of(nodes, {"x": ["batch", 3, 16, 16]}, ["y"], constants)


def evaluated(formula: str, **dims: int) -> int:
    """The value of a formula as the artefact's report and the check write them."""
    assert re.fullmatch(r"[\w\s+\-*/(),<>=]*", formula), formula
    return int(eval(formula, {"max": max, "min": min, **dims}))


def test_parameters_and_operations_are_those_computed_by_hand() -> None:
    found = tilewright.check(network(), sizes={"batch": 2}, threads=1)
    costs = found.costs
    assert found.runs and costs is not None
    (parameters,) = costs.parameters
    assert (parameters.dtype, parameters.count) == ("float32", 8 * 3 * 9 + 8 * 8 + 8 * 10)
    assert parameters.bytes == 4 * parameters.count
    uses = {use.operator: use for use in costs.operators}
    positions = 2 * 16 * 16
    assert uses["Conv"].nodes == 2 and uses["Conv"].dtypes == ("f32",)
    assert uses["Conv"].flops.value == 2 * positions * 8 * (3 * 9) + 2 * positions * 8 * 8
    assert uses["Relu"].flops.value == uses["Add"].flops.value == positions * 8
    assert uses["MatMul"].flops.value == 2 * 2 * 8 * 10
    assert costs.flops.value == sum(use.flops.value or 0 for use in costs.operators)
    assert evaluated(costs.flops.formula, batch=2) == costs.flops.value
    assert uses["Add"].bytes.value == 3 * 4 * positions * 8
    assert uses["MatMul"].bytes.value == 4 * (2 * 8 + 8 * 10 + 2 * 10)


def test_inputs_outputs_and_sizes() -> None:
    found = tilewright.check(network())
    assert [str(info) for info in found.inputs] == ["x: float32[batch, 3, 16, 16]"]
    assert [str(info) for info in found.outputs] == ["y: float32[batch, 10]"]
    assert found.nodes == 7 and found.costs is not None
    assert found.costs.sizes == {"batch": 1}
    assert found.costs.memory.inputs.formula == "3072*batch"
    assert found.costs.memory.outputs.formula == "40*batch"


@pytest.mark.without_room_for_zones
@pytest.mark.parametrize("model", [network(), models.mlp()], ids=["network", "mlp"])
def test_the_arena_is_never_below_that_of_the_artefact(model: onnx.ModelProto) -> None:
    for shapes in ({}, {"x": [3, *(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:])]}):
        costs = tilewright.check(model, shapes=shapes).costs
        assert costs is not None
        arena = tilewright.compile(model, shapes=shapes, cache=False).report().arena
        memory = costs.memory
        for batch in (1, 3, 50):
            assert evaluated(memory.arena.formula, batch=batch) >= evaluated(arena, batch=batch)
            parts = (memory.inputs, memory.outputs, memory.weights, memory.arena)
            assert evaluated(memory.peak.formula, batch=batch) == sum(
                evaluated(part.formula, batch=batch) for part in parts
            )


def test_everything_that_is_not_supported_is_listed() -> None:
    found = tilewright.check(models.unsupported())
    assert not found.runs and found.costs is None
    assert [p.operator for p in found.problems] == ["example.Frobnicate", "example.Defenestrate"]
    assert ["first" in found.problems[0].node, "second" in found.problems[1].node] == [True, True]
    assert all(p.reason for p in found.problems)


def test_what_a_value_that_must_be_known_needs_is_said() -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [6]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, ["n"]),
        ],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found = tilewright.check(model)
    assert [p.operator for p in found.problems] == ["Reshape"]
    assert "shape" in found.problems[0].hint
    assert tilewright.check(model, constants={"shape": np.array([2, 3])}).runs


def test_operators_of_one_opset_that_nobody_reads() -> None:
    model = models.mlp()
    model.opset_import[0].version = 99
    found = tilewright.check(model)
    assert len(found.problems) == 1 and "version 99" in found.problems[0].reason


def test_a_damaged_model_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(models.mlp().SerializeToString()[:-40])
    with pytest.raises(tilewright.ModelError, match=r"model\.onnx"):
        tilewright.check(path)


def test_sizes_that_depend_on_data_are_computed_by_the_host() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"], name="where"),
        helper.make_node("Cast", ["places"], ["floats"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Exp", ["floats"], ["y"], name="exp"),
    ]
    found = tilewright.check(model_of(nodes, {"x": [10]}, ["y"], {}))
    assert found.runs and found.costs is not None
    hosted = [note for note in found.notes if note.kind == "host"]
    assert ("NonZero", "where") in [(note.operator, note.node) for note in hosted]
    assert found.costs.flops.value is None and found.costs.time.seconds is None
    assert "size_" in found.costs.flops.formula


def test_loops_of_operators_and_conditions_on_dims_are_noted() -> None:
    nodes = [
        helper.make_node("Add", ["x", "z"], ["sum"], name="sum"),
        helper.make_node("CumSum", ["sum", "axis"], ["y"], name="running"),
    ]
    inputs = {"x": ["n", 4], "z": ["m", 4]}
    found = tilewright.check(model_of(nodes, inputs, ["y"], {"axis": np.array(0)}))
    kinds = {note.kind: note for note in found.notes}
    assert kinds["broadcast"].node == "sum" and "m == n" in kinds["broadcast"].message
    assert kinds["own_loops"].operator == "CumSum"


@pytest.mark.with_scalar_kernels
def test_slow_kernels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def declines(*arguments: object) -> None:
        raise ScheduleError("not today")

    model = model_of([helper.make_node("Exp", ["x"], ["y"], name="exp")], {"x": [300, 300]}, ["y"], {})
    assert not [note for note in tilewright.check(model).notes if note.kind == "slow"]
    for strategy in STRATEGIES.ours:
        monkeypatch.setattr(type(strategy), "schedule", declines)
    (slow,) = (note for note in tilewright.check(model).notes if note.kind == "slow")
    assert slow.node == "k0_exp" and "cycles are lost; what would change it: " in slow.message


def test_work_on_constants_is_none_of_a_call() -> None:
    nodes = [
        helper.make_node("Mul", ["w", "w"], ["square"]),
        helper.make_node("Add", ["x", "square"], ["y"]),
    ]
    found = tilewright.check(model_of(nodes, {"x": [4]}, ["y"], {"w": np.ones(4, np.float32)}))
    assert found.costs is not None and found.costs.flops.value == 4


def test_rows_of_a_table_are_read_and_not_the_table() -> None:
    found = tilewright.check(models.gather(), sizes={"n": 3})
    assert found.costs is not None
    (use,) = found.costs.operators
    # rows of two floats, read and written, and int64 indices
    assert use.bytes.value == 3 * 8 + 2 * 3 * 2 * 4


def test_a_softmax_counts_what_it_is_made_of() -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], name="softmax", axis=-1)]
    found = tilewright.check(model_of(nodes, {"x": [7, 11]}, ["y"], {}))
    # largest, difference, exp, sum: one for each element; then a division a row and a product, or a division each
    assert found.costs is not None
    assert found.costs.flops.value in (5 * 77, 5 * 77 + 7)


def test_the_time_of_another_machine_is_in_cycles() -> None:
    here = tilewright.check(models.mlp()).costs
    other = tilewright.check(models.mlp(), target="zen3", threads=3).costs
    assert here is not None and here.time.seconds is not None and here.time.hertz is not None
    assert here.time.seconds == here.time.cycles / here.time.hertz
    assert other is not None and other.time.cycles and other.time.seconds is None
    assert (other.time.target, other.time.threads) == ("zen3", 3)


@pytest.mark.parametrize("sizes", [{"height": 3}, {"batch": -1}, {"batch": "3"}, {"batch": True}], ids=str)
def test_sizes_that_are_none(sizes: dict) -> None:
    with pytest.raises(tilewright.OptionError, match=r"symbolic dim|whole number"):
        tilewright.check(models.mlp(), sizes=sizes)


def test_what_is_found_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        tilewright.check(models.mlp()).nodes = 3  # type: ignore[misc]
