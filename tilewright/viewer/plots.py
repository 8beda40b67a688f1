"""Plots as PNG or SVG files, by matplotlib, which is an extra (`pip install tilewright[plot]`)."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.profiling.records import MachineRates, ModelProfile, Scaling
from tilewright.runtime.errors import OptionError, printable
from tilewright.runtime.storage.files import check_file, check_replaced, replacing

_BEGINS = {".png": (b"\x89PNG",), ".svg": (b"<?xml", b"<svg")}
"""Kinds of files by suffix, and what they begin with."""

_MADE_BY = {".png": "Software", ".svg": "Creator"}
"""Where a file says what made it, by suffix."""

_MAKER = "tilewright"

_SAID_WITHIN = 4096
"""Bytes from the beginning of a file in which it says so."""

_LONGEST_NAME = 40

_NAMED_POINTS = 6
"""Points of a plot that are named: those that matter most."""

_FAR = 2.0
"""Calls that take so many times as long as the slowest of 99 % are beyond the edge, and told in words."""


@dataclass(frozen=True)
class PlottedType:
    """A smaller type for a layer: milliseconds that it saves, the loss that it is predicted to cost, and whether it was
    chosen."""

    layer: str
    kind: str
    saved_ms: float
    drop: float
    is_chosen: bool


def check_plot(path: Path, *, sources: Sequence[Path] = (), force: bool = False) -> None:
    """What can go wrong is said before anything is measured: OptionError where there is no matplotlib, or for another
    suffix; ArtifactError where a file cannot be written, or is no plot of ours."""
    begins = _BEGINS.get(path.suffix.lower())
    if begins is None:
        raise OptionError(f"a plot cannot be written as '{path.name}'", hint="name a file .png or .svg")
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError("plots need matplotlib, which is not installed", hint="pip install 'tilewright[plot]'")
    try:
        importlib.import_module("matplotlib.figure")
    except Exception as error:  # whatever a broken installation raises
        raise OptionError(f"plots need matplotlib, which cannot be imported: {error}",
                          hint="pip install --force-reinstall matplotlib") from error  # fmt: skip

    def is_plot(head: bytes) -> bool:
        return head.startswith(begins) and _is_ours(path)

    check_replaced(path, "a plot", is_plot, sources=sources, force=force)
    check_file(path)


def _is_ours(path: Path) -> bool:
    """Whether a picture says that it was made here: others are not replaced by a plot."""
    with open(path, "rb") as file:
        return _MAKER.encode() in file.read(_SAID_WITHIN)


def plot_latencies(path: Path, title: str, seconds: Mapping[str, Sequence[float]]) -> None:
    """Calls of each engine: all of them as points, the middle 80 % as a line, and the median."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        names = list(seconds)
        every = {name: 1000 * np.asarray(seconds[name], np.float64) for name in names}
        edge = _FAR * max(float(np.percentile(ms, 99)) for ms in every.values())
        for at, ms in enumerate(every.values()):
            low, median, high = np.percentile(ms, (10, 50, 90))
            spread = np.random.default_rng(0).uniform(-0.22, 0.22, ms.size)
            axes.plot(ms, at + spread, ".", color=f"C{at}", alpha=0.25, markersize=4)
            axes.plot([low, high], [at, at], color=f"C{at}", linewidth=3)
            axes.plot([median], [at], "o", color=f"C{at}", markeredgecolor="black")
            axes.annotate(f"{median:.3g} ms", (median, at - 0.24), xytext=(0, 3), textcoords="offset points",
                          ha="center")  # fmt: skip
            if far := int((ms > edge).sum()):
                text = f"{far} beyond, up to {ms.max():.3g} ms"
                axes.annotate(text, (0.99, at), xycoords=("axes fraction", "data"), ha="right", va="center",
                              fontsize="small", color=f"C{at}")  # fmt: skip
        axes.set_yticks(range(len(names)), map(_text, names))
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, min(edge, 1.06 * max(float(ms.max()) for ms in every.values())) or None)
        axes.set_xlabel("milliseconds a call")
        axes.set_title(_text(title))

    _write(path, draw, (7.5, 1.6 + 0.8 * len(seconds)))


def plot_profile(path: Path, profile: ModelProfile) -> None:
    """Kernels beside the roofline of the machine, and how calls scale with threads where that was measured."""

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, 2 if profile.scaling is not None else 1, squeeze=False)[0]
        _roofline(panels[0], profile)
        if profile.scaling is not None:
            _scaling(panels[1], profile.scaling)

    _write(path, draw, (13 if profile.scaling is not None else 7.5, 5))


