"""Stages and kernels of a compilation as files, and kernels from files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright
from tests import models
from tilewright.api import compile_artifact
from tilewright.cli.app import commands
from tilewright.interventions import kernels_near
from tilewright.ir.diag import TextError
from tilewright.ir.text import parse_module
from tilewright.loops.kernel_info import KernelInfo, parse_kernel
from tilewright.loops.storage.packing import Packing
from tilewright.options import Options
from tilewright.program.memory.storage import Place
from tilewright.runtime.errors import OptionError

SHAPES = {"x": [3, models.FEATURES]}
X = np.linspace(-1, 1, 3 * models.FEATURES, dtype=np.float32).reshape(3, -1)


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model of two kernels."""
    folder = tmp_path_factory.mktemp("dump") / "of" / "mlp"
    tilewright.compile(models.mlp(), threads=1, dump=folder, shapes=SHAPES)
    return folder


def kernel(folder: Path, number: str, suffix: str) -> Path:
    (path,) = (folder / "kernels").glob(f"{number}_*{suffix}")
    return path


def at_start(code: str, *lines: str) -> str:
    """LLVM IR with lines at the start of its first function."""
    head, entry, rest = code.partition("entry:\n")
    return "".join([head, entry, *(f"  {line}\n" for line in lines), rest])


def overridden(**files: Path) -> np.ndarray:
    (y,) = tilewright.compile(models.mlp(), threads=1, cache=False, override=files, shapes=SHAPES)(X)
    return y


def test_each_pass_and_stage_is_a_file_that_can_be_read(dumped: Path) -> None:
    texts = sorted(path for path in dumped.glob("*.txt") if not path.name.endswith(".remarks.txt"))
    names = [path.stem.partition("-")[2] for path in texts]
    assert [int(path.name[:3]) for path in texts] == list(range(len(texts))) and len(texts) > 20
    assert [n for n in names if n in ("parts", "graph", "fuse", "fused", "scheduled", "planned", "program")] == [
        "parts", "graph", "fuse", "fused", "scheduled", "planned", "program",
    ]  # fmt: skip
    for path in texts:
        module = parse_module(
            path.read_text(), records={"Packing": Packing, "Place": Place}, infos={"loops": KernelInfo}
        )
        assert module.main.body.ops
    (remarks,) = dumped.glob("*-fuse.remarks.txt")
    assert "[fuse]" in remarks.read_text()
    for path in (dumped / "kernels").glob("*.loops"):
        assert parse_kernel(path.read_text()).name == path.stem and path.with_suffix(".ll").exists()


