"""Memory that compiling and loading take is given back: what C code holds does not grow with their number."""

from __future__ import annotations

import ctypes
import sys

import pytest

from tests import models
from tests.processes import COMPILER, Stage, outputs

STEPS = {"kernel": 10, "model": 4, "load": 10}
"""How many of each are measured, three times."""

_MEASURING = """
import ctypes, gc, sys

import numpy as np
import tilewright
from tilewright.codegen.cpu.assemble import compile_ir
from tilewright.target.named import parse_target

class Mallinfo(ctypes.Structure):
    _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Mallinfo

def growth(step, warm, count):
    '''Bytes from malloc that each of `count` steps keeps, after some that fill what is bounded. The least of three
    times, as a table of LLVM or Python that doubles its room does so in one of them, and a leak is in all.'''
    for _ in range(warm):
        step()
    return min(kept(step, count) for _ in range(3))

def kept(step, count):
    gc.collect()
    before = mallinfo()
    for _ in range(count):
        step()
    gc.collect()
    after = mallinfo()
    # uordblks and hblkhd: bytes of small blocks, and of large ones, which are mapped one by one
    return (after.field7 + after.field4 - before.field7 - before.field4) / count

def kernel(path):
    text = "define i32 @f(i32 %x) {\\n  %y = add i32 %x, 0\\n  ret i32 %y\\n}\\n"
    target = parse_target("zen3")
    return lambda: compile_ir(text, target)

def model(path):
    data = open(path, "rb").read()
    return lambda: tilewright.compile(data, cache=False, threads=2)

def load(path):
    tilewright.compile(path, cache=False).save(path + ".tw")
    x = np.zeros((3, 64), np.float32)
    return lambda: tilewright.load(path + ".tw", threads=2)(x)

step, count, path = sys.argv[1:]
print(growth(globals()[step](path), 5, int(count)))
"""

needs_mallinfo = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="needs glibc 2.33, which counts what malloc gave out",
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Bytes that each step of a program keeps: programs in processes of their own, which have imported the compiler."""
    folder = tmp_path_factory.mktemp("leaks")
    script, model = folder / "measure.py", folder / "mlp.onnx"
    script.write_text(_MEASURING)
    model.write_bytes(models.mlp().SerializeToString())
    runs = [[name, str(count), str(model)] for name, count in STEPS.items()]
    printed = outputs([Stage(script, runs, ("onnx", "tilewright.frontends.onnx", *COMPILER[:1]))])
    return {name: float(text) for name, text in zip(STEPS, printed, strict=True)}


@needs_mallinfo
def test_a_compiled_kernel_leaves_nothing_behind(kept: dict[str, float]) -> None:
    # 1.5 kB stay with llvmlite, which never frees the callbacks of a pass builder; a pass manager takes 48 kB
    assert kept["kernel"] < 8_000


@needs_mallinfo
def test_a_compiled_model_leaves_nothing_behind(kept: dict[str, float]) -> None:
    assert kept["model"] < 60_000


@needs_mallinfo
def test_a_loaded_model_leaves_nothing_behind(kept: dict[str, float]) -> None:
    assert kept["load"] < 4_000
