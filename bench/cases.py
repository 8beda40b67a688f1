"""Models with the inputs they are run on and the outputs that are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

INPUT, REFERENCE = "in::", "ref64::"
_SPACE = ("depth", "height", "width")


@dataclass(frozen=True)
class Case:
    """A model; `arrays` is an .npz file of its inputs (`in::NAME`) and its outputs in float64 (`ref64::INDEX`).

    `kind` is the suite it belongs to, `about` one line for people.
    """

    kind: str
    name: str
    model: Path
    arrays: Path
    about: str = ""


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """The inputs by name, and the references in order."""
    with np.load(path) as found:
        inputs = {n.removeprefix(INPUT): found[n] for n in found.files if n.startswith(INPUT)}
        indices = sorted(int(n.removeprefix(REFERENCE)) for n in found.files if n.startswith(REFERENCE))
        return inputs, [found[f"{REFERENCE}{index}"] for index in indices]


def write_arrays(path: Path, inputs: Mapping[str, np.ndarray], references: Sequence[np.ndarray]) -> None:
    """What `read_arrays` reads."""
    named = {f"{INPUT}{name}": array for name, array in inputs.items()}
    named |= {f"{REFERENCE}{index}": array for index, array in enumerate(references)}
    # asarray and not ascontiguousarray, which makes vectors of scalars
    np.savez(path, **{name: np.asarray(array, order="C") for name, array in named.items()})


def names_of_axes(array: np.ndarray) -> dict[int, str]:
    """The axes of an input that are no channels, each with a name: all of integers; of images and sequences of heads
    (rank 4 and more) all but the second; of others all but the last. Inputs of one rank have the same names."""
    rank = array.ndim
    channels = None if array.dtype.kind == "i" else 1 if rank >= 4 else rank - 1
    return {axis: _name(axis, rank) for axis in range(rank) if axis != channels}


def _name(axis: int, rank: int) -> str:
    if axis == 0:
        return "batch"
    return _SPACE[axis - rank] if rank >= 4 and rank - axis <= len(_SPACE) else "length"


def cases_of_folder(folder: Path, names: Sequence[str], kind: str) -> list[Case]:
    """The models NAME.onnx of a folder, with NAME.npz beside them; ValueError names what is missing."""
    cases = [Case(kind, name, folder / f"{name}.onnx", folder / f"{name}.npz") for name in names]
    missing = [str(path) for case in cases for path in (case.model, case.arrays) if not path.exists()]
    if missing:
        raise ValueError(f"there is no {', no '.join(missing)}: make it with `python -m bench zoo NAME`")
    return cases


def relative_error(results: Sequence[np.ndarray], references: Sequence[np.ndarray]) -> float:
    """The largest difference over the largest magnitude of the output it is in; inf for another number of
    elements, and for nan or infinity on one side only. Shapes may differ: some engines drop the batch."""
    if len(results) != len(references):
        return float("inf")
    return max(map(_error_of_output, results, references), default=0.0)


def _error_of_output(result: np.ndarray, reference: np.ndarray) -> float:
    if result.size != reference.size:
        return float("inf")
    given = np.asarray(result).astype(np.float64).ravel()
    exact = reference.astype(np.float64).ravel()
    with np.errstate(invalid="ignore"):
        same = (given == exact) | (np.isnan(given) & np.isnan(exact))
        gap = np.where(same, 0.0, np.abs(given - exact))
    worst = float(np.max(np.nan_to_num(gap, nan=np.inf, posinf=np.inf), initial=0.0))
    scale = float(np.max(np.abs(exact[np.isfinite(exact)]), initial=0.0))
    return worst / scale if scale else worst
