"""Cases that are drawn to find cliffs: the same for the same seed, of every kind, valid, and told about."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import shape_inference

import tilewright
from bench.cases import read_arrays, relative_error
from bench.cliffs import architectures, blocks, drawn, families, narrow
from bench.cliffs.draft import Draft, TooLarge, Value
from bench.cliffs.drawn import draw, make_case
from bench.cliffs.families import Architecture
from bench.cliffs.operators import OPERATORS
from bench.cliffs.told import kernels_and_remarks
from bench.commands.cliffs import _shares
from bench.peers import OURS
from bench.ratios import RIGHT_IN_FEW_BITS, counts
from bench.records import Record
from bench.references import by_onnxruntime


def draft(*seed: object) -> Draft:
    rng = random.Random(str(seed))
    return Draft(rng, np.random.default_rng(rng.getrandbits(64)))


def until_it_fits(make: Callable[[Draft], Value], seed: int) -> tuple[Draft, Value]:
    for attempt in range(100):
        made = draft(seed, attempt)
        try:
            return made, make(made)
        except (TooLarge, ValueError, shape_inference.InferenceError):
            continue
    pytest.fail(f"{make} fits in none of 100 attempts")


@pytest.mark.fresh_seeds(1)
def test_a_case_depends_on_seed_and_number_alone(fresh_seed: int) -> None:
    (kind, model, first), (again, same, second) = draw(fresh_seed, 3), draw(fresh_seed, 3)
    assert kind == again and model == same
    assert all(np.array_equal(array, second.inputs[name]) for name, array in first.inputs.items())
    assert len({draw(fresh_seed, number)[1].SerializeToString() for number in range(5)}) == 5


@pytest.mark.parametrize("operator", dict.fromkeys(OPERATORS), ids=lambda f: f.__name__)
@pytest.mark.fresh_seeds(1)
def test_every_operator_is_drawn_within_some_attempts(
    fresh_seed: int, operator: Callable[[Draft], Value]
) -> None:
    made, result = until_it_fits(operator, fresh_seed)
    onnx.checker.check_model(made.model([result], unknown=False), full_check=True)


@pytest.mark.parametrize(
    "shape", [(2, 24, 14, 14), (1, 24, 40), (2, 9, 48)], ids=("image", "series", "sequence")
)
@pytest.mark.fresh_seeds(1)
def test_every_block_is_drawn_within_some_attempts(fresh_seed: int, shape: tuple[int, ...]) -> None:
    kinds = blocks.SEQUENCES if shape[-1] == 48 else blocks.SERIES if len(shape) == 3 else blocks.IMAGES
    for block in dict.fromkeys(kinds):
        made, result = until_it_fits(lambda d, block=block: block(d, d.input(*shape)), fresh_seed)  # type: ignore[misc]
        onnx.checker.check_model(made.model([result], unknown=False), full_check=True)


@pytest.mark.fresh_seeds(1)
def test_sizes_are_unknown_only_where_no_constant_has_them(fresh_seed: int) -> None:
    found = [draw(fresh_seed, number) for number in range(60)]
    for kind, model, made in found:
        unknown = any(d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim)
        assert unknown == kind.endswith("_unknown") and not (unknown and made.has_sizes), (fresh_seed, kind)


def test_axes_have_dims_of_their_own_except_those_that_operators_prescribe() -> None:
    made = draft("axes")
    x = made.given(np.ones((4, 3, 2), np.int32))
    points = made.given(np.ones((1, 5, 6, 2), np.float32), known=(3,))
    info = made.model([x, points], unknown=True).graph.input
    dims = [[d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in info]
    assert dims == [["x0_0", "x0_1", "x0_2"], ["x1_0", 5, "x1_2", 2]]


def test_what_the_reference_refuses_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(families, "installed", lambda: ())
    refused: list[Path] = []

    def reference(model: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        if not refused:
            refused.append(model)
            raise RuntimeError("not implemented")
        return by_onnxruntime(model, inputs)

    monkeypatch.setattr(drawn, "by_onnxruntime", reference)
    case = make_case(1, 0, tmp_path)
    assert refused and case.arrays.exists()
    assert list(tmp_path.glob("*.onnx")) == [case.model]


def test_costs_have_limits() -> None:
    with pytest.raises(TooLarge):
        draft("large").input(1 << 13, 1 << 13)
    with pytest.raises(TooLarge):
        made = draft("products")
        made.node("MatMul", made.input(2000, 2000), made.weight(2000, 2000))


@pytest.mark.fresh_seeds(1)
def test_ours_computes_the_references(
    fresh_seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(families, "installed", lambda: ())  # exports take long
    for number in range(4):
        case = make_case(fresh_seed, number, tmp_path)
        inputs, references = read_arrays(case.arrays)
        model = tilewright.compile(case.model, cache=False)
        results = [np.asarray(array) for array in model.run(None, inputs)]
        # one last bit of a float32 takes a byte to its neighbour, and the layers behind add up such steps of 1/255
        is_of_bytes = case.about.startswith(("qdq", "operators", "dynamic"))
        assert relative_error(results, references) < (5e-2 if is_of_bytes else 1e-3), (
            f"--seed {fresh_seed} --first {number}: {case.about}"
        )


def test_slow_cases_are_told_with_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(families, "installed", lambda: ())
    lines = kernels_and_remarks(make_case(1, 0, tmp_path), 1)
    assert "%" in lines[0] and " ms (" in lines[0]
    assert _shares([0.5, 1.2, 4.0], 1.1) == "of 3 cases 2 above 1.1, 1 above 1.5, 1 above 3"


def test_the_list_of_architectures_names_as_many_as_it_promises_each_once() -> None:
    found = architectures.read_list(architectures.LISTED, (1, 8))
    assert len({str(each) for each in found}) == len(found)
    names = {(each.package, each.name) for each in found}
    assert len(found) == 2 * len(names)
    assert sum(package == "timm" for package, _ in names) >= 60
    assert sum(package == "transformers" for package, _ in names) >= 25


def test_a_list_has_a_line_for_each_architecture(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text('# a comment\n\ntimm dla34\ntransformers bart {"encoder_layers": 1}\n')
    small = {"encoder_layers": 1}
    expected = [Architecture("timm", "dla34", 1), Architecture("timm", "dla34", 8)]
    expected += [Architecture("transformers", "bart", batch, small) for batch in (1, 8)]
    assert architectures.read_list(path, (1, 8)) == expected
    assert len({*map(str, expected), str(Architecture("transformers", "bart"))}) == 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dla34", "line 1: 'dla34' is not `timm NAME`"),
        ("keras resnet", "line 1: 'keras resnet' is not `timm NAME`"),
        ("timm dla34 [1]", "line 1: .* with an object of options"),
        ("timm dla34 {1}", r"line 1: \{1\} is no JSON"),
    ],
)
def test_a_line_that_is_no_architecture_is_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(line)
    with pytest.raises(ValueError, match=message):
        architectures.read_list(path, (1,))


def test_architectures_are_exported_once_and_left_out_where_they_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    exported: list[str] = []

    def export(architecture: Architecture, path: Path) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        exported.append(architecture.name)
        if architecture.name == "broken":
            path.write_text("a part of it")
            raise ValueError("no such network")
        made = draft(architecture.name)
        onnx.save(made.model([made.node("Relu", made.input(2, 3))], unknown=False), path)
        return made.inputs, [np.maximum(array, 0) for array in made.inputs.values()]

    monkeypatch.setattr(architectures, "export_listed", export)
    listed = [Architecture("timm", name) for name in ("first", "broken")]
    for _ in range(2):
        (case,) = architectures.cases(listed, tmp_path)
        assert len(read_arrays(case.arrays)[1]) == 1
    assert exported == ["first", "broken", "broken"]
    assert "timm_broken_b1: left out, no such network" in capsys.readouterr().out
    assert list(tmp_path.glob("*.onnx")) == [case.model]


def test_a_file_that_is_another_model_than_was_exported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")

    def export(architecture: Architecture, path: Path) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        made = draft(architecture.name)
        onnx.save(made.model([made.node("Relu", made.input(2, 3))], unknown=False), path)
        return made.inputs, [np.maximum(array, 0) + 1 for array in made.inputs.values()]

    monkeypatch.setattr(architectures, "export_listed", export)
    (case,) = architectures.cases([Architecture("timm", "other")], tmp_path)
    inputs, (wanted,) = read_arrays(case.arrays)
    assert np.array_equal(wanted, *[np.maximum(array, 0) for array in inputs.values()])
    assert "timm_other_b1: the file is another model" in capsys.readouterr().out


def test_what_stands_before_parameters_near_zero_is_seen_in_the_result() -> None:
    torch = pytest.importorskip("torch")

    class Branch(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.scale = torch.nn.Parameter(torch.full((4,), 1e-6))
            torch.nn.init.zeros_(self.inner.bias)

        def forward(self, x: Any) -> Any:
            return x + self.scale * self.outer(self.inner(x))

    torch.manual_seed(0)
    model = Branch()
    kept = model.outer.weight.detach().clone()
    families._wake(torch, model)
    assert float(model.scale.detach().abs().max()) > families.NEAR_ZERO
    assert not model.inner.bias.any() and torch.equal(model.outer.weight, kept)


def test_references_of_architectures_are_those_of_float64() -> None:
    torch = pytest.importorskip("torch")
    model, x = torch.nn.Linear(300, 3), torch.linspace(-1, 1, 600).reshape(2, 300)
    weight, bias = (p.detach().numpy().astype(np.float64) for p in (model.weight, model.bias))
    exact = families._exact(torch, model, {"x": x})
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact, x.numpy().astype(np.float64) @ weight.T + bias, rtol=1e-12)


def test_inputs_are_among_the_images_of_which_norms_have_their_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")

    class Pooled(torch.nn.Sequential):  # type: ignore[misc]
        default_cfg: ClassVar = {"input_size": (3, 4, 4)}

    def create(name: str) -> Any:
        pool = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.BatchNorm1d(3))
        return Pooled(torch.nn.Conv2d(3, 3, 3), *pool)

    timm = SimpleNamespace(create_model=create)
    monkeypatch.setitem(sys.modules, "timm", timm)  # type: ignore[arg-type]
    for batch in (1, 8, 11):
        torch.manual_seed(batch)
        model, inputs = families._listed_of_timm(Architecture("timm", "pooled", batch), torch)
        assert inputs["x"].shape[0] == batch
        with torch.no_grad():
            result = model.eval()(inputs["x"])
        assert float(result.abs().max()) < 1.25 * families.SETTLING_BATCH**0.5 + 0.15


@pytest.mark.parametrize("form", narrow.FORMS)
def test_networks_in_few_bits_are_drawn_in_every_form(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    made = draft("narrow")
    x = made.input(1, 16, 12, 12)
    y = blocks.activation(made, blocks.convolution(made, x, 16, (3, 3)))
    path = tmp_path / "narrow.onnx"
    monkeypatch.setattr(narrow, "FORMS", (form,))
    assert narrow.narrowed(made.model([y], unknown=False), made.inputs, random.Random(0), path) == form
    ops = {node.op_type for node in onnx.load(path).graph.node}
    kinds = {"float16": "Cast", "dynamic": "ConvInteger", "operators": "QLinearConv"}
    assert kinds.get(form, "QuantizeLinear") in ops and [*tmp_path.iterdir()] == [path]
    (wanted,) = by_onnxruntime(path, made.inputs)
    found = np.asarray(tilewright.compile(path, cache=False).run(None, made.inputs)[0])
    assert relative_error([found], [wanted]) < RIGHT_IN_FEW_BITS


def test_networks_in_few_bits_are_right_within_their_roundings() -> None:
    record = Record(drawn.KIND, "m", 1, OURS, median_ms=1.0, relative_error=0.05)
    assert not counts(record)
    assert counts(replace(record, kind=drawn.NARROW))
