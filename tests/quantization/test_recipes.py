"""Which recipe a layer takes: by its own outputs, on rows that did not make the form, within stated memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.quantization.networks import INPUTS, classifier, samples
from tilewright.quantization import calibration
from tilewright.quantization.calibration import gather, in_groups, observe
from tilewright.quantization.data import open_data
from tilewright.quantization.forms import Form, Former, Recipe
from tilewright.quantization.methods import inputs as inputs_room
from tilewright.quantization.methods import rounding
from tilewright.quantization.methods.inputs import Rows, bytes_of
from tilewright.quantization.methods.integers import TYPES
from tilewright.quantization.methods.ranges import channel_parameters
from tilewright.quantization.methods.windows import spread
from tilewright.quantization.network import Network, read_graph
from tilewright.quantization.probe import Tap
from tilewright.quantization.recipes import best_form
from tilewright.quantization.state import State


def quiet(stage: str, done: int, total: int) -> None:
    pass


def prepared(count: int = 400, hidden: int = 64) -> tuple[Former, Tap, Any]:
    network = Network.of(read_graph(classifier(hidden=hidden)))
    tap = Tap(network, 1)
    data = open_data({"x": samples(count)[0]}, tap.model.inputs, batch=8)
    former = Former(network, observe(tap, network, data, State(None, ""), "ranges", quiet))
    return former, tap, data


def made(former: Former, tap: Tap, data: Any) -> dict[str, Form]:
    found = {}
    for group in in_groups(former.network.units):
        former.inputs = gather(tap, group, data, quiet)
        found |= {unit.name: best_form(former, unit, "int8", "auto") for unit in group}
        former.release()
    return found


def test_forms_do_not_depend_on_how_many_are_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    former, tap, data = prepared()
    network = former.network
    whole = made(former, tap, data)
    monkeypatch.setattr(calibration, "MOST_BYTES", 1)
    assert [len(group) for group in in_groups(network.units)] == [1, 1, 1]
    for name, form in made(former, tap, data).items():
        assert form.recipe == whole[name].recipe
        for node, weights in form.code.weights.items():
            assert np.array_equal(weights.integers, whole[name].code.weights[node].integers)


def test_the_chosen_form_has_the_least_error_on_other_rows() -> None:
    former, tap, data = prepared()
    unit = former.network.units[1]
    former.inputs = gather(tap, [unit], data, quiet)
    best = best_form(former, unit, "int8", "auto")
    plain = former.form(unit, Recipe("int8"))
    assert former.error(unit, best) < former.error(unit, plain)
    (met,) = former.inputs[unit.name].each
    x = np.concatenate([tap(data.read(i).feed)[unit.name] for i in data.part("choice")])
    assert np.array_equal(met.check.array, x)
    w = former.network.array("w1")
    wanted = x @ w
    activation, _ = former.activation(unit, plain.recipe)
    assert activation is not None
    step = float(activation.scale)
    got = np.clip(np.rint(x / step), 0, 255) * step @ plain.code.weights["second"].floats(1)
    error = np.square(got - wanted).mean() / np.square(wanted).mean()
    assert former.error(unit, plain) == pytest.approx(error, rel=1e-3)


def test_what_fits_few_samples_too_closely_does_not_win() -> None:
    """Moments of 8 rows say nothing of most directions: the form that is perfect on these loses on others."""
    rng = np.random.default_rng(0)
    former, tap, data = prepared()
    unit = former.network.units[0]
    former.inputs = gather(tap, [unit], data, quiet)
    (met,) = former.inputs[unit.name].each
    few = rng.standard_normal((8, INPUTS)).astype(np.float32) * np.geomspace(100, 0.01, INPUTS).astype(np.float32)
    assert met.square is not None
    met.square[:] = few.T @ few
    met.count = 8
    assert not best_form(former, unit, "w8", "auto").recipe.reconstruct


def test_integers_are_found_once_for_all_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = rounding.reconstructed

    def counted(*args: Any) -> np.ndarray:
        calls.append(1)
        return real(*args)

    monkeypatch.setattr(rounding, "reconstructed", counted)
    former, tap, data = prepared()
    unit = former.network.units[1]
    former.inputs = gather(tap, [unit], data, quiet)
    for kind in ("int8", "w8"):
        for correct in (False, True):
            former.form(unit, Recipe(kind, correct=correct, reconstruct=True))
    assert len(calls) == 1


def test_corrections_of_blocks_are_those_of_single_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2000, 200)) @ rng.standard_normal((200, 200))
    w = rng.standard_normal((200, 30)).astype(np.float32)
    p = channel_parameters(w, 1, TYPES["uint8"], "min-max")
    corrections = rounding.Corrections.of(x.T @ x / len(x))
    blocks = rounding.reconstructed(w, corrections, p.scale, p.zero_point, p.type)
    monkeypatch.setattr(rounding, "BLOCK", 1)
    single = rounding.reconstructed(w, corrections, p.scale, p.zero_point, p.type)
    assert (blocks != single).mean() < 0.01




def test_rows_take_no_more_memory_than_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_room, "MOST_ROW_BYTES", 4096)
    rows = Rows(64)
    assert rows.limit == 16
    for _ in range(3):
        rows.add(np.ones((10, 64), np.float32))
    assert rows.array.shape == (16, 64) and rows.array.nbytes == 4096
    assert spread(10, 4).tolist() == [1, 3, 6, 8] and spread(3, 4).tolist() == [0, 1, 2]
    network = Network.of(read_graph(classifier(hidden=64)))
    assert bytes_of(network.units[1]) == 2 * 4096 + 8 * 64 * 64
