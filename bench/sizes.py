"""One artefact for all sizes beside one that knows them: which dims of a model may be symbolic, and what that costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

import tilewright
from bench.cases import Case, names_of_axes, read_arrays
from bench.ratios import geometric_mean
from tilewright.frontends.onnx.load import load_onnx
from tilewright.graph.assumptions import assumptions
from tilewright.runtime.errors import TilewrightError
from tilewright.session import Session

KNOWN, BATCH, ALL = "known", "batch", "all"
"""Variants of a model: the dims of its inputs known, their first axes symbolic, and all axes that may be."""

Arrays = Mapping[str, np.ndarray]
Shapes = Mapping[str, tuple[int | str, ...]]


@dataclass(frozen=True)
class Symbolic:
    """The shapes of the inputs of a model with all dims symbolic that may be, those with symbolic first axes alone
    (None where they may not be), and for each dim that must be known the reason."""

    shapes: Shapes
    batch: Shapes | None
    refused: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A model with a number of threads: of each variant milliseconds of a call and of compiling; what was refused."""

    model: str
    threads: int
    ms: Mapping[str, float]
    compile_ms: Mapping[str, float]
    kernels: Mapping[str, int]
    dims: str = ""
    refused: tuple[str, ...] = field(default=())

    def ratio(self, variant: str) -> float | None:
        """The time of a variant in that of the known dims; None where it was not measured."""
        return self.ms[variant] / self.ms[KNOWN] if variant in self.ms and KNOWN in self.ms else None


def symbolic_dims(arrays: Arrays, refuses: Callable[[Shapes, str], str | None]) -> Symbolic:
    """Make one dim after the other symbolic, in all inputs that have it, or else in the first one of these;
    `refuses` says why a model does not take other sizes of the dim that is named last."""
    names = {name: names_of_axes(array) for name, array in arrays.items()}
    chosen: dict[str, dict[int, str]] = {name: {} for name in arrays}
    batch: Shapes | None = None
    refused: list[str] = []
    for dim in dict.fromkeys(dim for found in names.values() for dim in found.values()):
        owners = [name for name, found in names.items() if dim in found.values()]
        reason: str | None = None
        for some in (owners, owners[:1]):
            tried = {
                name: found
                | {axis: text for axis, text in names[name].items() if text == dim and name in some}
                for name, found in chosen.items()
            }
            reason = refuses(_shapes(arrays, tried), dim)
            if reason is None:
                chosen = tried
                break
        if reason is not None:
            refused.append(f"{dim}: {reason}")
        elif dim == "batch":
            batch = _shapes(arrays, chosen)
    return Symbolic(_shapes(arrays, chosen), batch, tuple(refused))


def _shapes(arrays: Arrays, names: Mapping[str, Mapping[int, str]]) -> Shapes:
    return {
        name: tuple(names[name].get(axis, size) for axis, size in enumerate(array.shape))
        for name, array in arrays.items()
    }


def measure(case: Case, threads: Sequence[int], rounds: int, least_s: float, session: Session) -> list[Row]:
    """A row for each number of threads; without rounds the models are only compiled."""
    arrays, _ = read_arrays(case.arrays)
    found = symbolic_dims(arrays, lambda shapes, dim: why_not(case.model, arrays, shapes, dim))
    variants = {KNOWN: _shapes(arrays, {name: {} for name in arrays}), BATCH: found.batch, ALL: found.shapes}
    if found.batch is None or found.batch == found.shapes:
        del variants[BATCH]
    return [_row(case, arrays, variants, found, number, rounds, least_s, session) for number in threads]


