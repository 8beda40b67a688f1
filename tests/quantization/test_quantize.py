"""From model and samples to a certificate, on small networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.quantization.networks import INPUTS, classifier, image_network, samples
from tilewright.cli.app import commands
from tilewright.quantization import run as room
from tilewright.quantization.certificate import certificate_of
from tilewright.quantization.decision import timing
from tilewright.quantization.forms import Former, Recipe
from tilewright.quantization.methods.histogram import Observer
from tilewright.quantization.methods.inputs import UnitInputs
from tilewright.quantization.network import Network
from tilewright.quantization.probe import Probe
from tilewright.quantization.qdq import Writer
from tilewright.runtime import Artifact
from tilewright.runtime.errors import InputError, OptionError


@pytest.fixture
def always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are of what is chosen by measured times, and not of how fast this machine is now."""

    def gains(base: Any, other: Any) -> dict[str, tuple[float, float]]:
        return {name: (1e-5, 1e-4) for name in base[0].units}

    def compare(*args: Any) -> timing.Comparison:
        return timing.Comparison(2e-4, 1e-4, 1.0)

    monkeypatch.setattr(timing, "gains", gains)
    monkeypatch.setattr(room, "compare", compare)
    monkeypatch.setattr(timing, "ROUNDS", 1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    onnx.save(classifier(), tmp_path / "model.onnx")
    x, labels = samples(400)
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    return tmp_path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, list(map(str, arguments)))


def forms_of(
    model: onnx.ModelProto, feed: dict[str, np.ndarray], recipe: Recipe
) -> tuple[Any, onnx.ModelProto]:
    """The outputs of the probe, and the model as it is written, with all layers in one form."""
    network = Network.of(model, 21 if recipe.kind == "w4" else 13)
    tap_names = {unit.name: unit for unit in network.units}
    from_tap = tapped(network, feed)
    observers = {name: Observer(unit.data_axis) for name, unit in tap_names.items()}
    for name, unit in tap_names.items():
        observers[name].add(from_tap[unit.data])
    former = Former(network, observers)
    for unit in network.units:
        former.inputs[unit.name] = UnitInputs(network, unit)
        for inputs in former.inputs[unit.name].each:
            inputs.add_fit(from_tap[unit.data], 1)
    forms = {unit.name: former.form(unit, recipe) for unit in network.units}
    units = {unit.name: unit for unit in network.units}
    floats = {name: form.probed(network, units[name]) for name, form in forms.items()}
    return Probe(network, 1).runner(floats)(feed), Writer(network).model(
        {n: f.code for n, f in forms.items()}
    )