def test_kernels_come_from_files(dumped: Path, tmp_path: Path) -> None:
    """The same loops give the same, others what they compute; code that is given as LLVM IR likewise."""
    loops, code = kernel(dumped, "k1", ".loops"), kernel(dumped, "k0", ".ll")
    expected = models.mlp_expected(X)
    np.testing.assert_allclose(overridden(k1=loops, k0=code), expected, rtol=1e-5)
    changed = tmp_path / "negated.loops"
    changed.write_text(kernel(dumped, "k0", ".loops").read_text().replace("max(", "min("))
    negated = overridden(k0=changed)
    hidden = np.minimum(X.astype(np.float64) @ models.mlp_parameters()[0] + models.mlp_parameters()[1], 0)
    powers = np.exp(hidden - hidden.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(negated, powers / powers.sum(axis=-1, keepdims=True), rtol=1e-5)


def test_files_that_do_not_fit_are_told_with_the_place(dumped: Path, tmp_path: Path) -> None:
    loops, code = kernel(dumped, "k1", ".loops").read_text(), kernel(dumped, "k1", ".ll").read_text()
    lines = loops.splitlines()
    first = next(n for n, line in enumerate(lines) if " for " in line)
    cases = {
        "syntax.loops": (loops.replace(" in ", " of ", 1), f"syntax.loops:{first + 1}:"),
        "unknown.loops": (loops.replace("_lanes[", "_lane[", 1), "unknown.loops:"),
        "other.loops": (kernel(dumped, "k0", ".loops").read_text(), "the arguments of @k1_"),
        "graph.loops": (next(dumped.glob("*-parts.txt")).read_text(), "@main is no kernel"),
        "bytes.loops": (loops.replace("f32[3, 32]", "f64[3, 32]"), "bytes.loops"),
        "syntax.ll": (code.replace("define ", "defin ", 1), "syntax.ll:"),
        "none.ll": ("", "defines no function"),
        "cycle.ll": (at_start(code, "%a = add i64 %b, 1", "%b = add i64 %a, 1"), "LLVM's verifier refuses the text"),
        "convention.ll": (code.replace("define void @k1", "define cc 9999 void @k1"), "LLVM makes no code"),
        "fast.ll": (code.replace("define void @k1", "define fastcc void @k1"), "is fastcc void ("),
        "asm.ll": (at_start(code, 'call void asm sideeffect "no instruction", ""()'), "LLVM makes no code"),
        "second.ll": (f"{code}\ndefine void @tw_run() {{\n  ret void\n}}\n", "defines @tw_run for others"),
        "missing.ll": (
            at_start(code, "call void @not_there()") + "\ndeclare void @not_there()\n", "calls @not_there, which",
        ),
        "other.ll": (code.replace("ptr %state", "i64 %state", 1), "other.ll"),
    }
    for name, (text, said) in cases.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(TextError) as caught:
            overridden(k1=tmp_path / name)
        assert said in str(caught.value), name


def test_stages_of_an_earlier_dump_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    kept = ["notes.txt", "20-fuse.txt", "2024-report.csv", "kernels/k9_mine.loops"]
    (tmp_path / "kernels").mkdir()
    for name in (*kept, "900-fuse.txt", "900-fuse.remarks.txt"):
        (tmp_path / name).write_text("before")
    compile_artifact(models.mlp(), options=Options(target="c", dump=tmp_path), shapes=SHAPES)
    assert all((tmp_path / name).read_text() == "before" for name in kept)
    assert not [*tmp_path.glob("900-*")] and [*tmp_path.glob("000-*.txt")]


def test_kernels_for_c_are_c(tmp_path: Path) -> None:
    compile_artifact(models.mlp(), options=Options(target="c", dump=tmp_path), shapes=SHAPES)
    assert {path.suffix for path in (tmp_path / "kernels").iterdir()} == {".loops", ".c"}
    code = tmp_path / "k0.ll"
    code.write_text("")
    with pytest.raises(OptionError, match="kernels for c are not made of LLVM IR"):
        compile_artifact(models.mlp(), options=Options(target="c", override={"k0": code}), shapes=SHAPES)


def test_kernels_and_folders_that_there_are_not(dumped: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no kernel 'k7'") as caught:
        overridden(k7=kernel(dumped, "k1", ".loops"))
    assert "k0_matmul_add_max" in str(caught.value)
    names = [f"k{number}_matmul" for number in range(30)]
    hint = kernels_near("k299", names)
    assert hint.startswith("did you mean 'k29_matmul'") and hint.endswith(", k19_matmul and 10 more")
    assert kernels_near("elsewhere", []) == "the kernels are: none"
    with pytest.raises(OptionError, match="cannot read the kernel 'k1'"):
        overridden(k1=tmp_path / "missing.loops")
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot write to the folder"):
        tilewright.compile(models.mlp(), dump=tmp_path / "file" / "below")
    assert os.listdir(tmp_path) == ["file"]


def test_the_command_dumps_and_overrides(tmp_path: Path) -> None:
    path, out, folder = models.written(models.mlp(), tmp_path, "mlp"), tmp_path / "mlp.tw", tmp_path / "stages"
    run = CliRunner().invoke
    shape = ["--shape", f"x=3,{models.FEATURES}"]
    assert run(commands, ["compile", str(path), "-o", str(out), "--dump", str(folder), *shape]).exit_code == 0
    loops = kernel(folder, "k1", ".loops")
    found = run(commands, ["compile", str(path), "-o", str(out), "--no-cache", "--override", f"k1={loops}", *shape])
    assert found.exit_code == 0, found.output
    np.testing.assert_allclose(tilewright.load(out)(X)[0], models.mlp_expected(X), rtol=1e-5)
    assert run(commands, ["compile", str(path), "--override", "k1"]).exit_code == 2
