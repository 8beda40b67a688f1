"""Models on a GPU beside other engines, as far as there is none."""

import math
from pathlib import Path

import pytest

from bench import gpu_code
from bench.__main__ import main
from bench.gpu import GpuStanding, measure, ratio_of, table
from tests.machines.test_webgpu import model
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

SAID = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k0_0' for 'sm_90'
ptxas info    : Function properties for k0_0
    8 bytes stack frame, 16 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 8 bytes cumulative stack size, 16384 bytes smem
ptxas info    : Function properties for k0_1
    0 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers
"""


def test_what_ptxas_says_of_kernels_is_read() -> None:
    assert gpu_code.numbers_of(SAID) == (128, 20, 8, 16384)
    assert gpu_code.numbers_of("") == (0, 0, 0, 0)


def test_a_row_tells_of_all_kernels_of_a_model(tmp_path: Path) -> None:
    """With an assembler that says the same of each."""
    ptxas = tmp_path / "ptxas"
    ptxas.write_text("#!/bin/sh\ngrep -q '.target sm_90' \"$3\" && echo 'Used 32 registers' >&2\n")
    ptxas.chmod(0o755)
    text = "g (float[n] x) => (float[n] y) { y = Exp(x) }"
    found = gpu_code.code_of(model(text), "cuda,sm_90", str(ptxas))
    assert found == gpu_code.CodeOfGpu(kernels=1, launches=1, registers=32, spilled=0, stack=0, shared=0)
    assert found.row("exp") == "| exp | 1 | 1 | 32 | 0 | 0 | 0 |"
