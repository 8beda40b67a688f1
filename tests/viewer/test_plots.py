"""Plots: files of both kinds with what was measured, and what is said where they cannot be made."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.models import mlp, written
from tilewright.cli.app import commands
from tilewright.profiling.records import (
    KernelProfile,
    MachineRates,
    ModelProfile,
    PeakRate,
    ReadRate,
    Scaling,
    ScalingPoint,
)
from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.viewer.plots import PlottedType, check_plot, plot_latencies, plot_profile, plot_trade_off

needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")


def profiled() -> ModelProfile:
    """Two kernels, of which one moves nothing that is known, and calls on one and two threads."""
    rates = MachineRates({"cpu": "x"}, 2, (PeakRate("f32", "", 50, 90),), (ReadRate("L2", 1 << 20, 60, 120),), "")
    kernels = (
        KernelProfile("k0", ("a",), "m", 1, 0.9, 1.0, 0.9, flops=10_000_000, bytes=1_000_000, gflops=10.0),
        KernelProfile("k1", (), "", 1, 0.1, 0.1, 0.1),
    )
    points = (ScalingPoint(1, 2.0), ScalingPoint(2, 1.1))
    scaling = Scaling(points, 0.1, 10.0, "batch $x$", (ScalingPoint(1, 2.0, 1), ScalingPoint(2, 2.1, 2)), (1.0, 1.9))
    return ModelProfile("net $1$", 2, {}, "", 3, 1.2, 1.1, 1.1, kernels, (), rates, scaling)


@needs_matplotlib
def test_files_of_both_kinds(tmp_path: Path) -> None:
    plot_latencies(tmp_path / "calls.png", "net $1$ \x1b[31m", {"tilewright": [0.001, 0.002], "$other": [0.003]})
    plot_profile(tmp_path / "profile.svg", profiled())
    some = [PlottedType("a", "int8", 0.2, 0.001, True), PlottedType("b", "int8", -0.1, 0.0, False)]
    plot_trade_off(tmp_path / "kinds.svg", "top1", some, 0.01)
    assert (tmp_path / "calls.png").read_bytes().startswith(b"\x89PNG")
    profile, kinds = ((tmp_path / name).read_text() for name in ("profile.svg", "kinds.svg"))
    assert "Amdahl's law, serial share 10 %" in profile and "net $1$: 1.2 ms on 2 threads" in profile
    assert "int8, not chosen" in kinds
    for name in ("calls.png", "kinds.svg"):
        check_plot(tmp_path / name)  # may be replaced by another
    (tmp_path / "logo.png").write_bytes((tmp_path / "calls.png").read_bytes().replace(b"tilewright", b"GIMP 3.0.2"))
    with pytest.raises(ArtifactError, match="is not a plot"):
        check_plot(tmp_path / "logo.png")
    check_plot(tmp_path / "logo.png", force=True)


@needs_matplotlib
def test_bench_plots_its_calls(tmp_path: Path) -> None:
    model, plot = written(mlp(), tmp_path, "mlp"), tmp_path / "calls.svg"
    arguments = ["bench", str(model), "--rounds", "1", "--turn", "0.01", "--plot"]
    done = CliRunner().invoke(commands, [*arguments, str(plot)])
    assert done.exit_code == 0, done.output
    assert "milliseconds a call" in plot.read_text()


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = written(mlp(), tmp_path, "mlp")
    done = CliRunner().invoke(commands, ["bench", str(model), "--plot", str(tmp_path / "calls.pdf")])
    assert done.exit_code == 2 and ".png or .svg" in done.output
    (tmp_path / "page.svg").write_text("<html>")
    if importlib.util.find_spec("matplotlib") is not None:
        with pytest.raises(ArtifactError, match="is not a plot"):
            check_plot(tmp_path / "page.svg")
    monkeypatch.setattr("tilewright.viewer.plots.importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="matplotlib") as caught:
        check_plot(tmp_path / "calls.png")
    assert "tilewright[plot]" in str(caught.value)
