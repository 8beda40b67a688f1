"""Libraries for Windows, which Wine runs, and for macOS, which nothing here does: of these the parts are looked at."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.exporters.library.emulated import HERE, _packed, _unpacked, difference
from tests.exporters.library.test_export import loop
from tests.models import mlp
from tilewright.compiler import compile_request
from tilewright.exporters.library.foreign_symbols import is_coff, is_macho, names_in, renamed_foreign
from tilewright.options import Options, Request
from tilewright.runtime.errors import OptionError
from tilewright.session import Session
from tilewright.target.named import parse_target

has_zig = importlib.util.find_spec("ziglang") is not None
needs_zig = pytest.mark.skipif(not has_zig, reason="ziglang is not installed")
WINE_FILES = os.environ.get("TILEWRIGHT_TEST_WINE", "")
"""A folder in which Wine keeps its files: half a minute of processor time, for nights."""
needs_wine = pytest.mark.skipif(
    not WINE_FILES or not has_zig or shutil.which("wine") is None,
    reason="wine or ziglang is not installed, or TILEWRIGHT_TEST_WINE names no folder for Wine's files",
)
ZIG = (sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu")
FOREIGN = ("x86_64-windows", "aarch64-windows", "x86_64-macos", "aarch64-macos")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def objects_for(target: str, model: Any = None) -> list[bytes]:
    """The object files of a model's code."""
    made: list[bytes] = []
    compile_request(
        Request.of(mlp() if model is None else model, None, None), Options(target=target, cache=False),
        session=Session(), on_objects=lambda files: made.extend(file.data for file in files), own_objects=True,
    )  # fmt: skip
    return made


@pytest.mark.parametrize("target", FOREIGN)
def test_objects_get_other_names_and_nothing_else_changes(target: str) -> None:
    for blob in objects_for(target):
        assert (is_coff(blob), is_macho(blob)) == (target.endswith("windows"), target.endswith("macos"))
        before = names_in(blob)
        names = {name: f"a_long_name_of_{name}" for name in before.defined}
        made = renamed_foreign(blob, lambda name, names=names: names.get(name, name))  # type: ignore[misc]
        after = names_in(made)
        assert after.defined == {f"a_long_name_of_{name}" for name in before.defined}
        assert after.needed == before.needed
        back = names_in(renamed_foreign(made, lambda name: name.removeprefix("a_long_name_of_")))
        assert back == before


def test_what_is_rounded_calls_what_every_c_library_has() -> None:
    """SSE2 has no instruction that rounds, and `roundeven` is not in those of Windows, macOS and musl."""
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    rounded = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([helper.make_node("Round", ["x"], ["y"])], "g", [info], [rounded])
    blobs = objects_for("x86-64,os=windows", helper.make_model(graph))
    needed = frozenset[str]().union(*(names_in(blob).needed for blob in blobs))
    assert "rintf" in needed and not any(name.startswith("roundeven") for name in needed)


def test_names_behind_which_other_sections_stand() -> None:
    """A table of names that does not end the file is written anew behind it."""
    blob = objects_for("x86_64-windows")[0]
    table, count = struct.unpack_from("<II", blob, 8)
    longer = blob + b"more"
    made = renamed_foreign(longer, lambda name: f"{name}_of_ours")
    assert made.startswith(longer[:8]) and struct.unpack_from("<I", made, 8)[0] >= len(longer)
    assert names_in(made).defined == {f"{name}_of_ours" for name in names_in(blob).defined}
    assert table < len(blob) and count


