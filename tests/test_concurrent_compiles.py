"""Several threads, or processes, that compile at once give what one after the other gives."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Barrier

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests import models
from tilewright.session import Session

THREADS = 3


def network(seed: int) -> onnx.ModelProto:
    """Two layers and a softmax, with sizes and weights of their own."""
    rng = np.random.default_rng(seed)
    sizes = [8 + int(size) for size in rng.integers(0, 40, 3)]
    weights = [rng.standard_normal(pair, np.float32) for pair in pairwise(sizes)]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["product"]),
        helper.make_node("Relu", ["product"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "b"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", sizes[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", sizes[2]])],
        [numpy_helper.from_array(array, name) for array, name in zip(weights, "ab", strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def code_and_result(model: tilewright.Model) -> tuple[bytes, bytes]:
    """The code, and what it computes."""
    features = model.inputs[0].shape[1]
    assert isinstance(features, int)
    x = np.random.default_rng(0).standard_normal((5, features), np.float32)
    image = model.artifact.image
    assert image is not None
    return bytes(image.text) + image.data, model(x)[0].tobytes()


def test_threads_that_compile_at_once_make_the_same_code() -> None:
    start = Barrier(THREADS)

    def compile_some(first: int) -> list[tuple[bytes, bytes]]:
        start.wait()
        return [
            code_and_result(tilewright.compile(network(seed), cache=False, threads=1, compile_threads=2))
            for seed in (first, 7)
        ]

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(compile_some, range(THREADS)))
    seeds = (*range(THREADS), 7)
    alone = {seed: code_and_result(tilewright.compile(network(seed), cache=False, threads=1)) for seed in seeds}
    for first, several in enumerate(found):
        for seed, one in zip((first, 7), several, strict=True):
            assert one == alone[seed], seed


def test_threads_share_a_cache(tmp_path: Path) -> None:
    session = Session(tmp_path)
    start = Barrier(THREADS)

    def compile_it(_: int) -> bytes:
        start.wait()
        return code_and_result(tilewright.compile(network(1), session=session, threads=1))[1]

    with ThreadPoolExecutor(THREADS) as pool:
        assert len(set(pool.map(compile_it, range(THREADS)))) == 1
    assert len(list(tmp_path.glob("*.tw"))) == 1
    assert [path.name for path in tmp_path.iterdir() if path.suffix not in (".tw", "")] == []


# The first compile of a process sets LLVM up: threads that do so at once, and processes that share a cache.
_RACE = """
import sys, threading, pathlib, hashlib
import numpy as np
import tilewright
from tilewright.session import Session

session = Session(pathlib.Path(sys.argv[2]))
results, start = [], threading.Barrier(3)

def work():
    start.wait()
    model = tilewright.compile(sys.argv[1], session=session, threads=1, cache=sys.argv[3] == "True")
    results.append(model(np.ones((3, 64), np.float32))[0].tobytes())

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(results) == 3 and len(set(results)) == 1, len(results)
print(hashlib.sha256(results[0]).hexdigest())
"""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("cache", [True, False])
def test_processes_whose_first_compiles_race(tmp_path: Path, cache: bool) -> None:
    path = tmp_path / "mlp.onnx"
    onnx.save(models.mlp(), path)
    folder = tmp_path / "cache"
    command = [sys.executable, "-c", _RACE, str(path), str(folder), str(cache)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [process.communicate(timeout=600) for process in running]
    for process, (_, errors) in zip(running, said, strict=True):
        assert process.returncode == 0, errors
    assert len({output for output, _ in said}) == 1
    assert len(list(folder.glob("*.tw"))) == int(cache)
