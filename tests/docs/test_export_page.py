"""The programs of the page on exported libraries, compiled and run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests.models import mlp, mlp_expected

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")
PAGE = (Path(__file__).parents[2] / "docs/export.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    tilewright.export(mlp(), folder / "libmlp.so", threads=1)
    tilewright.export(mlp(), folder / "libmlp.a", threads=1)
    tilewright.export(mlp(), folder / "mlp.o", threads=1, freestanding=True, force=True)
    (folder / "main.c").write_text(block("c"), encoding="utf-8")
    return folder


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expected() -> str:
    x = (np.arange(128, dtype=np.float32) / 64).reshape(2, 64)
    return f"y[2, 32]: {mlp_expected(x)[0, 0]:.6f}\n"


WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")


@pytest.mark.parametrize(
    "how",
    [
        ("main.c", "-L.", "-lmlp", "-Wl,-rpath,$ORIGIN"),
        ("main.c", "libmlp.a", "-lm", "-lpthread", "-ldl"),
        ("-fsanitize=address,undefined", "main.c", "libmlp.a", "-lm", "-lpthread", "-ldl"),
    ],
    ids=["shared", "static", "sanitized"],
)
def test_c(folder: Path, how: tuple[str, ...]) -> None:
    run(folder, "cc", *WARNINGS, *how, "-o", "main")
    assert run(folder, "./main") == expected()


def test_a_freestanding_object_needs_nothing(folder: Path) -> None:
    assert not run(folder, "nm", "-u", "mlp.o")
    source = block("c").replace("mlp_create(NULL, &model)", "mlp_create(&options, &model)").replace(
        "mlp_model *model;", "mlp_model *model; static char memory[100000];"
        "tw_options options = {.size = sizeof options, .memory = memory, .memory_bytes = sizeof memory};"
    )  # fmt: skip
    (folder / "free.c").write_text(source, encoding="utf-8")
    run(folder, "cc", *WARNINGS, "free.c", "mlp.o", "-o", "free")
    assert run(folder, "./free") == expected()


@pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake is not installed")
def test_cmake(folder: Path) -> None:
    (folder / "CMakeLists.txt").write_text(block("cmake"), encoding="utf-8")
    run(folder, "cmake", "-S", ".", "-B", "built")
    run(folder, "cmake", "--build", "built")
    assert run(folder, "built/main") == expected()


@pytest.mark.skipif(shutil.which("rustc") is None, reason="Rust is not installed")
def test_rust(folder: Path) -> None:
    (folder / "main.rs").write_text(block("rust"), encoding="utf-8")
    run(folder, "rustc", "-L", ".", "main.rs", "-o", "rusty", "-C", "link-args=-Wl,-rpath,$ORIGIN")
    assert run(folder, "./rusty") == expected()


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_the_header_is_c_plus_plus_too(folder: Path) -> None:
    (folder / "header.cpp").write_text('#include "mlp.h"\nint main() { return mlp_info() == nullptr; }\n')
    run(folder, "c++", "-Wall", "-Wextra", "-Werror", "header.cpp", "-L.", "-lmlp", "-Wl,-rpath,$ORIGIN", "-o", "plus")
    run(folder, "./plus")