def plot_trade_off(path: Path, title: str, alternatives: Sequence[PlottedType], most: float) -> None:
    """What each smaller type of a layer saves, and what it costs; those that were chosen are filled."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for at, kind in enumerate(dict.fromkeys(a.kind for a in alternatives)):
            for chosen in (True, False):
                some = [a for a in alternatives if a.kind == kind and a.is_chosen == chosen]
                face = f"C{at}" if chosen else "none"
                label = f"{kind}, {'chosen' if chosen else 'not chosen'}" if some else None
                axes.scatter([a.saved_ms for a in some], [a.drop for a in some], s=36, facecolors=face,
                             edgecolors=f"C{at}", label=label)  # fmt: skip
        chosen_ones = sorted((a for a in alternatives if a.is_chosen), key=lambda a: -a.saved_ms)
        _name_points(axes, "milliseconds saved in a call", [(a.saved_ms, a.drop, a.layer) for a in chosen_ones])
        axes.axhline(most, color="black", linewidth=1, linestyle="--", label="allowed for all of them")
        axes.axvline(0, color="grey", linewidth=0.6)
        _loss_axis(axes, [a.drop for a in alternatives], most)
        axes.set_ylabel("predicted loss of the metric, for this layer alone")
        axes.set_title(_text(title))
        axes.legend(fontsize="small")

    _write(path, draw, (7.5, 5))


def _loss_axis(axes: Any, drops: Sequence[float], most: float) -> None:
    """A logarithmic axis from the least loss that is told apart; it goes through zero only where a loss is zero or
    negative."""
    sizes = [abs(drop) for drop in (*drops, most) if drop] or [1e-9]
    highest = 2 * max(sizes)
    if all(drop > 0 for drop in (*drops, most)):
        axes.set_yscale("log")
        axes.set_ylim(min(sizes) / 2, highest)
    else:
        least = max(min(sizes), max(sizes) / 1e4)
        axes.set_yscale("symlog", linthresh=least)
        axes.set_ylim(min(-least, 2 * min(drops, default=0.0)), highest)


def _name_points(axes: Any, label: str, points: Sequence[tuple[float, float, str]]) -> None:
    """Numbers at the first few points (x, y, name), whose names stand below the label of the x axis: points that
    matter often lie close together."""
    named = points[:_NAMED_POINTS]
    for at, (x, y, _) in enumerate(named, 1):
        axes.annotate(str(at), (x, y), xytext=(5, 3), textcoords="offset points", fontsize="small")
    names = [f"{at}: {_text(name)}" for at, (_, _, name) in enumerate(named, 1)]
    axes.set_xlabel("\n".join((label, *("   ".join(names[at : at + 2]) for at in range(0, len(names), 2)))))


def _roofline(axes: Any, profile: ModelProfile) -> None:
    kernels = [k for k in profile.kernels if k.flops and k.bytes and k.gflops]
    intensity = np.array([(k.flops or 0) / (k.bytes or 1) for k in kernels])
    sizes = [20 + 600 * k.share for k in kernels]
    axes.scatter(intensity, [k.gflops for k in kernels], s=sizes, alpha=0.5, edgecolors="black", linewidths=0.5)
    if profile.machine is not None:
        _roofs(axes, profile.machine, profile.threads, intensity)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylabel("GFLOP/s")
    longest = sorted(kernels, key=lambda k: -k.share)
    points = [((k.flops or 0) / (k.bytes or 1), k.gflops or 0.0, f"{k.kernel}, {100 * k.share:.3g} %") for k in longest]
    _name_points(axes, "operations for each byte", points)
    axes.set_title(f"{_text(profile.model)}: {profile.latency_ms:.4g} ms on {_threads(profile.threads)}")


def _roofs(axes: Any, machine: MachineRates, threads: int, intensity: np.ndarray) -> None:
    low, high = (min(0.1, *intensity), max(100.0, *intensity)) if intensity.size else (0.1, 100.0)
    peaks = {p.dtype: min(p.one * threads, p.every) for p in machine.peaks if p.dtype == "f32"}
    most = max(peaks.values(), default=1.0)
    x = np.geomspace(low, high, 100)
    for at, read in enumerate(machine.reads):
        rate = min(read.one * threads, read.every)
        axes.plot(x, np.minimum(x * rate, most), color=f"C{at + 1}", linewidth=1, label=f"{read.level} {rate:.3g} GB/s")
    for dtype, peak in peaks.items():
        axes.axhline(peak, color="black", linewidth=1, label=f"{dtype} {peak:.3g} GFLOP/s")
    axes.legend(fontsize="small")


def _scaling(axes: Any, scaling: Scaling) -> None:
    threads = np.array([p.threads for p in scaling.points])
    alone = scaling.points[0].median_ms
    axes.plot(threads, [alone / p.median_ms for p in scaling.points], "o", label="measured")
    fitted = 1 / (scaling.serial + (1 - scaling.serial) / threads)
    axes.plot(threads, fitted, "-", label=f"Amdahl's law, serial share {100 * scaling.serial:.3g} %")
    axes.plot(threads, threads, ":", color="grey", label="as many times as threads")
    if scaling.growing:
        grown = [p.threads for p in scaling.growing]
        axes.plot(grown, scaling.scaled, "s--", label=f"{_text(scaling.batch)} grows with the threads")
    axes.set_xticks(threads)
    axes.set_xlabel("threads")
    axes.set_ylabel("speed-up")
    axes.set_title("scaling")
    axes.legend(fontsize="small")


def _write(path: Path, draw: Callable[[Any], None], inches: tuple[float, float]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, layout="constrained")
    draw(figure)
    with replacing(path) as file:
        suffix = path.suffix.lower()
        figure.savefig(file, format=suffix[1:], dpi=150, metadata={_MADE_BY[suffix]: _MAKER})


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count != 1 else ''}"


def _text(text: str) -> str:
    """A name as it is, or its end where it is long: `$` begins a formula otherwise."""
    shown = printable(text)
    shown = shown if len(shown) <= _LONGEST_NAME else f"...{shown[3 - _LONGEST_NAME :]}"
    return shown.replace("$", r"\$")
