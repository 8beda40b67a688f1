"""The cache of compiled models: what makes its key another one, and what a model that it has needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

import tilewright
from tilewright.session import Session, compiler_stamp


def test_an_edited_compiler_does_not_find_what_it_compiled_before(tmp_path: Path) -> None:
    room = tmp_path / "graph"
    room.mkdir()
    source = room / "fuse.py"
    source.write_text("LIMIT = 1\n")
    os.utime(source, ns=(1, 1))
    first = compiler_stamp(tmp_path)
    compiler_stamp.cache_clear()
    assert compiler_stamp(tmp_path) == first
    source.write_text("LIMIT = 2\n")
    os.utime(source, ns=(2, 2))
    compiler_stamp.cache_clear()
    assert compiler_stamp(tmp_path) != first
    compiler_stamp.cache_clear()


def test_a_model_that_the_cache_has_needs_no_compiler(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    path, cache = tmp_path / "relu.onnx", tmp_path / "cache"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    tilewright.compile(path, session=Session(cache))
    program = f"""
import sys, pathlib, tilewright
from tilewright.session import Session
model = tilewright.compile({str(path)!r}, session=Session(pathlib.Path({str(cache)!r})))
assert model.report().data["kernels"] == 1
assert not {{"onnx", "tilewright.compiler"}} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
