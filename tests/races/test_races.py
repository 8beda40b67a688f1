"""ThreadSanitizer finds no race in the thread pool, nor in the C runtime of exported libraries; and one where there is
one.

The pool is LLVM IR: Clang, in the wheel ziglang, instruments functions that ask for it. GCC has the library that
watches.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

import tilewright
from tests.exporters.library.test_export import mlp
from tilewright.codegen.cpu.program.pool import pool_ir

HERE = Path(__file__).parent
FOUND = 66
"""The exit code of a program in which something was found."""


def built(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode and "tsan" in done.stderr and "cannot find" in done.stderr:
        pytest.skip("GCC has no ThreadSanitizer here")
    assert done.returncode == 0, done.stderr


def run(program: Path) -> subprocess.CompletedProcess[str]:
    # without randomised addresses, which the library needs on systems that use many bits for them
    own = ["setarch", "-R"] if shutil.which("setarch") else []
    return subprocess.run([*own, program], capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(autouse=True)
def compilers() -> None:
    if shutil.which("gcc") is None or not sys.platform.startswith("linux"):
        pytest.skip("there is no GCC")


def watched_pool(folder: Path, instead: tuple[str, str] = ("", "")) -> Path:
    """A program with the pool, in whose text something else may stand."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("there is no Clang (ziglang) that reads this LLVM IR")
    text = pool_ir(llvm.get_process_triple())
    assert instead[0] in text
    text = re.sub(r"^(define .*\)[^{]*)\{", r"\1 sanitize_thread {", text.replace(*instead), flags=re.MULTILINE)
    (folder / "pool.ll").write_text(text)
    zig: list[str | Path] = [sys.executable, "-m", "ziglang", "cc"]
    built([*zig, "-fsanitize=thread", "-O1", "-c", folder / "pool.ll", "-o", folder / "pool.o"])
    own = [HERE / "pool.c", folder / "pool.o", "-lpthread", "-o", folder / "pool"]
    built(["gcc", "-fsanitize=thread", "-O1", "-g", *own])
    return folder / "pool"


def test_the_pool_has_no_races(tmp_path: Path) -> None:
    done = run(watched_pool(tmp_path))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize(
    "order, weaker",
    [
        ("store atomic i32 0, ptr %busy release", "store atomic i32 0, ptr %busy monotonic"),
        ("store atomic i32 0, ptr %mailbox release", "store atomic i32 0, ptr %mailbox monotonic"),
        ("xchg ptr %mailbox, i32 1 acq_rel", "xchg ptr %mailbox, i32 1 monotonic"),
    ],
    ids=["busy", "finished", "offered"],
)
@pytest.mark.sweep(0)
def test_weaker_orders_would_be_found(order: str, weaker: str, tmp_path: Path) -> None:
    done = run(watched_pool(tmp_path, (order, weaker)))
    assert done.returncode == FOUND and "data race" in done.stderr


@pytest.mark.sweep(0)
def test_libraries_have_no_races(tmp_path: Path) -> None:
    tilewright.export(mlp(), tmp_path / "libmlp.a", threads=1, cc="gcc -fsanitize=thread -g")
    library = [HERE / "library.c", tmp_path / "libmlp.a", f"-I{tmp_path}", "-lpthread", "-lm", "-ldl"]
    built(["gcc", "-fsanitize=thread", "-g", *library, "-o", tmp_path / "users"])
    done = run(tmp_path / "users")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
