"""Which form each matrix of a language model takes: the smallest of all that keeps a promise, as far as a text tells.

All matrices begin in the smallest form. What a step of one matrix to its next form costs is known (bytes), and what it
brings is estimated: divergences grow with the squares of errors, and those of matrices add up. So the divergence of a
layer alone in the smallest form, and that of all matrices of a role (`q_proj`, `down_proj`) alone, give that of each
matrix, and the squares of what rounding changes in it that of other forms. Steps are ordered by what they bring for a
byte; each number of them is one choice. How many are needed is measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontends.weights.forms import WeightForm
from tilewright.frontends.weights.layout import BlockLayout, PlainLayout
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.quantization.decoders.probe import Matrices

LADDER = tuple(WeightForm.of(text) for text in ("int4", "int4:min", "int8", "bfloat16", "float32"))
"""Forms from the smallest on. What a matrix is stored in is the last step of each, and is never left for one with more
bytes."""

Forms = dict[str, WeightForm]
"""By names of matrices; those that are left out stay as they are stored."""


@dataclass(frozen=True)
class FormStep:
    """Matrices take another form (None: they stay as they are stored), which costs bytes and brings this estimated part
    of the divergence back."""

    names: tuple[str, ...]
    form: WeightForm | None
    bytes: int
    gain: float


@dataclass(frozen=True)
class Ladder:
    """The choices of a model: the first, and what becomes of it step by step; after all steps everything is as it is
    stored. `sensitivity` is the estimated divergence that a matrix alone causes in its first form."""

    first: Mapping[str, WeightForm]
    steps: Sequence[FormStep]
    sensitivity: Mapping[str, float]

    def forms(self, count: int) -> Forms:
        """After so many steps."""
        found = dict(self.first)
        for step in self.steps[:count]:
            for name in step.names:
                if step.form is None:
                    del found[name]
                else:
                    found[name] = step.form
        return found


def rungs(matrices: Matrices, name: str, ladder: Sequence[WeightForm] = LADDER) -> list[WeightForm | None]:
    """The forms that a matrix may take, each with more bytes than those before; None, as it is stored, is the last."""
    stored = matrices.stored[name]
    fewer = (form for form in ladder if form.bits < bits_of(stored))
    return [*(form for form in fewer if matrices.bytes(name, form) < stored.data.nbytes), None]


def bits_of(stored: StoredTensor) -> int:
    """Of an element, without scales."""
    layout = stored.kind.layout
    assert isinstance(layout, BlockLayout | PlainLayout)
    return layout.codes.bits if isinstance(layout, BlockLayout) else layout.dtype.bits


def ladder_of(
    matrices: Matrices, divergence: Callable[[Forms], float], ladder: Sequence[WeightForm] = LADDER
) -> Ladder:
    """The choices of a model, whose `divergence` from what is stored can be measured for any forms."""
    found = units(matrices, ladder)
    first = {name: forms[0] for names, forms in found.items() for name in names if forms[0] is not None}
    shares = sensitivities(first, divergence)
    steps: list[FormStep] = []
    for names, forms in found.items():
        steps += _steps(matrices, names, forms, math.fsum(shares[name] for name in names))
    return Ladder(first, sorted(steps, key=lambda step: -step.gain / max(step.bytes, 1)), shares)


def units(
    matrices: Matrices, ladder: Sequence[WeightForm] = LADDER
) -> dict[tuple[str, ...], Sequence[WeightForm | None]]:
    """Matrices that share a form, as they are one where the model is computed (the experts of a layer), with the forms
    that all of them may take; those with a single one are left out."""
    members: dict[tuple[int | str, str], list[str]] = {}
    for name in matrices.stored:
        layer, role = place_of(name)
        members.setdefault((name if layer is None else layer, role), []).append(name)
    found: dict[tuple[str, ...], Sequence[WeightForm | None]] = {}
    for names in members.values():
        forms = min((rungs(matrices, name, ladder) for name in names), key=len)
        if len(forms) > 1:
            found[tuple(names)] = forms
    return found


def sensitivities(forms: Mapping[str, WeightForm], divergence: Callable[[Forms], float]) -> dict[str, float]:
    """The estimated divergence that each of these matrices alone would cause."""
    places = {name: place_of(name) for name in forms}
    found: dict[object, float] = {}
    for group in dict.fromkeys(key for place in places.values() for key in place if key is not None):
        found[group] = divergence({name: form for name, form in forms.items() if group in places[name]})
    roles = {role for layer, role in places.values() if layer is not None}
    whole = sum(found[role] for role in roles)
    shares: dict[str, float] = {}
    for name, (layer, role) in places.items():
        if layer is None:
            shares[name] = found[role]
        else:
            members = sum(place == (layer, role) for place in places.values())
            shares[name] = found[layer] * found[role] / (whole or 1.0) / members
    return shares


def place_of(name: str) -> tuple[int | None, str]:
    """The layer of a matrix, None where it is in none, and its role: its name without numbers."""
    number = re.search(r"\.(\d+)\.", name)
    return (int(number.group(1)) if number else None), re.sub(r"\.\d+(?=\.)", ".*", name)


def _steps(
    matrices: Matrices, names: tuple[str, ...], forms: Sequence[WeightForm | None], share: float
) -> list[FormStep]:
    """Of one unit. A step that brings less for a byte than the one behind it is taken with that."""
    losses = [math.fsum(_loss(matrices, name, form) for name in names) for form in forms]
    sizes = [sum(matrices.bytes(name, form) for name in names) for form in forms]
    unit = share / losses[0] if losses[0] > 0 else 0.0
    steps: list[FormStep] = []
    place = 0
    while place + 1 < len(forms):
        later = range(place + 1, len(forms))
        best = max(later, key=lambda k: ((losses[place] - losses[k]) / (sizes[k] - sizes[place]), k))
        gain = unit * (losses[place] - losses[best])
        steps.append(FormStep(names, forms[best], sizes[best] - sizes[place], gain))
        place = best
    return steps


def _loss(matrices: Matrices, name: str, form: WeightForm | None) -> float:
    """The sum of squares of what rounding changes, those of a column times its importance."""
    if form is None:
        return 0.0
    difference, importance = matrices.floats(name, form) - matrices.floats(name), matrices.importance.get(name)
    columns = np.einsum("ij,ij->j", difference, difference)
    return float(columns.sum() if importance is None else columns @ importance)


def least_that_holds(count: int, holds: Callable[[int], bool]) -> int | None:
    """The least number from 0 to `count` for which something holds that holds for all greater ones, too, by about
    log2(count) questions; None where it does not even for `count`."""
    if not holds(count):
        return None
    low, high = -1, count  # it does not hold for low, and holds for high
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