def in_wine(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """What a program of Windows says in a folder."""
    prefix = str(Path(WINE_FILES).absolute())
    env = {**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": prefix, "WINEDLLOVERRIDES": "mscoree,mshtml="}
    run = ["wine", *command]
    return subprocess.run(run, cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=True)


@needs_wine
def test_a_library_runs_in_wine(tmp_path: Path) -> None:
    """With two threads, a loop whose sizes follow from values, and weights in a file beside it that is mapped."""
    for name, model, x in (("net", mlp(), floats(5, 64)), ("steps", loop(), np.abs(floats(3)))):
        made = tilewright.export(
            model, tmp_path / f"{name}.dll", target="x86_64-windows", weights="beside" if name == "net" else "inside"
        )
        assert [path.name for path in made][:3] == [f"{name}.dll", f"{name}.h", f"{name}.dll.lib"]
        build = [*ZIG, "-O1", "-s", f"-DMODEL={name}", "-include", f"{name}.h", str(HERE / "runner.c")]
        build.append(f"{name}.dll.lib")
        subprocess.run([*build, "-o", f"{name}.exe"], cwd=tmp_path, check=True, capture_output=True)
        (tmp_path / "inputs").write_bytes(_packed(x))
        in_wine(tmp_path, f"{name}.exe", "inputs", "outputs", "2")
        found = _unpacked((tmp_path / "outputs").read_bytes())
        wanted = tilewright.compile(model, threads=1)(x)
        assert max(map(difference, found, wanted)) < 1e-6
    (tmp_path / "net.weights").write_bytes((tmp_path / "net.weights").read_bytes()[:-1])
    with pytest.raises(subprocess.CalledProcessError) as caught:
        in_wine(tmp_path, "net.exe", "inputs", "outputs")
    assert "net.weights is cut off" in caught.value.stderr


@needs_zig
@pytest.mark.sweep
@pytest.mark.parametrize("target", ["aarch64-macos", "x86_64-macos"])
def test_what_a_library_for_macos_is_made_of(target: str, tmp_path: Path) -> None:
    tilewright.export(mlp(), tmp_path / "libnet.dylib", name="net", target=target, weights="beside")
    objdump, nm = shutil.which("llvm-objdump"), shutil.which("llvm-nm")
    if objdump is None or nm is None:
        pytest.skip("llvm-objdump or llvm-nm is not installed")

    def told(*command: str) -> str:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    shown = {line.split()[-1] for line in told(nm, "-gU", "libnet.dylib").splitlines() if " __" not in line}
    functions = ("info", "plan", "create", "run", "cancel", "state", "reset", "error", "destroy")
    assert shown == {f"_net_{function}" for function in functions}
    needed = told(objdump, "--macho", "--dylibs-used", "libnet.dylib").splitlines()[1:]
    assert needed and all("@rpath/libnet.dylib" in line or "/usr/lib/libSystem" in line for line in needed)
    headers = told(objdump, "--macho", "--private-headers", "libnet.dylib")
    assert target.startswith("x86_64") or "LC_CODE_SIGNATURE" in headers  # Apple silicon runs nothing unsigned
    imports = {line.split()[-1] for line in told(nm, "-u", "libnet.dylib").splitlines()}
    assert "_pthread_create" in imports and "___ulock_wait" in imports and not any("tw_" in name for name in imports)


@pytest.mark.parametrize(
    ("output", "target"),
    [("net.o", "x86_64-windows"), ("net.dylib", "x86-64-v3"), ("net.dll", "aarch64-macos")],
)
def test_names_of_other_systems(output: str, target: str, tmp_path: Path) -> None:
    message = f"'{output}' is no name of a library for .*\n  hint: libraries for it end in"
    with pytest.raises(OptionError, match=message):
        tilewright.export(mlp(), tmp_path / output, target=target, cc="cc")
    assert not list(tmp_path.iterdir())


def test_other_systems_are_changes_of_targets() -> None:
    assert parse_target("zen4,os=windows").triple == "x86_64-pc-windows-gnu"
    assert parse_target("aarch64-macos").triple.startswith("aarch64-apple-macos")
    with pytest.raises(tilewright.TargetError, match=r"unknown system 'beos'.*\n  hint: systems: linux, macos, win"):
        parse_target("zen4,os=beos")
