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
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.quantization.command_line import call
from tests.quantization.networks import CLASSES, HIDDEN, INPUTS, classifier, image_network, samples
from tilewright.exporters.onnx.write import onnx_model
from tilewright.quantization import run as room
from tilewright.quantization.certificate import certificate_of
from tilewright.quantization.data import open_data
from tilewright.quantization.decision import timing
from tilewright.quantization.forms import Former, Recipe
from tilewright.quantization.methods.histogram import Observer
from tilewright.quantization.methods.inputs import UnitInputs
from tilewright.quantization.network import Network, read_graph
from tilewright.quantization.probe import Probe, Tap
from tilewright.quantization.written import written
from tilewright.runtime import Artifact
from tilewright.runtime.errors import InputError


def forms_of(
    model: onnx.ModelProto, feed: dict[str, np.ndarray], recipe: Recipe
) -> tuple[Any, onnx.ModelProto]:
    """The outputs of the probe, and the model as it is written, with all layers in one form."""
    network = Network.of(read_graph(model))
    tap = Tap(network, 1)
    found, dims = tap(feed), tap.dims(feed)
    observers = {unit.name: Observer(unit.data_axis) for unit in network.units}
    for name, array in found.items():
        observers[name].add(array)
    former = Former(network, observers)
    for unit in network.units:
        former.inputs[unit.name] = UnitInputs(unit)
        for inputs in former.inputs[unit.name].each:
            inputs.add_fit(found[unit.name], 1, dims)
    forms = {unit.name: former.form(unit, recipe) for unit in network.units}
    units = {unit.name: unit for unit in network.units}
    floats = {name: form.probed(network, units[name]) for name, form in forms.items()}
    made = written(network, {n: f.code for n, f in forms.items()})
    return Probe(network, 1).runner(floats)(feed), onnx_model(made)


RECIPES = [
    Recipe("int8"),
    Recipe("int8", "mse", correct=True),
    Recipe("int8", smooth=0.5, reconstruct=True),
    Recipe("int8", per_channel=False),
    Recipe("w8", reconstruct=True),
]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("recipe", [*RECIPES, Recipe("w4"), Recipe("w4", reconstruct=True)], ids=str)
def test_all_forms_of_matrices_agree_with_onnxruntime(recipe: Recipe) -> None:
    """The probe, our code and ONNX Runtime, within one step of the output: where a float lies between two integers,
    the last bit decides to which it goes."""
    feed = {"x": samples(32)[0]}
    compare_engines(classifier(hidden=64), feed, recipe)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("recipe", [r for r in RECIPES if not r.smooth], ids=str)
def test_all_forms_of_convolutions_agree_with_onnxruntime(recipe: Recipe) -> None:
    feed = {"x": np.random.default_rng(3).standard_normal((2, 3, 12, 12)).astype(np.float32)}
    compare_engines(image_network(), feed, recipe)


def compare_engines(model: onnx.ModelProto, feed: dict[str, np.ndarray], recipe: Recipe) -> None:
    probed, small = forms_of(model, feed, recipe)
    session = ort.InferenceSession(small.SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, feed)
    (ours,) = tilewright.compile(small, threads=1, cache=False)(**feed)
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


