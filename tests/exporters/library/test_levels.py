"""Libraries with code for several levels of x86-64: each CPU gets the best that it can run, and the same interface."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests.exporters.library.c_library import CModel
from tests.exporters.library.emulated import HERE, _packed, _unpacked, difference
from tests.models import mlp
from tilewright.exporters.library.levels import chooser_c
from tilewright.exporters.library.toolchain import Toolchain
from tilewright.runtime.errors import OptionError

needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-x86_64") is None or shutil.which("cc") is None, reason="qemu-x86_64 or cc is not installed"
)
FUNCTIONS = ("info", "plan", "create", "run", "cancel", "state", "reset", "error", "destroy")
TOLD = """#include <stdio.h>
#include "net.h"
int main(void) {
  net_model *model;
  int status = net_create(NULL, &model);
  printf("%s %d %s", net_info()->target, status, net_error(NULL));
  net_destroy(model);
  return 0;
}
"""


@needs_qemu
def test_each_cpu_takes_the_best_level_that_it_can_run(tmp_path: Path) -> None:
    x = np.random.default_rng(4).standard_normal((3, 64)).astype(np.float32)
    wanted = tilewright.compile(mlp(), threads=1)(x)[0]
    made = tilewright.export(mlp(), tmp_path / "libnet.so", target="x86-64-v3;x86-64-v2", weights="beside", cc="cc")
    assert [path.name for path in made] == ["libnet.so", "net.h", "libnet.weights"]
    nm = subprocess.run(["nm", "-D", "--defined-only", made[0]], capture_output=True, text=True, check=True).stdout
    assert {line.split()[-1] for line in nm.splitlines()} == {f"net_{function}" for function in FUNCTIONS}
    (tmp_path / "told.c").write_text(TOLD)
    build = ["cc", "-L.", "-Wl,-rpath,$ORIGIN", "-I."]
    runner = ["-DMODEL=net", "-include", "net.h", str(HERE / "runner.c"), "-o", "net"]
    for program in (["told.c", "-o", "told"], runner):
        subprocess.run([*build, *program, "-lnet", "-lm"], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "inputs").write_bytes(_packed(x))

    def on(cpu: str, *command: str) -> str:
        run = ["qemu-x86_64", "-cpu", cpu, *command]
        return subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout

    for cpu, level in (("Nehalem", "x86-64-v2"), ("Haswell", "x86-64-v3")):
        assert on(cpu, "./told") == f"{level} 0 "
        on(cpu, "./net", "inputs", "outputs", "2")
        assert difference(_unpacked((tmp_path / "outputs").read_bytes())[0], wanted) < 1e-6
    target, status, text = on("qemu64", "./told").split(" ", 2)
    assert (target, status) == ("x86-64-v2", "6")
    assert text.startswith("this CPU lacks ") and text.endswith(", which the code needs: it was made for x86-64-v2")
    here = CModel(made[0], "net")  # whatever this machine is, it runs one
    assert difference(here.run(x)[0], wanted) < 1e-6


def test_the_public_functions_are_those_of_the_header() -> None:
    text = chooser_c("net", ["net_low", "net_high"], "")
    assert text.index("{net_high_lacks") < text.index("{net_low_lacks")
    assert "tw_status net_state(net_model *model, size_t index, tw_tensor *state)" in text
    assert "return chosen()->state(model, index, state);" in text
    assert "void net_destroy(net_model *model) { chosen()->destroy(model); }" in text
    assert text.count("chosen()->") == 9


def test_a_library_for_windows_shows_the_functions_that_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none of a level, which that system asks for in another way."""
    sources = {}

    def kept(self: Toolchain, command: Sequence[str], folder: Path) -> None:
        sources.update({path.name: path.read_text() for path in folder.glob("*.c")})
        if (folder / "named").is_dir():
            for made in ("named/net.dll", "the-library.lib"):
                (folder / made).write_bytes(b"MZ")

    monkeypatch.setattr(Toolchain, "_run", kept)
    tilewright.export(mlp(), tmp_path / "net.dll", target="x86-64-v2,os=windows;x86-64-v3,os=windows", cc="cc")
    assert {name for name, text in sources.items() if "dllexport" in text} == {"net.c"}
    assert {f"net_x86_64_v{k}.c" for k in (2, 3)} == sources.keys() - {"net.c"}


@pytest.mark.parametrize(
    ("output", "target", "message"),
    [
        ("net.so", "neoverse-n1;neoverse-v1-sve", "levels of a library are those of x86-64"),
        ("net.so", "x86-64-v3;neoverse-n1", "levels of a library are those of x86-64"),
        ("net.so", "x86-64-v3;x86-64-v3", "two levels are the same"),
        ("net.so", "x86-64-v2;x86-64-v3,os=windows", "levels of one artefact are CPUs of one kind and system"),
        ("net.c", "x86-64-v2;x86-64-v3", "a source in C is for all machines"),
    ],
)  # fmt: skip
def test_levels_that_no_library_has(output: str, target: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        tilewright.export(mlp(), tmp_path / output, target=target, cc="cc")
    assert not list(tmp_path.iterdir())
