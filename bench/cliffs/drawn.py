"""Case k of a seed: a network, an operator, or an architecture of an installed package, of known or unknown sizes.

The same seed and number give the same case where the same packages are installed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import shape_inference

from bench.cases import Case, write_arrays
from bench.cliffs import families, narrow
from bench.cliffs.draft import Draft, TooLarge, Value
from bench.cliffs.networks import NETWORKS
from bench.cliffs.operators import OPERATORS
from bench.ratios import IN_FEW_BITS
from bench.references import by_onnxruntime

KIND, NARROW = "cliffs", f"cliffs {IN_FEW_BITS}"
ATTEMPTS = 200
FAMILIES_AMONG = 0.15
NETWORKS_AMONG = 0.5
UNKNOWN_AMONG = 0.2
NARROW_AMONG = 0.08


def make_case(seed: int, number: int, folder: Path) -> Case:
    """Write the model, its inputs, and what ONNX Runtime computes without optimisations."""
    rng = random.Random(f"{seed}/{number}")
    packages = families.installed()
    if packages and rng.random() < FAMILIES_AMONG:
        with contextlib.suppress(ValueError):
            return _exported(rng.choice(packages), rng, f"{seed}_{number}", folder)
    for attempt in range(ATTEMPTS):
        kind, model, draft = draw(seed, number, attempt)
        case = _case(f"{kind}_{seed}_{number}", folder, describe(draft))
        try:
            if kind.startswith("of_") and rng.random() < NARROW_AMONG:
                form = narrow.narrowed(model, draft.inputs, rng, case.model)
                case = replace(case, kind=NARROW, about=f"{form}, {case.about}")
            else:
                onnx.save(model, case.model)
            return _with_arrays(case, draft.inputs)
        except Exception:  # of classes of its own, where ONNX Runtime refuses what the standard allows
            case.model.unlink(missing_ok=True)
    raise _nothing(seed, number)


def _exported(package: str, rng: random.Random, suffix: str, folder: Path) -> Case:
    path = folder / f"{package}_{suffix}.onnx"
    name, inputs = families.export(package, rng, path)
    sizes = ", ".join("x".join(map(str, array.shape)) for array in inputs.values())
    return _with_arrays(_case(path.stem, folder, f"{name}, {sizes}"), inputs)


def _case(name: str, folder: Path, about: str) -> Case:
    return Case(KIND, name, folder / f"{name}.onnx", folder / f"{name}.npz", about)


def _with_arrays(case: Case, inputs: Mapping[str, np.ndarray]) -> Case:
    write_arrays(case.arrays, inputs, by_onnxruntime(case.model, inputs))
    return case


def draw(seed: int, number: int, first: int = 0) -> tuple[str, onnx.ModelProto, Draft]:
    """The kind, the model and its inputs, drawn from attempt `first` on until the sizes fit each other and the
    limits."""
    for attempt in range(first, first + ATTEMPTS):
        rng = random.Random(f"{seed}/{number}/{attempt}")
        draft = Draft(rng, np.random.default_rng(rng.getrandbits(64)))
        try:
            kind, outputs = _drawn(draft)
        except (TooLarge, ValueError, shape_inference.InferenceError):
            continue
        unknown = draft.may_be_unknown() and rng.random() < UNKNOWN_AMONG
        return f"{kind}{'_unknown' if unknown else ''}", draft.model(outputs, unknown), draft
    raise _nothing(seed, number)


def _nothing(seed: int, number: int) -> ValueError:
    return ValueError(f"case {number} of seed {seed}: nothing that fits was drawn in {ATTEMPTS} attempts")


def _drawn(draft: Draft) -> tuple[str, list[Value]]:
    if draft.rng.random() < NETWORKS_AMONG:
        network = draft.rng.choice(NETWORKS)
        return network.__name__, network(draft)
    operator = draft.rng.choice(OPERATORS)
    return operator.__name__, [operator(draft)]


def describe(draft: Draft) -> str:
    """Inputs and operators, in short."""
    inputs = ", ".join(f"{array.dtype}[{'x'.join(map(str, array.shape))}]" for array in draft.inputs.values())
    ops = [node.op_type for node in draft.nodes]
    return f"{inputs}: {' '.join(ops[:6])}{f' ... {len(ops)} nodes' if len(ops) > 6 else ''}"
