"""The best recipe for a unit and a kind: the one whose layers compute what is closest to float32 on sampled rows.

Papers on these methods choose by the same error, layer by layer; the whole model judges only what was chosen.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.quantization.forms import Form, Former, Recipe
from tilewright.quantization.methods.ranges import METHODS
from tilewright.quantization.methods.smooth import SHARES
from tilewright.quantization.network import LayerGroup


def first_recipe(kind: str, calibration: str) -> Recipe:
    """The plain one."""
    return Recipe(kind, "min-max" if calibration == "auto" else calibration)


def recipes_of(unit: LayerGroup, kind: str, calibration: str) -> list[Recipe]:
    """Of ranges and smoothing."""
    if kind != "int8" or calibration != "auto":
        return [first_recipe(kind, calibration)]
    found = [Recipe(kind, method) for method in METHODS]
    if unit.layers[0].windows is None:
        found += [Recipe(kind, "min-max", smooth=share) for share in SHARES]
    return found


def best_form(former: Former, unit: LayerGroup, kind: str, calibration: str) -> Form:
    """The form of the least error: first of all ranges, then of biases and rounding with these. The former holds the
    inputs of the unit, unless it is one of bfloat16."""
    if kind == "bf16":
        return former.form(unit, first_recipe(kind, calibration))
    forms = [former.form(unit, recipe) for recipe in recipes_of(unit, kind, calibration)]
    best = _least(former, unit, forms)
    rounded = [
        former.form(unit, replace(best.recipe, correct=correct, reconstruct=reconstruct))
        for correct, reconstruct in ((True, False), (False, True), (True, True))
    ]
    return _least(former, unit, [best, *rounded])


def _least(former: Former, unit: LayerGroup, forms: list[Form]) -> Form:
    return min(forms, key=lambda form: former.error(unit, form))
