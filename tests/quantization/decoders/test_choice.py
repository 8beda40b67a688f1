"""Which forms matrices take: in which order, and how many steps."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.frontends.weights.encode import encoded
from tilewright.frontends.weights.forms import WeightForm
from tilewright.quantization.decoders.choice import (
    Forms,
    ladder_of,
    least_that_holds,
    place_of,
    rungs,
    sensitivities,
)
from tilewright.quantization.decoders.probe import Matrices


def matrices(stored: str = "float32") -> Matrices:
    found = Matrices()
    rng = np.random.default_rng(0)
    for layer in range(3):
        for role in ("q_proj", "down_proj"):
            name = f"model.layers.{layer}.{role}.weight"
            found.stored[name] = encoded(rng.standard_normal((64, 64)), stored, name=name)
    found.stored["lm_head.weight"] = encoded(rng.standard_normal((640, 64)), stored, name="lm_head.weight")
    return found


WEIGHT = {"model.layers.1.down_proj.weight": 50.0, "lm_head.weight": 2.0}


def divergence(forms: Forms) -> float:
    """One in which each matrix has a part of its own, by the bits that it has lost."""
    lost = {"int4": 1.0, "int4:min": 0.7, "int8": 0.01, "bfloat16": 0.001, "float16": 0.0001}
    return sum(WEIGHT.get(name, 1.0) * lost[str(form)] for name, form in forms.items())


def test_layers_and_roles() -> None:
    name = "model.layers.12.mlp.experts.3.up_proj.weight"
    assert place_of(name) == (12, "model.layers.*.mlp.experts.*.up_proj.weight")
    assert place_of("lm_head.weight") == (None, "lm_head.weight")


def test_rungs_have_more_bytes_each_and_none_more_than_what_is_stored() -> None:
    texts = {stored: [str(form) for form in rungs(matrices(stored), "lm_head.weight")] for stored in
             ("float32", "bfloat16", "int8", "int4")}  # fmt: skip
    assert texts == {
        "float32": ["int4", "int4:min", "int8", "bfloat16", "None"], "bfloat16": ["int4", "int4:min", "int8", "None"],
        "int8": ["int4", "int4:min", "None"], "int4": ["None"],
    }  # fmt: skip


def test_parts_of_matrices_follow_from_those_of_layers_and_roles() -> None:
    first = {name: WeightForm.of("int4") for name in matrices().stored}
    asked: list[Forms] = []

    def counted(forms: Forms) -> float:
        asked.append(forms)
        return divergence(forms)

    shares = sensitivities(first, counted)
    assert len(asked) == 3 + 2 + 1  # layers, roles, and what is in none
    assert shares["lm_head.weight"] == 2.0
    assert max(shares, key=lambda name: shares[name]) == "model.layers.1.down_proj.weight"
    assert sum(shares.values()) == pytest.approx(divergence(first))


def test_what_brings_most_for_a_byte_comes_first_and_the_end_is_what_is_stored() -> None:
    found = matrices()
    ladder = ladder_of(found, divergence)
    assert {str(form) for form in ladder.first.values()} == {"int4"}
    assert ladder.steps[0].names == ("model.layers.1.down_proj.weight",)
    assert ladder.forms(len(ladder.steps)) == {}
    sizes, losses = [], []
    for count in range(len(ladder.steps) + 1):
        forms = ladder.forms(count)
        sizes.append(sum(found.bytes(name, forms.get(name)) for name in found.stored))
        losses.append(sum(step.gain for step in ladder.steps[count:]))
    assert sizes == sorted(sizes) and losses == sorted(losses, reverse=True)
    assert losses[0] == pytest.approx(sum(ladder.sensitivity.values()))
    assert sizes[-1] == sum(tensor.data.nbytes for tensor in found.stored.values())


def test_experts_of_a_layer_have_one_form() -> None:
    """They are one tensor where the model is computed, and of several kinds that would be float32."""
    found = Matrices()
    for layer in range(2):
        for expert in range(4):
            name = f"model.layers.{layer}.experts.{expert}.up_proj.weight"
            found.stored[name] = encoded(np.random.default_rng(expert).standard_normal((32, 64)), "float32", name=name)
    ladder = ladder_of(found, divergence)
    assert {len(step.names) for step in ladder.steps} == {4} and len(ladder.first) == 8
    for count in range(len(ladder.steps) + 1):
        forms = ladder.forms(count)
        for layer in range(2):
            assert len({forms.get(f"model.layers.{layer}.experts.{k}.up_proj.weight") for k in range(4)}) == 1


def test_importance_changes_what_is_lost() -> None:
    found = matrices()
    name = "lm_head.weight"
    plain = found.floats(name, WeightForm.of("int4"))
    weighed = matrices()
    weighed.importance = {name: np.where(np.arange(64) % 2, 100.0, 0.01).astype(np.float32)}
    counted = weighed.floats(name, WeightForm.of("int4"))
    exact = found.floats(name)
    odd = [np.square(x - exact)[:, 1::2].sum() for x in (counted, plain)]
    assert odd[0] < 0.97 * odd[1]


@pytest.mark.parametrize("least", [0, 1, 5, 99, 100, None])
def test_the_least_number_of_steps(least: int | None) -> None:
    asked: list[int] = []

    def holds(count: int) -> bool:
        asked.append(count)
        return least is not None and count >= least

    assert least_that_holds(100, holds) == least
    assert len(asked) <= 9
    assert least_that_holds(0, lambda count: True) == 0