def tapped(network: Network, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    from_model = onnx.ModelProto()
    from_model.CopyFrom(network.model)
    names = [u.data for u in network.units if u.data not in feed]
    for name in names:
        from_model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    session = ort.InferenceSession(from_model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = [o.name for o in session.get_outputs()]
    return {**feed, **dict(zip(outputs, session.run(None, feed), strict=True))}


RECIPES = [
    Recipe("int8"),
    Recipe("int8", "mse", correct=True),
    Recipe("int8", smooth=0.5, reconstruct=True),
    Recipe("int8", per_channel=False),
    Recipe("w8", reconstruct=True),
]


@pytest.mark.parametrize("recipe", [*RECIPES, Recipe("w4"), Recipe("w4", reconstruct=True)], ids=str)
def test_all_forms_of_matrices_agree_with_onnxruntime(recipe: Recipe) -> None:
    """The probe, our code and ONNX Runtime, within one step of the output: where a float lies between two integers,
    the last bit decides to which it goes."""
    feed = {"x": samples(32)[0]}
    compare_engines(classifier(hidden=64), feed, recipe)


@pytest.mark.parametrize("recipe", [r for r in RECIPES if not r.smooth], ids=str)
def test_all_forms_of_convolutions_agree_with_onnxruntime(recipe: Recipe) -> None:
    feed = {"x": np.random.default_rng(3).standard_normal((2, 3, 12, 12)).astype(np.float32)}
    compare_engines(image_network(), feed, recipe)


def compare_engines(model: onnx.ModelProto, feed: dict[str, np.ndarray], recipe: Recipe) -> None:
    probed, written = forms_of(model, feed, recipe)
    session = ort.InferenceSession(written.SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, feed)
    (ours,) = tilewright.compile(written, threads=1, cache=False)(**feed)
    (wide,) = tilewright.compile(model, threads=1, cache=False)(**feed)
    step = float(np.abs(wide).max()) / 127
    assert np.abs(ours - theirs).max() <= step and np.abs(probed[0] - theirs).max() <= step
    assert 0 < np.abs(theirs - wide).max() < 0.6 * np.abs(wide).max()


@pytest.mark.usefixtures("always_faster")
def test_a_classifier_by_command(saved: Path) -> None:
    out = saved / "small.onnx"
    made = call(
        "quantize", saved / "model.onnx", "--data", saved / "data.npz", "--max-drop", "5%", "--batch", 8,
        "-o", out, "--threads", 1, "--kinds", "int8",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    certificate = certificate_of(onnx.load(out), "out")
    assert certificate.narrowed and certificate.is_within
    assert certificate.bytes_after < certificate.bytes_before
    assert not (saved / "small.onnx.work").exists()
    ops = {node.op_type for node in onnx.load(out).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= ops
    told = call("inspect", out)
    assert told.exit_code == 0 and "accuracy" in told.output and "int8" in told.output
    assert call("inspect", out, "--json").output.startswith("{")
    verified = call("verify", out, "--data", saved / "data.npz", "--batch", 8, "--threads", 1)
    assert verified.exit_code == 0, verified.output
    assert "the certificate holds" in verified.output
    held_out, labels = samples(2000, 0)
    before = tilewright.compile(saved / "model.onnx", threads=1)(held_out)[0].argmax(1) == labels
    after = tilewright.compile(out, threads=1)(held_out)[0].argmax(1) == labels
    assert before.mean() - after.mean() <= 0.05


@pytest.mark.usefixtures("always_faster")
def test_compiled_files_carry_the_certificate(saved: Path) -> None:
    result = tilewright.quantize(
        saved / "model.onnx", saved / "data.npz", max_drop=0.05, batch=8, kinds=["int8"], threads=1,
        output=saved / "small.tw",
    )  # fmt: skip
    found = certificate_of(Artifact.load(saved / "small.tw"), "small.tw")
    assert found.record()["layers"] == result.certificate.record()["layers"]
    assert call("inspect", saved / "small.tw").exit_code == 0
    assert tilewright.verify(saved / "small.tw", saved / "data.npz", batch=8, threads=1).holds


@pytest.mark.usefixtures("always_faster")
def test_a_changed_model_does_not_verify(saved: Path) -> None:
    out = saved / "small.onnx"
    tilewright.quantize(
        saved / "model.onnx",
        saved / "data.npz",
        max_drop=0.05,
        batch=8,
        kinds=["int8"],
        threads=1,
        output=out,
    )
    model = onnx.load(out)
    weights = next(t for t in model.graph.initializer if t.name.endswith("/weights"))
    array = numpy_helper.to_array(weights)
    weights.CopyFrom(numpy_helper.from_array(np.roll(array, 1, axis=0), weights.name))
    onnx.save(model, out)
    found = tilewright.verify(out, saved / "data.npz", batch=8, threads=1)
    assert not found.holds and any("graph or weights" in problem for problem in found.problems)
    assert call("verify", out, "--data", saved / "data.npz", "--batch", 8, "--threads", 1).exit_code == 1
    with pytest.raises(InputError, match="not that of the certificate"):
        tilewright.verify(out, {"x": samples(30, 5)[0]}, threads=1)


@pytest.mark.usefixtures("always_faster")
def test_every_layer_takes_the_kind_that_is_faster_for_it(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()

    def gains(base: Any, other: Any) -> dict[str, tuple[float, float]]:
        turn = next(numbers)
        return {name: (1e-5 * (k == turn), 1e-4) for k, name in enumerate(base[0].units)}

    monkeypatch.setattr(timing, "gains", gains)
    result = tilewright.quantize(
        saved / "model.onnx", saved / "data.npz", max_drop=0.2, batch=8, kinds=["int8", "w8"], threads=1
    )
    assert {layer.kind for layer in result.certificate.layers} >= {"int8", "w8"}


def test_what_is_not_faster_stays(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "gains", lambda base, other: {name: (0.0, 1e-4) for name in base[0].units})
    monkeypatch.setattr(timing, "ROUNDS", 1)
    result = tilewright.quantize(saved / "model.onnx", saved / "data.npz", max_drop=0.05, batch=8, threads=1)
    assert result.certificate.narrowed == 0 and result.certificate.drop == 0
    assert all("faster" in layer.reason for layer in result.certificate.layers)


@pytest.mark.usefixtures("always_faster")
def test_a_budget_that_cannot_be_met(saved: Path) -> None:
    out = saved / "small.onnx"
    made = call(
        "quantize", saved / "model.onnx", "--data", saved / "data.npz", "--max-drop", "0.00001%", "--batch", 8,
        "-o", out, "--threads", 1, "--kinds", "int8",
    )  # fmt: skip
    assert made.exit_code == 1 and "the best has" in made.output
    assert certificate_of(onnx.load(out), "out").narrowed == 0


@pytest.mark.usefixtures("always_faster")
def test_an_interrupted_run_goes_on(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = timing.unit_times

    def counted(*args: Any) -> timing.UnitTimes:
        calls.append(1)
        return real(*args)

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(timing, "unit_times", counted)
    fields: dict[str, Any] = {"max_drop": 0.05, "batch": 8, "kinds": ["int8"], "threads": 1}
    with monkeypatch.context() as patch:
        patch.setattr(room, "grow", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tilewright.quantize(
                saved / "model.onnx", saved / "data.npz", output=saved / "small.onnx", **fields
            )
    assert (saved / "small.onnx.work").exists() and calls
    calls.clear()
    result = tilewright.quantize(
        saved / "model.onnx", saved / "data.npz", output=saved / "small.onnx", **fields
    )
    assert not calls and result.certificate.narrowed and not (saved / "small.onnx.work").exists()


@pytest.mark.usefixtures("always_faster")
def test_an_iterator_and_a_function_as_metric(saved: Path) -> None:
    x, labels = samples(400)

    def feeds() -> Iterator[dict[str, np.ndarray]]:
        for i in range(0, 400, 10):
            yield {"x": x[i : i + 10], "labels": labels[i : i + 10]}

    def score(outputs: Any, given: Any) -> np.ndarray:
        return np.concatenate(
            [np.asarray(o[0].argmax(1) == y, float) for o, y in zip(outputs, given, strict=True)]
        )

    result = tilewright.quantize(
        classifier(), feeds(), max_drop=0.2, metric=score, kinds=["int8"], threads=1, work=saved / "work"
    )
    assert result.certificate.metric == "score" and result.certificate.narrowed


def model_and(data: Any, **fields: Any) -> None:
    tilewright.quantize(
        classifier(hidden=32), data, max_drop=fields.pop("max_drop", 0.01), threads=1, **fields
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "there is no data"),
        ({"x": np.zeros((0, INPUTS), np.float32)}, "there is no data"),
        ({"z": np.zeros((4, INPUTS), np.float32)}, "other names.*no array named x.*no input z"),
        ({"x": np.zeros((4, INPUTS + 1), np.float32)}, r"shape \[1, 65\]"),
        ({"x": np.zeros((4, INPUTS), np.int64)}, "the data is int64"),
        ({"x": np.full((4, INPUTS), np.nan, np.float32)}, "NaN or infinite"),
        ({"x": np.zeros((4, INPUTS), np.float32), "labels": np.zeros(3)}, "4 samples, and labels"),
        ([1, 2], "is no feed"),
        (3, "is no data"),
    ],
)
def test_data_that_does_not_fit(data: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        model_and(data)


def test_files_that_hold_no_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no \.npz file"):
        model_and(tmp_path)
    with pytest.raises(InputError, match="cannot read"):
        model_and(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(InputError, match=r"no \.npz file"):
        model_and(tmp_path / "bad.npz")


def failing(outputs: Any, given: Any) -> Any:
    raise ValueError("no")


def constant(outputs: Any, given: Any) -> Any:
    return np.ones(len(outputs))


@pytest.mark.parametrize(
    ("metric", "said"),
    [(failing, "the metric failed: ValueError: no"), (constant, "the metric is constant")],
)
def test_metrics_that_say_nothing(metric: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        model_and({"x": samples(64)[0]}, metric=metric)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_drop": -0.1}, {"max_drop": 2}, {"confidence": 1.0}, {"kinds": ["int3"]}, {"calibration": "best"},
        {"metric": "beauty"}, {"metric": "none.py:score"}, {"batch": 0}, {"output": "x.txt"},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_out_of_range(fields: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        model_and({"x": samples(64)[0]}, **fields)


def quantised_model(scale: Any, zero: Any, dtype: int = TensorProto.UINT8) -> onnx.ModelProto:
    scales, zeros = np.asarray(scale, np.float32), np.asarray(zero, np.uint8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["y"], name="dq", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [
            numpy_helper.from_array(scales, "s"),
            numpy_helper.from_array(zeros, "z"),
            numpy_helper.from_array(np.ones((2, 3), np.uint8), "w"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("scale", "zero", "said"),
    [
        (0, 0, "zero"),
        (np.nan, 0, "NaN"),
        ([1, 2], [0, 0], "2 scales for 3 channels"),
        (1, [1, 2], "zero points of"),
    ],
)
def test_models_with_wrong_parameters(scale: Any, zero: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        tilewright.quantize(
            quantised_model(scale, zero), {"x": np.zeros((2, 2, 3), np.float32)}, max_drop=0.01
        )


def test_integers_of_4_bits_of_a_wrong_length() -> None:
    model = quantised_model(1, 0)
    tensor = model.graph.initializer[2]
    tensor.data_type = TensorProto.INT4
    tensor.raw_data = b"\x11\x11"
    del model.graph.node[1].input[2:]
    with pytest.raises(InputError, match="6 integers of 4 bits are stored in 2 bytes, and take 3"):
        tilewright.quantize(model, {"x": np.zeros((2, 2, 3), np.float32)}, max_drop=0.01)


def test_a_model_without_a_certificate(saved: Path) -> None:
    result = call("inspect", saved / "model.onnx")
    assert result.exit_code == 1 and "has no certificate" in result.output