def _row(
    case: Case, arrays: Arrays, variants: Mapping[str, Shapes | None], found: Symbolic,
    threads: int, rounds: int, least_s: float, session: Session,
) -> Row:  # fmt: skip
    models: dict[str, tilewright.Model] = {}
    refused = list(found.refused)
    for variant, shapes in variants.items():
        try:
            models[variant] = tilewright.compile(case.model, threads=threads, shapes=shapes, session=session)
        except TilewrightError as error:
            refused.append(f"{variant}: {error.what}")
    reports = {variant: model.report() for variant, model in models.items()}
    values = list(arrays.values())
    return Row(
        case.name,
        threads,
        best_times({v: lambda m=model: m(*values) for v, model in models.items()}, rounds, least_s),
        {variant: sum(data.compile_ms.values()) for variant, data in reports.items()},
        {variant: data.distinct_kernels for variant, data in reports.items()},
        _text(found.shapes),
        tuple(refused),
    )


def best_times(calls: Mapping[str, Callable[[], object]], rounds: int, least_s: float) -> dict[str, float]:
    """The least milliseconds of a call, in turns of `least_s` seconds whose order rotates; none without rounds."""
    best: dict[str, float] = {}
    names = list(calls)
    for number in range(rounds):
        for name in [*names[number % len(names) :], *names[: number % len(names)]]:
            calls[name]()  # what another one evicted from the caches comes back
            end = time.perf_counter() + least_s
            while (start := time.perf_counter()) < end:
                calls[name]()
                best[name] = min(best.get(name, np.inf), 1000 * (time.perf_counter() - start))
    return best


def why_not(model: Path, arrays: Arrays, shapes: Shapes, dim: str) -> str | None:
    """Why the model cannot be read with such shapes, or takes no inputs of twice their size along `dim`; None where it
    does."""
    sizes = {
        name: size * (2 if name == dim else 1)
        for key, array in arrays.items()
        for name, size in zip(shapes[key], array.shape, strict=True)
        if isinstance(name, str)
    }
    try:
        found = assumptions(load_onnx(model, shapes=shapes))
    except TilewrightError as error:
        return " ".join(str(error).split())
    return next((made.message for made in found if not made.holds.evaluate(sizes)), None)


def _text(shapes: Shapes) -> str:
    return "; ".join(dict.fromkeys("x".join(map(str, shape)) for shape in shapes.values()))


_HEADS = (
    "model", "threads", "known, ms", "batch, ms", "all, ms", "batch / known", "all / known", "compile: known, s",
    "batch, s", "all, s", "kernels: known", "all", "dims",
)  # fmt: skip


def table(rows: Iterable[Row]) -> str:
    """The rows as Markdown, the slowest first; means, medians and the worst; and what was refused."""
    found = sorted(rows, key=lambda row: row.ratio(ALL) or 0, reverse=True)
    lines = [
        f"| {' | '.join(_HEADS)} |",
        f"|---|{'---:|' * (len(_HEADS) - 2)}---|",
        *map(_line, found),
    ]
    for threads in sorted({row.threads for row in found}):
        for variant in (BATCH, ALL):
            own = [row for row in found if row.threads == threads]
            ratios = [ratio for row in own if (ratio := row.ratio(variant)) is not None]
            if mean := geometric_mean(ratios):
                lines.append(
                    f"{threads} threads, {variant} / known, {len(ratios)} models: geometric mean {mean:.3f}, "
                    f"median {median(ratios):.3f}, worst {max(ratios):.3f}"
                )
    refused = dict.fromkeys(f"{row.model}: {text}" for row in found for text in row.refused)
    return "\n".join([*lines, *refused])


def _line(row: Row) -> str:
    def cells(values: Mapping[str, float], digits: int, scale: float = 1) -> list[str]:
        return [f"{scale * values[v]:.{digits}f}" if v in values else "" for v in (KNOWN, BATCH, ALL)]

    ratios = [f"{ratio:.3f}" if ratio else "" for ratio in map(row.ratio, (BATCH, ALL))]
    known, _, symbolic = cells(row.kernels, 0)
    parts = [row.model, str(row.threads), *cells(row.ms, 3), *ratios, *cells(row.compile_ms, 2, 1e-3)]
    return f"| {' | '.join([*parts, known, symbolic, row.dims])} |"
