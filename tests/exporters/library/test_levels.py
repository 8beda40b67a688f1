"""Libraries with code for several levels of x86-64: each CPU gets the best that it can run, and the same interface."""

from __future__ import annotations

import shutil
import subprocess
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

BOTH = """#include <stdio.h>
#include <stdlib.h>
static unsigned char memory[1 << 20];
#define RUN(name) { \\
  tw_tensor in = {x, sizeof x, TW_FLOAT32, 2, {3, 64}}, out = {0}; \\
  tw_options options = {.size = sizeof options, .memory = memory, .memory_bytes = sizeof memory, .threads = 1}; \\
  name##_model *model; \\
  if (name##_create(&options, &model) || name##_run(model, &in, 1, &out, 1)) return 3; \\
  for (size_t k = 0; k < out.bytes / 4; k++) printf("%.9g ", ((float *)out.data)[k]); \\
  printf("\\n"); \\
  name##_destroy(model); }
int main(void) {
  static _Alignas(64) float x[3 * 64];
  for (int k = 0; k < 3 * 64; k++) if (scanf("%f", x + k) != 1) return 2;
  printf("%s %s\\n", net_info()->target, other_info()->target);
  RUN(net)
  RUN(other)
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
    functions = ("info", "plan", "create", "run", "cancel", "state", "reset", "error", "destroy")
    assert {line.split()[-1] for line in nm.splitlines()} == {f"net_{function}" for function in functions}
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


@needs_qemu
@pytest.mark.sweep(1)
@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize("output", ["net.a", "net.o"])
def test_levels_in_a_static_library_and_an_object(output: str, is_free: bool, tmp_path: Path) -> None:
    """Two models of two levels each are in one program; nothing but their interfaces is shown, and without the C
    library the caller's memory holds all."""
    x = np.random.default_rng(4).standard_normal((3, 64)).astype(np.float32)
    wanted = tilewright.compile(mlp(), threads=1)(x)[0]
    for name in ("net", "other"):
        file = tmp_path / f"{name}{Path(output).suffix}"
        tilewright.export(mlp(), file, target="x86-64-v2;x86-64-v3", freestanding=is_free, cc="cc")
    (tmp_path / "both.c").write_text(BOTH)
    files = [f"{name}{Path(output).suffix}" for name in ("net", "other")]
    build = ["cc", "-I.", "-include", "net.h", "-include", "other.h", "both.c", *files, "-o", "both", "-lm"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    for cpu, level in (("Nehalem", "x86-64-v2"), ("Haswell", "x86-64-v3")):
        run, numbers = ["qemu-x86_64", "-cpu", cpu, "./both"], " ".join(map(str, x.flat))
        told = subprocess.run(
            run, cwd=tmp_path, input=numbers, capture_output=True, text=True, check=True, timeout=60
        )
        names, *rows = told.stdout.splitlines()
        assert names == f"{level} {level}"
        for row in rows:
            assert difference(np.array(row.split(), np.float32).reshape(wanted.shape), wanted) < 1e-5
        assert len(rows) == 2


def test_windows_shows_the_public_functions_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A .dll shows what is marked in its sources: the functions in front of the levels, and none of these."""
    sources: dict[str, str] = {}
    monkeypatch.setattr(
        Toolchain, "compile", lambda _, source, made, *flags: sources.update({source.name: source.read_text()})
    )
    monkeypatch.setattr(
        Toolchain, "link_shared", lambda _, objects, made, name: [p.touch() for p in (made, made.with_suffix(".lib"))]
    )
    tilewright.export(mlp(), tmp_path / "net.dll", target="x86-64-v2,os=windows;x86-64-v3,os=windows", cc="cc")
    shown = "#define TW_PUBLIC __declspec(dllexport)"
    assert [name for name in sources if shown in sources[name]] == ["net.c"]
    assert {"net_x86_64_v2.c", "net_x86_64_v3.c"} < sources.keys()


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