def test_what_saves_next_to_nothing_stays(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No budget is to blame where the whole could not become faster."""
    monkeypatch.setattr(timing, "gains", lambda base, other: {name: (1e-7, 1e-4) for name in base[0].units})
    monkeypatch.setattr(timing, "ROUNDS", 1)
    result = tilewright.quantize(saved / "model.onnx", saved / "data.npz", max_drop=1e-6, batch=8, threads=1)
    assert result.certificate.narrowed == 0 and "less than 1%" in result.certificate.outcome


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



@pytest.mark.usefixtures("always_faster")
def test_forms_that_were_made_are_not_made_again(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted between two units: what was found for the first one holds, bit for bit."""
    made: list[str] = []
    real = room.best_form

    def counted(former: Any, unit: Any, *others: Any) -> Any:
        if len(made) == limit:
            raise KeyboardInterrupt
        made.append(unit.name)
        return real(former, unit, *others)

    monkeypatch.setattr(room, "best_form", counted)
    fields: dict[str, Any] = {"max_drop": 0.05, "batch": 8, "kinds": ["int8"], "threads": 1}
    limit = 2
    with pytest.raises(KeyboardInterrupt):
        tilewright.quantize(saved / "model.onnx", saved / "data.npz", work=saved / "work", **fields)
    limit = 9
    result = tilewright.quantize(saved / "model.onnx", saved / "data.npz", work=saved / "work", **fields)
    assert made == ["first", "second", "third"]
    made.clear()
    whole = tilewright.quantize(saved / "model.onnx", saved / "data.npz", **fields)
    assert result.certificate.weights_digest == whole.certificate.weights_digest and len(made) == 3


@pytest.mark.usefixtures("always_faster")
@pytest.mark.parametrize("kind", ["bf16", "w4"])
def test_kinds_without_integer_activations(saved: Path, kind: str) -> None:
    out = saved / "small.onnx"
    made = call(
        "quantize", saved / "model.onnx", "--data", saved / "data.npz", "--max-drop", "20%", "--batch", 8,
        "-o", out, "--threads", 1, "--kinds", kind,
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    found = onnx.load(out)
    assert {layer.kind for layer in certificate_of(found, "out").layers} == {kind}
    wanted = TensorProto.BFLOAT16 if kind == "bf16" else TensorProto.INT4
    weights = {(INPUTS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES)}
    assert sum(t.data_type == wanted and tuple(t.dims) in weights for t in found.graph.initializer) == 3
    verified = call("verify", out, "--data", saved / "data.npz", "--batch", 8, "--threads", 1)
    assert verified.exit_code == 0, verified.output


def test_bfloat16_of_the_probe_is_that_of_the_model() -> None:
    feed = {"x": samples(32)[0]}
    probed, small = forms_of(classifier(hidden=64), feed, Recipe("bf16"))
    (ours,) = tilewright.compile(small, threads=1, cache=False)(**feed)
    (wide,) = tilewright.compile(classifier(hidden=64), threads=1, cache=False)(**feed)
    step = float(np.abs(wide).max()) / 256
    assert np.abs(ours - probed[0]).max() <= step and 0 < np.abs(ours - wide).max() < 8 * step


@pytest.mark.usefixtures("always_faster")
@pytest.mark.parametrize("is_better", [True, False])
def test_layers_are_equalised_where_that_is_better(monkeypatch: pytest.MonkeyPatch, is_better: bool) -> None:
    noises = iter([1.0, 0.5] if is_better else [0.5, 1.0])
    monkeypatch.setattr(room.Quantization, "_noise_of_all", lambda *args: next(noises))
    images = np.random.default_rng(4).standard_normal((64, 3, 12, 12)).astype(np.float32)
    model = image_network()
    result = tilewright.quantize(model, {"x": images}, max_drop=0.9, kinds=["int8"], threads=1, metric="cosine")
    assert any(("not equalised" in remark) != is_better for remark in result.certificate.remarks)
    small = tilewright.compile(result.model, threads=1, cache=False)(images)[0]
    wide = tilewright.compile(model, threads=1, cache=False)(images)[0]
    assert result.certificate.narrowed == 3 and np.abs(small - wide).max() < 0.1 * np.abs(wide).max()


class Calls:
    """Data that is asked for one call after the other."""

    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self.feeds = feeds

    def __len__(self) -> int:
        return len(self.feeds)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.feeds[index]


@pytest.mark.usefixtures("always_faster")
def test_sequences_of_calls_are_data(saved: Path) -> None:
    """Lists, tuples, what has a length and items, a folder of files, and arrays: the same calls, the same digest."""
    x, labels = samples(160)
    feeds = [{"x": x[i : i + 8], "labels": labels[i : i + 8]} for i in range(0, 160, 8)]
    (saved / "calls").mkdir()
    for index, feed in enumerate(feeds):
        np.savez(saved / "calls" / f"{index:03}.npz", **feed)  # type: ignore[arg-type]
    inputs = tilewright.compile(classifier(), threads=1).inputs
    stacked = {"x": x.reshape(20, 8, -1), "labels": labels.reshape(20, 8)}
    every = [feeds, tuple(feeds), Calls(feeds), saved / "calls", stacked]
    found = [open_data(data, inputs) for data in every]
    assert len({data.digest for data in found}) == 1 and {data.count for data in found} == {20}
    result = tilewright.quantize(classifier(), Calls(feeds), max_drop=0.2, kinds=["int8"], threads=1)
    assert result.certificate.narrowed and result.certificate.metric == "accuracy"


def embedder() -> onnx.ModelProto:
    """The classifier's hidden layer as an embedding."""
    model = classifier(hidden=64)
    del model.graph.node[-1], model.graph.output[:], model.graph.initializer[2]
    model.graph.output.append(helper.make_tensor_value_info("e", TensorProto.FLOAT, ["batch", 64]))
    return model


@pytest.mark.usefixtures("always_faster")
@pytest.mark.parametrize("has_labels", [True, False])
def test_recall_of_embeddings(saved: Path, has_labels: bool) -> None:
    x, labels = samples(400)
    onnx.save(embedder(), saved / "model.onnx")
    np.savez(saved / "data.npz", x=x, **({"labels": labels} if has_labels else {}))  # type: ignore[arg-type]
    out = saved / "small.onnx"
    made = call(
        "quantize", saved / "model.onnx", "--data", saved / "data.npz", "--max-drop", "60%", "--batch", 8,
        "-o", out, "--threads", 1, "--kinds", "int8", "--metric", "recall",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    found = certificate_of(onnx.load(out), "out")
    assert found.metric == ("recall at 1" if has_labels else "recall at 1 (float32 is right)")
    assert found.before > 0.9 and abs(found.drop) < 0.3 and found.narrowed == 2
    assert call("verify", out, "--data", saved / "data.npz", "--batch", 8, "--threads", 1).exit_code == 0


def test_layers_that_read_a_tensor_by_different_windows() -> None:
    """A block of a residual network: both convolutions of one unit are reconstructed, each by what it meets."""
    rng = np.random.default_rng(5)
    weights = {"k3": rng.standard_normal((8, 4, 3, 3)), "k1": rng.standard_normal((8, 4, 1, 1)),
               "kg": rng.standard_normal((8, 2, 3, 3))}  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "k3"], ["a"], name="wide", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "k1"], ["b"], name="short", strides=[2, 2]),
        helper.make_node("Conv", ["x", "kg"], ["c"], name="grouped", group=2, strides=[2, 2], auto_pad="SAME_UPPER"),
        helper.make_node("Sum", ["a", "b", "c"], ["y"], name="sum"),
    ]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 10, 10])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8, 5, 5])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feed = {"x": rng.standard_normal((4, 4, 10, 10)).astype(np.float32)}
    compare_engines(model, feed, Recipe("int8", correct=True, reconstruct=True))
