"""Every command on a small model: what it writes, and that its numbers are right."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests import models
from tilewright.cli.app import COMMANDS, commands
from tilewright.cli.commands.explain import trees
from tilewright.cli.inputs.specs import dtype_of, make_inputs
from tilewright.runtime import TensorInfo
from tilewright.runtime.errors import Remark, RemarkKind
from tilewright.runtime.values.recorded import read_input


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def succeed(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return models.written(models.mlp(), tmp_path, "mlp")


def test_compile_then_run_gives_the_models_numbers(mlp: Path, tmp_path: Path) -> None:
    said = succeed("compile", mlp, "-o", tmp_path / "m.tw")
    assert "m.tw" in said and "kernels" in said
    x = np.random.default_rng(1).standard_normal((5, models.FEATURES)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    said = succeed(
        "run", tmp_path / "m.tw", "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path / "out"
    )
    assert "float32[5, 32]" in said
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), models.mlp_expected(x), rtol=1e-5)


def test_compile_writes_beside_the_model(mlp: Path) -> None:
    succeed("compile", mlp, "--report")
    assert mlp.with_suffix(".tw").exists()


def test_compile_for_another_machine(mlp: Path, tmp_path: Path) -> None:
    other = "neoverse-n1" if platform.machine() == "x86_64" else "x86-64-v3"
    succeed("compile", mlp, "-o", tmp_path / "other.tw", "--target", other)
    result = call("run", tmp_path / "other.tw", "--input", "random")
    assert result.exit_code == 1 and "this machine is" in result.output


def test_run_makes_random_inputs_of_the_dims_told(mlp: Path) -> None:
    assert "float32[7, 32]" in succeed("run", mlp, "--input", "random", "--dim", "batch=7")
    assert "float32[1, 32]" in succeed("run", mlp, "--input", "x=zeros")


def test_compile_fixes_dims(mlp: Path, tmp_path: Path) -> None:
    succeed("compile", mlp, "-o", tmp_path / "m.tw", "--shape", "x=3,64")
    assert "float32[3, 32]" in succeed("run", tmp_path / "m.tw", "--input", "random")


def test_run_writes_outputs_whose_names_are_paths(mlp: Path, tmp_path: Path) -> None:
    model = models.mlp()
    model.graph.node[-1].output[0] = model.graph.output[0].name = "../../y/0"
    path = models.written(model, tmp_path, "path")
    succeed("run", path, "--input", "random", "--output", tmp_path / "deep" / "out")
    assert [p.name for p in (tmp_path / "deep" / "out").iterdir()] == ["y_0.npy"]


def test_bench_prints_ours_and_the_peer(mlp: Path) -> None:
    pytest.importorskip("onnxruntime")
    said = succeed("bench", mlp, "--vs", "onnxruntime", "--rounds", 2, "--turn", 0.001, "--threads", 1)
    rows = [
        line.split() for line in said.splitlines() if line.split()[:1] in (["tilewright"], ["onnxruntime"])
    ]
    assert [row[0] for row in rows] == ["tilewright", "onnxruntime"]
    assert rows[0][-1] == "1.00"
    assert float(rows[1][-1]) < 1e-5  # the outputs agree


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the cycle counter")
def test_bench_times_each_kernel(mlp: Path) -> None:
    said = succeed("bench", mlp, "--kernels", "--dim", "batch=3", "--rounds", 2, "--threads", 1)
    rows = [line.split() for line in said.splitlines()]
    assert sorted(row[1] for row in rows if row and row[0].startswith("k")) == [
        "dense",
        "node",
        "probabilities",
    ]


def test_bench_of_kernels_is_for_x86_and_for_ours_alone(mlp: Path) -> None:
    result = call("bench", mlp, "--kernels", "--target", "neoverse-n1", "--no-cache")
    assert result.exit_code == 2 and "cycle counter" in result.output
    result = call("bench", mlp, "--kernels", "--vs", "onnxruntime")
    assert result.exit_code == 2 and "leave out --vs" in result.output


def test_bench_says_what_is_missing(mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    result = call("bench", mlp, "--vs", "openvino", "--rounds", 1)
    assert result.exit_code == 2
    assert "openvino is not installed" in result.output and "pip install" in result.output


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "int2", "uint2", "int4", "uint8", "int64", "float16", "bfloat16", "float8_e5m2"),
        *("float8_e8m0fnu", "float4_e2m1fn"),
    ],
)
def test_random_inputs_have_the_type_and_stay_finite(dtype: str) -> None:
    infos = [TensorInfo("x", dtype, (2, "n")), TensorInfo("s", dtype, ())]
    made = make_inputs(infos, ["random"], {"n": 50})
    assert made["x"].shape == (2, 50) and made["s"].shape == ()
    for array in made.values():
        assert array.dtype.name == dtype
        assert np.isfinite(array.astype(np.float64)).all()
    assert np.unique(made["x"].astype(np.float64)).size > 1


def test_files_of_types_that_numpy_does_not_know_are_read(tmp_path: Path) -> None:
    array = np.arange(4).astype(dtype_of(TensorInfo("x", "bfloat16", (4,))))
    np.save(tmp_path / "x.npy", array)
    found = read_input(tmp_path / "x.npy", TensorInfo("x", "bfloat16", (4,)))
    assert found.dtype.name == "bfloat16" and found.astype(np.float64).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("level", "text"),
    [
        ("import", "matmul(x, w)"),
        ("graph", "fused("),
        ("loops", "vector {"),
        ("llvm", "define "),
        ("asm", "; at least"),
    ],
)
def test_show_prints_each_level(mlp: Path, level: str, text: str) -> None:
    assert text in succeed("show", mlp, "--level", level)


def test_show_prints_one_kernel(mlp: Path) -> None:
    said = succeed("show", mlp, "--level", "loops", "--kernel", "k1")
    assert re.findall(r"^kernel @(\w+?)_", said, re.MULTILINE) == ["k1"]
    result = call("show", mlp, "--level", "loops", "--kernel", "k99")
    assert result.exit_code == 2 and "the kernels are: k0_" in result.output


def test_explain_groups_reasons(mlp: Path) -> None:
    said = succeed("explain", mlp, "--all")
    assert "kernels" in said and "fuse" in said
    assert "numerics are default: denormal numbers count as zero" in said
    said = succeed("explain", mlp, "--numerics", "strict")
    assert "numerics are strict: denormal numbers as the calling thread's modes say" in said


def test_explain_shows_what_failed_first_and_what_was_done_on_demand() -> None:
    kinds: dict[RemarkKind, str] = {
        "missed": "a reason", "applied": "one kernel", "failed": "a defect", "analysis": "a fact",
    }  # fmt: skip
    remarks = [Remark("fuse", "add", text, kind) for kind, text in kinds.items()]

    def shown(everything: bool) -> list[str]:
        (tree,) = trees([remarks[0], *remarks], everything)
        return [str(branch.label) for branch in tree.children]

    assert shown(False) == ["failed: a defect", "not done: a reason"]
    assert shown(True) == ["failed: a defect", "not done: a reason", "one kernel", "a fact"]
    remarks = [Remark("fuse", f"kernel {k}", f"reason {k // 4}", "missed") for k in range(28)]
    remarks.append(Remark("fuse", "add", "a defect", "failed"))
    assert shown(True) == ["failed: a defect", *(f"not done: reason {k}" for k in range(7))]
    assert shown(False) == [*shown(True)[:6], "[dim]and 2 more reasons (--all lists them)"]
    (tree,) = trees(remarks, False)
    said = [str(branch.label) for branch in tree.children[2].children]
    assert said == [*(f"[dim]kernel {k}" for k in (4, 5, 6)), "[dim]and 1 more (--all lists them)"]


def test_opt_runs_passes_on_what_show_prints(mlp: Path, tmp_path: Path) -> None:
    text = tmp_path / "mlp.txt"
    text.write_text(succeed("show", mlp, "--level", "import"))
    assert "fused(" not in text.read_text()
    said = succeed("opt", "--passes", "canonicalize,fuse{max_ops=8}", text)
    assert said.count("fused(") == 2
    assert "fuse" in succeed("opt", "--list")


def test_opt_without_passes_is_the_identity(mlp: Path, tmp_path: Path) -> None:
    text = tmp_path / "mlp.txt"
    text.write_text(succeed("show", mlp, "--level", "graph"))
    assert succeed("opt", text) == text.read_text()


def test_info_names_the_machine() -> None:
    said = succeed("info")
    for name in ("CPU", "caches", "threads", "LLVM", "compiled models"):
        assert name in said


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_an_example(name: str) -> None:
    assert f"tilewright {name}" in succeed(name, "--help")


def test_the_installed_command_answers() -> None:
    command = [sys.executable, "-m", "tilewright", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and "0.1" in result.stdout


def test_without_click_the_command_says_how_to_install_it() -> None:
    program = "import sys; sys.modules['click'] = None; from tilewright.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1 and "pip install 'tilewright[cli]'" in result.stderr
