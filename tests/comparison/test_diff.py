"""Two forms of one model: the layer in which the error grows is found, wherever it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright
from tests.comparison.networks import chains, feeds, quantised, renamed, residual, shortened
from tilewright.comparison.diff import diff
from tilewright.comparison.errors import Measured
from tilewright.comparison.taps import tapped


@pytest.fixture(scope="module")
def network() -> onnx.ModelProto:
    return residual()


def compared(a: onnx.ModelProto, b: onnx.ModelProto) -> tilewright.Difference:
    return diff(a, b, feeds(), threads=1)


def test_a_model_does_not_differ_from_itself(network: onnx.ModelProto) -> None:
    found = compared(network, network)
    assert found.worst is None and not found.unpaired and not found.telling()
    assert all(layer.error == 0 for layer in found.layers)
    assert len(found.layers) == len(network.graph.node)


def test_all_layers_of_a_quantised_network_are_compared(network: onnx.ModelProto) -> None:
    found = compared(network, quantised(network))
    layers = {layer.layer: layer for layer in found.layers}
    assert {n.name for n in network.graph.node if n.op_type in ("Conv", "MatMul")} <= layers.keys()
    assert all(layer.own is not None and layer.own < 0.05 for layer in found.layers)
    assert 0 < found.outputs["y"].error < 0.1 and found.outputs["y"].sqnr > 20


@pytest.mark.parametrize("layer", ["block1.first", "block0.second", "head"])
def test_weights_with_a_wrong_scale_are_found(network: onnx.ModelProto, layer: str) -> None:
    found = compared(network, quantised(network, wrong_weights=layer))
    assert found.worst is not None and found.worst.layer == layer
    assert found.worst.operator in ("Conv", "MatMul") and 0.5 < found.worst.error <= 1


@pytest.mark.parametrize("tensor", ["stem.relu.out", "block0.second.out"])
def test_results_with_a_wrong_scale_are_found(network: onnx.ModelProto, tensor: str) -> None:
    found = compared(network, quantised(network, wrong_result=tensor))
    assert found.worst is not None and found.worst.tensors[0] == tensor


@pytest.mark.parametrize("layer", ["block0.second", "block1.first"])
def test_layers_that_took_their_relus_are_compared_behind_these(network: onnx.ModelProto, layer: str) -> None:
    sound = compared(network, quantised(network, drop_relus=True))
    assert sound.worst is not None and sound.worst.blame < 0.05
    found = compared(network, quantised(network, wrong_weights=layer, drop_relus=True))
    assert found.worst is not None and found.worst.layer == layer


def test_tensors_of_other_names_are_paired_by_structure(network: onnx.ModelProto) -> None:
    wrong = quantised(network, wrong_weights="block0.second")
    place = [n.name for n in wrong.graph.node].index("block0.second")
    other = renamed(wrong)
    found = compared(network, other)
    assert found.worst is not None and found.worst.layer == other.graph.node[place].name
    assert found.worst.tensors[0] == "block0.second.out"
    assert len(found.layers) == len(compared(network, wrong).layers)


@pytest.mark.parametrize("wrong", [0, 1])
def test_results_of_operators_on_integers_are_compared_as_numbers(wrong: int) -> None:
    floats, integers = chains(wrong)
    found = compared(floats, integers)
    assert [layer.layer for layer in found.layers][1:] == ["first", "second"]
    assert found.worst is not None and found.worst.layer == ("first", "second")[wrong]
    assert all(layer.own is not None for layer in found.layers)
    assert found.layers[2 - wrong].own < 0.1  # type: ignore[operator]


def test_layers_of_shorter_floats_are_compared(network: onnx.ModelProto) -> None:
    found = compared(network, shortened(network, "block0.second"))
    (layer,) = (x for x in found.layers if x.layer == "block0.second")
    assert found.worst is not None and found.worst.layer in ("block0.relu", "block0.second")  # rounds what it reads
    assert layer.own is not None and 1e-4 < layer.own < 1e-2
    assert all(x.own is not None for x in found.layers)


def test_either_model_may_be_the_quantised_one(network: onnx.ModelProto) -> None:
    found = compared(quantised(network, wrong_weights="block0.second"), network)
    assert found.worst is not None and found.worst.layer == "block0.second"


def test_layers_are_parted_into_groups_that_fit_the_memory(
    network: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = quantised(network, wrong_weights="block0.second")
    at_once = compared(network, wrong)
    monkeypatch.setattr("tilewright.comparison.diff.MOST_BYTES", 100_000)
    compiled = []
    monkeypatch.setattr("tilewright.comparison.diff.tapped", lambda *args: compiled.append(args) or tapped(*args))
    in_groups = compared(network, wrong)
    whole = len(at_once.layers)
    assert len(compiled) >= 4 and all(len(values) < whole for _, values, _ in compiled)  # each for a group
    assert [layer.tensors for layer in in_groups.layers] == [layer.tensors for layer in at_once.layers]
    for a, b in zip(in_groups.layers, at_once.layers, strict=True):
        assert (a.error, a.before, a.own) == pytest.approx((b.error, b.before, b.own), rel=1e-3, abs=1e-6)


def test_the_record_is_json_data(network: onnx.ModelProto) -> None:
    record = compared(network, quantised(network, wrong_weights="head")).record()
    assert record["worst"] == "head" and record["samples"] == len(feeds())
    assert {"layer", "operator", "tensors", "error", "before", "growth", "own", "blame", "sqnr", "largest"} == set(
        record["layers"][0]
    )


def test_data_comes_from_files_too(network: onnx.ModelProto, tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", x=np.concatenate([feed["x"] for feed in feeds()]))
    wrong = quantised(network, wrong_weights="head")
    found = diff(network, wrong, tmp_path / "samples.npz", threads=1)
    assert found.samples == len(feeds()) and found.worst is not None and found.worst.layer == "head"


def test_without_data_there_is_noise(network: onnx.ModelProto) -> None:
    found = diff(network, quantised(network, wrong_weights="stem"), random=2, threads=1)
    assert found.samples == 2 and found.data == "noise"
    assert found.worst is not None and found.worst.layer == "stem"


def test_tensors_of_other_shapes_are_no_pairs(network: onnx.ModelProto) -> None:
    other = residual()
    swapped = {"pooled": "flat", "flat": "pooled"}
    for node in other.graph.node:
        for part in (node.input, node.output):
            for k, name in enumerate(part):
                part[k] = swapped.get(name, name)
    found = compared(network, other)
    assert set(found.unpaired) == {"pooled", "flat"} and found.worst is None
    assert found.layers[-1].layer == "head" and found.layers[-1].own is not None


def with_input(name: str, width: int = 8) -> onnx.ModelProto:
    other = residual()
    other.graph.input[0].name = other.graph.node[0].input[0] = name
    other.graph.input[0].type.tensor_type.shape.dim[3].dim_value = width
    return other


def test_inputs_of_other_names_are_paired_by_their_order(network: onnx.ModelProto) -> None:
    found = compared(network, with_input("image"))
    assert found.worst is None and len(found.layers) == len(network.graph.node)


def test_models_of_other_inputs_are_refused(network: onnx.ModelProto) -> None:
    said = r"different inputs: .* has x: f32\[1, 3, 8, 8\], .* has image: f32\[1, 3, 8, 9\]"
    with pytest.raises(tilewright.InputError, match=said):
        compared(network, with_input("image", 9))


def test_models_without_a_common_tensor_are_refused(network: onnx.ModelProto) -> None:
    other = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,3,8,8] z, float[1,3,8,8] v) '
        "{ z = Exp(x) v = Sin(z) }"
    )
    with pytest.raises(tilewright.InputError, match="nothing can be compared"):
        compared(network, other)


def test_data_of_another_model_is_refused(network: onnx.ModelProto) -> None:
    with pytest.raises(tilewright.InputError, match="no array named x"):
        diff(network, network, [{"image": np.zeros((1, 3, 8, 8), np.float32)}], threads=1)
    with pytest.raises(tilewright.InputError, match="shape"):
        diff(network, network, [{"x": np.zeros((1, 3, 9, 9), np.float32)}], threads=1)


def test_compiled_models_are_refused() -> None:
    with pytest.raises(tilewright.InputError, match="no intermediate tensors"):
        diff("a.tw", "b.tw")


@pytest.mark.parametrize("option", ["random", "samples"])
def test_numbers_of_samples_are_checked(network: onnx.ModelProto, option: str) -> None:
    with pytest.raises(tilewright.OptionError, match=option):
        diff(network, network, **{option: 0})


def test_what_is_no_number_is_an_infinite_error_and_masks_are_none() -> None:
    wanted = np.array([1.0, -3e38, np.nan, np.inf], np.float32)
    measured = Measured()
    measured.add(wanted, np.array([1.0, -np.inf, 2.0, 5.0], np.float32))
    assert measured.relative == measured.largest == 0
    measured.add(wanted, np.array([np.nan, -3e38, np.nan, np.inf], np.float32))
    measured.add(wanted, wanted)
    assert np.isinf(measured.relative) and np.isinf(measured.largest)


def chain(operators: list[str], output: str, width: int = 8) -> onnx.ModelProto:
    """Operators one after the other on a vector; results are named after their operators and places."""
    names = ["x", *(f"{operator}{place}" for place, operator in enumerate(operators[:-1])), output]
    steps = " ".join(f"{b} = {operator}({a})" for a, b, operator in zip(names[:-1], names[1:], operators, strict=True))
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g (float[{width}] x) => (float[{width}] {output}) {{ {steps} }}'
    )


def test_unrelated_models_are_refused_before_they_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs and outputs of one name and shape are all that they have in common."""
    monkeypatch.setattr("tilewright.comparison.diff.tapped", None)
    with pytest.raises(tilewright.InputError, match=r"no layer of the 10 of .* is one of"):
        diff(chain(["Sin", "Exp"] * 5, "y"), chain(["Tanh", "Sigmoid"] * 5, "y"), threads=1)


def test_what_is_not_compared_of_outputs_is_said(network: onnx.ModelProto) -> None:
    other = residual()
    head = next(t for t in other.graph.initializer if t.name == "head.w")
    head.CopyFrom(onnx.numpy_helper.from_array(np.ones((8, 5), np.float32), "head.w"))
    other.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5
    found = compared(network, other)
    assert not found.outputs and found.record()["uncompared"] == found.uncompared
    assert "f32[1, 8] in the given model, f32[1, 5] in" in found.uncompared["y"]
    other.graph.output.append(onnx.helper.make_tensor_value_info("more", 1, [1, 8]))
    other.graph.node.append(onnx.helper.make_node("Sin", ["flat"], ["more"]))
    assert "has no such output (its outputs: y)" in compared(network, other).uncompared["more"]
