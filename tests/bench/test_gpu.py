"""Models on a GPU beside other engines, as far as there is none."""

import math

import pytest

from bench.__main__ import main
from bench.gpu import GpuStanding, measure, ratio_of, table
from tilewright.runtime.devices import cuda_driver


def test_without_a_gpu_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(cuda_driver, "LIBRARY", "no such library")
    cuda_driver.device.cache_clear()
    assert main(["gpu"]) == 1
    assert "nothing is measured" in capsys.readouterr().out


def test_the_ratio_is_to_the_best_of_the_others():
    ours, torch = GpuStanding("tilewright", 3.0, 1e-7), GpuStanding("PyTorch", 4.0, 0.0)
    assert ratio_of([torch, ours, GpuStanding("ONNX Runtime", failure="no provider")]) == pytest.approx(0.75)
    assert ratio_of([GpuStanding("tilewright", failure="no"), torch]) is None
    assert table({"m": [torch, ours]}).splitlines()[-1] == "| m | tilewright | 3.000 | 1.0e-07 | 0.75 |"


def test_what_no_engine_runs_is_told(monkeypatch):
    def refuse(made):
        raise RuntimeError("there is no GPU\nat all")

    monkeypatch.setattr("bench.gpu._engines", lambda made: {"tilewright": lambda: refuse(made)})
    monkeypatch.setattr("bench.gpu._SIZE", 2)
    (standing,) = measure("matmul_4096_f16", None, 1)
    assert standing.failure == "RuntimeError: there is no GPU" and math.isinf(standing.ms)
