"""Memory that compiling and loading take is given back: what C code holds does not grow with their number."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from tests import models

KERNELS, MODELS, LOADS = 30, 10, 30

_MEASURING = """
import ctypes, gc, sys

class Mallinfo(ctypes.Structure):
    _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Mallinfo

def growth(step, warm, count):
    '''Bytes from malloc that each of `count` steps keeps, after some that fill what is bounded.'''
    for _ in range(warm):
        step()
    gc.collect()
    before = mallinfo()
    for _ in range(count):
        step()
    gc.collect()
    after = mallinfo()
    # uordblks and hblkhd: bytes of small blocks, and of large ones, which are mapped one by one
    return (after.field7 + after.field4 - before.field7 - before.field4) / count
"""

_KERNELS = """
from tilewright.codegen.cpu.assemble import compile_ir
from tilewright.target.named import parse_target

target = parse_target("zen3")
text = "define i32 @f(i32 %x) {\\n  %y = add i32 %x, 0\\n  ret i32 %y\\n}\\n"
print(growth(lambda: compile_ir(text, target), 5, int(sys.argv[1])))
"""

_MODELS = """
import tilewright

model = open(sys.argv[2], "rb").read()
print(growth(lambda: tilewright.compile(model, cache=False, threads=2), 5, int(sys.argv[1])))
"""

_LOADS = """
import numpy as np
import tilewright

tilewright.compile(sys.argv[2], cache=False).save(sys.argv[2] + ".tw")
x = np.zeros((3, 64), np.float32)
print(growth(lambda: tilewright.load(sys.argv[2] + ".tw", threads=2)(x), 5, int(sys.argv[1])))
"""

needs_mallinfo = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="needs glibc 2.33, which counts what malloc gave out",
)


def kept(program: str, *arguments: object) -> float:
    """Bytes that each step of a program keeps."""
    command = [sys.executable, "-c", _MEASURING + program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@needs_mallinfo
def test_a_compiled_kernel_leaves_nothing_behind() -> None:
    # 1.5 kB stay with llvmlite, which never frees the callbacks of a pass builder; a pass manager takes 48 kB
    assert kept(_KERNELS, KERNELS) < 8_000


@needs_mallinfo
def test_a_compiled_model_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(models.mlp().SerializeToString())
    assert kept(_MODELS, MODELS, path) < 60_000


@needs_mallinfo
def test_a_loaded_model_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(models.mlp().SerializeToString())
    assert kept(_LOADS, LOADS, path) < 4_000
